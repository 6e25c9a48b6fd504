"""What an update of each method looks at, as estimates need it."""

from __future__ import annotations

from diaster.config import METHODS, DiasterConfig, RdConfig, RrdConfig, RudderConfig


def test_the_cost_of_an_update_is_its_steps_and_how_many_of_them_follow_each_other() -> None:
    horizon = 1000
    for settings, steps, sequential in (
        (DiasterConfig(batch_episodes=2, segments_per_episode=3, segment_length=5), 30, 5),
        (DiasterConfig(segments="all", batch_episodes=2), 2000, horizon),
        (DiasterConfig(segments="all", batch_episodes=2, batch_steps=700), 700, horizon),
        (RrdConfig(batch_episodes=2, subset=7), 14, 1),
        (RdConfig(batch_episodes=2), 2000, 1),
        (RudderConfig(batch_episodes=2), 2000, horizon),
    ):
        assert settings.cost(horizon) == (steps, sequential)


def test_what_has_no_updates_costs_nothing() -> None:
    for method in METHODS.values():
        settings = method.settings()
        assert (settings.cost(1000).steps == 0) == (settings.updates == 0)

"""Episodes from the steps of an environment, as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
from all_settings import refusal

from diaster.decomposed.cutting import EpisodeCutter
from diaster.types import Episode


def vector(number: float) -> np.ndarray:
    return np.full(2, number, np.float32)


def walk(cutter: EpisodeCutter, first: int, last: int, ends: bool = True, **arguments: Any) -> Episode | None:
    """From state to state; in state s the action is −s and the reward 10·s."""
    for state in range(first, last):
        is_last = ends and state == last - 1
        episode = cutter.add(
            vector(state), vector(-state), 10.0 * state, vector(state + 1), is_last, terminated=True, **arguments
        )
        assert is_last or episode is None
    return episode


def test_an_episode_has_every_observation_once_and_the_sum_of_its_rewards() -> None:
    cutter = EpisodeCutter(horizon=5)
    for first, last in ((0, 3), (7, 8), (1, 6)):
        episode = walk(cutter, first, last)
        assert episode is not None and episode.terminated and episode.hidden_reward is None
        np.testing.assert_array_equal(episode.obs[:, 0], range(first, last + 1))
        np.testing.assert_array_equal(episode.action[:, 0], [-state for state in range(first, last)])
        assert episode.episode_return == sum(10.0 * state for state in range(first, last))


def test_rewards_of_steps_are_kept_on_request_alone() -> None:
    episode = walk(EpisodeCutter(horizon=5), 1, 3, keep_rewards=True)
    assert episode is not None and episode.hidden_reward is not None
    np.testing.assert_array_equal(episode.hidden_reward, [10.0, 20.0])


def test_a_time_limit_does_not_terminate() -> None:
    episode = EpisodeCutter(horizon=5).add(vector(0), vector(0), 1.0, vector(1), is_last=True, terminated=False)
    assert episode is not None and not episode.terminated


def test_what_came_before_a_reset_in_between_is_dropped() -> None:
    cutter = EpisodeCutter(horizon=5)
    walk(cutter, 0, 3, ends=False)
    episode = walk(cutter, 10, 12)
    assert episode is not None and episode.episode_return == 210.0
    np.testing.assert_array_equal(episode.obs[:, 0], [10, 11, 12])


def test_an_episode_longer_than_the_horizon_is_a_sentence() -> None:
    cutter = EpisodeCutter(horizon=5)
    assert walk(cutter, 0, 5) is not None
    assert "more than horizon=5 steps" in refusal(lambda: walk(cutter, 0, 6, ends=False))

"""Every number has limits, which stand at the setting, and one outside of them is refused by its dotted name."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from all_settings import CHOICES, SETTINGS, choices_with, nested, refusal

from diaster.config import build_config, validate
from diaster.config.limits import ABOVE_ZERO, FRACTION, Limit, at_least, at_most, broken_limit

INF, NAN = math.inf, math.nan
TOO_SMALL: list[tuple[str, float]] = [
    ("steps", 0),
    ("steps", -1),
    ("horizon", 0),
    ("feedback_every", 0),
    ("warmup_steps", 0),
    ("chunk_steps", 0),
    ("envs", 0),
    ("checkpoint_every", -1),
    ("devices", 0),
    ("workers", -1),
    ("env_retries", -1),
    ("method.hidden", 0),
    ("method.n_cuts", -1),
    ("method.segment_length", 0),
    ("method.segments_per_episode", 0),
    ("method.batch_episodes", 0),
    ("method.batch_steps", -1),
    ("method.variance_penalty", -0.1),
    ("method.variance_penalty", NAN),
    ("method.penalty_episodes", -1),
    ("method.updates", -1),
    ("method.every", 0),
    ("method.relabel_every", 0),
    ("method.subset", 0),
    ("method.auxiliary_weight", -0.1),
    ("method.auxiliary_weight", NAN),
    ("method.elite_episodes", 0),
    ("method.weight_decay", -0.1),
    ("method.careful", -0.1),
    ("method.ensemble", 0),
    ("method.updates_per_episode", -1),
    ("method.fewer_after", -1),
    ("method.scale_steps", -1),
    ("agent.hidden", 0),
    ("agent.actor_hidden", 0),
    ("agent.layers", 0),
    ("agent.atoms", 2),
    ("agent.batch_size", 0),
    ("agent.updates", -1),
    ("agent.annealing_updates", -1),
    ("agent.every", 0),
    ("agent.gradient_clip", -0.1),
    ("agent.exploration_noise", -0.1),
    ("agent.target_noise", -0.1),
    ("agent.target_noise_clip", -0.1),
    ("agent.target_noise_clip", NAN),
    ("agent.policy_every", 0),
    ("agent.target_every", 0),
    ("agent.exploration_steps", 0),
    ("replay.capacity", 1),
    ("evaluation.every", 0),
    ("evaluation.episodes", 0),
    ("evaluation.held_out", 0),
    ("evaluation.stop_after", -1),
    ("keep_checkpoint", -1),
    ("image.side", 7),
    ("image.frames", 0),
]
ZERO_IS_ALLOWED = {name for name, value in TOO_SMALL if value < 0}
LEAST = {  # of the others, 0 or 1
    ("xqc", "agent.batch_size"): 2,
    ("xqc", "agent.atoms"): 3,
    **{(choice, "image.side"): 8 for choice in CHOICES},
}
TOO_LARGE = [
    ("horizon", 10_000_001),
    ("method.hidden", 65_537),
    ("method.elite_episodes", 10_001),
    ("agent.hidden", 65_537),
    ("agent.actor_hidden", 65_537),
    ("agent.layers", 65),
    ("agent.atoms", 10_002),
    ("image.side", 257),
    ("image.frames", 17),
]
NOT_FINITE = [
    ("method.variance_penalty", INF),
    ("method.auxiliary_weight", INF),
    ("agent.gradient_clip", INF),
    ("agent.exploration_noise", INF),
    ("agent.target_noise", INF),
    ("agent.target_noise_clip", INF),
    ("evaluation.stop_at", INF),
    ("evaluation.stop_at", NAN),
]
POSITIVE = (
    "method.learning_rate",
    "method.return_scale",
    "agent.learning_rate",
    "agent.final_learning_rate",
    "agent.initial_temperature",
    "agent.value_limit",
    "agent.reward_scale",
    "step_seconds",
)
FRACTIONS = (
    "method.averaging",
    "restart_agent_at",
    "agent.discount",
    "agent.target_rate",
    "agent.discrete_entropy",
    "agent.exploration_final",
)
OUT_OF_RANGE = [
    *((name, value) for name in POSITIVE for value in (0.0, -1.0, INF, NAN)),
    *((name, value) for name in FRACTIONS for value in (-0.1, 1.1, NAN)),
]


def with_setting(choice: str, name: str, value: float) -> None:
    validate(build_config(env="Hopper-v5", **nested(name, value, **CHOICES[choice])))


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        (TOO_SMALL, "is too small; it has to be at least "),
        (TOO_LARGE, "is too large; it has to be at most "),
        (NOT_FINITE, "is no finite number; give one."),
        (OUT_OF_RANGE, "is out of range; it has to "),
    ],
    ids=["too small", "too large", "not finite", "out of range"],
)
def test_a_number_outside_of_its_limits_is_refused_wherever_it_is_a_setting(
    cases: list[tuple[str, float]], sentence: str
) -> None:
    for name, value in cases:
        for choice in choices_with(name):
            found = refusal(lambda choice=choice, name=name, value=value: with_setting(choice, name, value))
            assert found.startswith(f"{name}={value} {sentence}"), choice


def test_the_ends_of_the_limits_are_allowed() -> None:
    # What other settings have to do with these is not asked here.
    alone = {"envs", "steps", "warmup_steps", "method.n_cuts", "replay.capacity"}
    for name, value in TOO_SMALL:
        if name not in alone and not math.isnan(value):
            for choice in choices_with(name):
                with_setting(choice, name, LEAST.get((choice, name), 0 if name in ZERO_IS_ALLOWED else 1))
    for name, value in TOO_LARGE:
        for choice in choices_with(name):
            with_setting(choice, name, value - 1)
    for name in FRACTIONS:
        for choice in choices_with(name):
            with_setting(choice, name, 0.0)
            with_setting(choice, name, 1.0)


def kinds(hint: Any) -> Iterator[Any]:
    """The types that an annotation allows, and what it says of them."""
    yield hint
    for part in (*typing.get_args(hint), *getattr(hint, "__metadata__", ())):
        yield from kinds(part)


def test_every_number_has_a_limit_at_its_setting_and_a_value_outside_of_it_above() -> None:
    tried = {name for name, _ in TOO_SMALL + TOO_LARGE + NOT_FINITE + OUT_OF_RANGE}
    seen = set()
    for choice, settings in SETTINGS.items():
        for name, hint in settings.items():
            found = list(kinds(hint))
            if name != "seeds" and (int in found or float in found):
                assert any(isinstance(part, Limit) for part in found), (choice, name)
                seen.add(name)
    assert seen == tried


def test_a_limit_is_a_condition_and_the_end_of_a_sentence() -> None:
    limits = (at_least(2), at_most(4))
    assert [broken_limit("x", value, limits) is None for value in (1, 2, 4, 5)] == [False, True, True, False]
    assert broken_limit("x", 1, limits) == "x=1 is too small; it has to be at least 2."
    assert broken_limit("x", 5, limits) == "x=5 is too large; it has to be at most 4."
    assert broken_limit("x", -1.0, (ABOVE_ZERO,)) == "x=-1.0 is out of range; it has to be a finite number above 0."
    assert broken_limit("x", 2.0, (FRACTION,)) == "x=2.0 is out of range; it has to lie between 0 and 1."


def test_a_word_in_the_place_of_a_number_and_what_is_no_limit_are_left_alone() -> None:
    assert broken_limit("x", "auto", (at_least(1),)) is None
    assert broken_limit("x", -1, ("a text for the help",)) is None

"""What a run is warned of when its evaluations are recorded."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from small_runs import Copying, StoppingAt, small

from diaster.config import build_config
from diaster.errors import Stopped
from diaster.training.evaluations import ClippedTargets, clipped_targets, guesses, poor_fit
from diaster.training.train import resume_training, run_training

NAN = math.nan


def rows(*shares: float) -> list[dict[str, float]]:
    return [{"step": 10, "seed": seed, "clipped": share} for seed, share in enumerate(shares)]


# The mean share of every evaluation, and after which of them it is told.
@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.03, 0.03, 0.03, 0.5, 0.5, 0.5], [2]),
        ([0.03, 0.03, 0.01, 0.03, 0.03, 0.03, 0.0, 0.9, 0.9, 0.9], [5]),
        ([0.02] * 6, []),
        ([0.9, 0.0] * 5, []),
        ([NAN, 0.03, 0.03, NAN, 0.03, 0.03], []),
        ([NAN] * 4, []),
    ],
)
def test_clipped_targets_are_told_of_once_after_three_evaluations_in_a_row(
    shares: list[float], told: list[int]
) -> None:
    clipped = ClippedTargets()
    found = [clipped.add(rows(share)) for share in shares]
    assert [number for number, share in enumerate(found) if share is not None] == told
    assert [share for share in found if share is not None] == [shares[number] for number in told]


def test_the_share_is_the_mean_over_seeds_that_have_learnt_and_agents_without_one_have_none() -> None:
    for shares, share in (((0.01, 0.05), 0.03), ((NAN, 0.05), 0.05), ((0.03, 0.0), None)):
        clipped = ClippedTargets()
        found = [clipped.add(rows(*shares)) for _ in range(3)][-1]
        assert found == (None if share is None else pytest.approx(share))
    clipped = ClippedTargets()
    assert [clipped.add([{"step": 10, "seed": 0}]) for _ in range(5)] == [None] * 5


def test_what_is_to_be_raised_is_a_number_that_the_user_knows() -> None:
    measured, given = (
        clipped_targets(10, 0.034, build_config(env="x", agent={"name": "xqc", "reward_scale": scale}))
        for scale in ("auto", 2.0)
    )
    assert measured == (
        "at step 10 3.4 % of the critics' targets lie beyond their range of values; raise --agent.value-limit."
    )
    assert given.endswith("raise --agent.value-limit or --agent.reward-scale.")


def fits(*values: float, step: int = 6000, episodes: int = 5) -> list[dict[str, float]]:
    return [{"step": step, "seed": n, "episodes": episodes, "fit_r2": value} for n, value in enumerate(values)]


CONFIG = build_config(env="Toy-v0", steps=10_000, warmup_steps=1000, seeds=2)


@pytest.mark.parametrize(
    ("rows", "is_poor"),
    [
        (fits(0.1, 0.4), True),
        (fits(0.3, 0.4), False),
        (fits(-400.0, NAN), True),
        (fits(NAN, NAN), False),
        (fits(-400.0, -400.0, step=4999), False),
        (fits(-400.0, -400.0, episodes=1), False),
        (fits(-400.0, 0.9)[:1] + fits(0.9, 0.9, episodes=1)[1:], True),
    ],
    ids=["poor", "good", "one seed has none", "returns hardly vary", "early", "nothing learnt", "one has not learnt"],
)
def test_a_poor_fit_is_told_of_late_in_a_run_and_of_seeds_that_have_learnt(
    rows: list[dict[str, float]], is_poor: bool
) -> None:
    assert (poor_fit(rows, CONFIG) is not None) == is_poor


def differing(*values: float, step: int = 6000) -> list[dict[str, float]]:
    return [{"step": step, "seed": seed, "disagreement": value} for seed, value in enumerate(values)]


@pytest.mark.parametrize(
    ("rows", "is_told"),
    [
        (differing(0.4, 0.9), True),
        (differing(0.4, 0.5), False),
        (differing(NAN, 0.9), True),
        (differing(NAN, NAN), False),
        (differing(3.0, 3.0, step=4999), False),
        (fits(0.9, 0.9), False),
    ],
    ids=["they guess", "they agree", "one has not learnt", "none has learnt", "early", "no ensemble"],
)
def test_an_ensemble_whose_members_differ_late_in_a_run_is_told_of(rows: list[dict[str, float]], is_told: bool) -> None:
    assert (guesses(rows, CONFIG) is not None) == is_told


def test_what_helps_against_a_poor_fit_depends_on_how_much_was_learnt() -> None:
    few, many = (
        poor_fit(fits(-7.0, -7.0, step=step), dataclasses.replace(CONFIG, steps=step)) for step in (3000, 4000)
    )
    assert few is not None and "(fit_r2 <-1)" in few and few.endswith("It has had 750 updates; give it more --steps.")
    assert many is not None and "fewer decomposer updates (--method.updates)" in many and "It has had" not in many
    capped = dataclasses.replace(CONFIG, steps=4000, method=dataclasses.replace(CONFIG.method, updates_per_episode=20))
    told = poor_fit(fits(-7.0, -7.0, step=4000), capped)
    assert told is not None and told.endswith("It has had 100 updates; give it more --steps.")


def test_a_run_that_ends_before_it_learns_is_not_told_that_it_has_learnt_badly() -> None:
    late = dataclasses.replace(CONFIG, warmup_steps=20_000)
    assert poor_fit(fits(-7.0, -7.0, step=10_000), late) is None


def test_a_run_with_too_small_a_range_says_what_to_raise_and_says_it_once_however_often_it_is_resumed(
    tmp_path: Path,
) -> None:
    agent: dict[str, Any] = {"name": "xqc", "actor_hidden": 8, "layers": 1, "atoms": 5, "reward_scale": 1e-3}
    settings = small(method="uniform", agent=agent, evaluation={"every": 33, "episodes": 1})
    config = build_config(env="Toy-v0", **{**settings, "chunk_steps": 33, "checkpoint_every": 33})
    path, reporters = tmp_path / "run", [StoppingAt(132), StoppingAt(231), Copying(tmp_path)]
    with pytest.raises(Stopped):
        run_training(config, path, reporters[0])
    with pytest.raises(Stopped):
        resume_training(path, reporters[1])
    progress = resume_training(path, reporters[2]).progress
    told = (progress["clipped"] > 0.02).argmax() + 2
    step, share = int(progress["step"][told]), progress["clipped"][told]
    assert 132 < step < 231
    sentence = (
        f"at step {step} {100.0 * share:.1f} % of the critics' targets lie beyond their range of values; "
        "raise --agent.value-limit or --agent.reward-scale."
    )
    found = [[warning for warning in reporter.warnings if "critics" in warning] for reporter in reporters]
    assert found == [[], [sentence], []]

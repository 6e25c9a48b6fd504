"""What a run is warned of when its evaluations are recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_runs import Copying, StoppingAt, small

from diaster.config import build_config
from diaster.errors import Stopped
from diaster.training.evaluations import ClippedTargets
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

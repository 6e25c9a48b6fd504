"""What is said before a run begins."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import QUICK, Heard, small

from diaster.config import RunConfig, build_config
from diaster.training.estimate import estimate
from diaster.training.plan import announce, evaluations, expected, spoken, warnings_of_budget
from diaster.training.resolve import resolve
from diaster.training.train import run_training
from diaster.types import EnvSpec

HOPPER = EnvSpec("Hopper-v5", 11, 3, -np.ones(3, np.float32), np.ones(3, np.float32), (3,), 1000)


def config(**settings: Any) -> RunConfig:
    given = {"env": "Hopper-v5", "horizon": 1000, "steps": 100_000, "warmup_steps": 5000, **settings}
    return build_config(**given)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42.4, "42 seconds"),
        (99.9, "100 seconds"),
        (100.0, "2 minutes"),
        (5900.0, "98 minutes"),
        (6000.0, "1.7 hours"),
        (100_000.0, "28 hours"),
        (172_800.0, "2.0 days"),
        (1_192_320.0, "13.8 days"),
    ],
)
def test_times_that_are_known_roughly_are_said_roughly(seconds: float, text: str) -> None:
    assert spoken(seconds) == text


@pytest.mark.parametrize(
    ("cores", "gpu", "where"), [(2, False, "two cores"), (1, False, "one core"), (8, True, "a GPU")]
)
def test_a_run_says_what_time_and_memory_it_takes_and_whose_figures_these_are(
    cores: int, gpu: bool, where: str
) -> None:
    need = estimate(config(), HOPPER, cores, gpu)
    text = expected(config(), HOPPER, cores, gpu)
    assert f"about {spoken(need.seconds)} and {need.memory / 1e9:.1f} GB of memory" in text
    assert f"rough figures of a machine with {where}" in text
    assert "take less" not in text


def test_a_run_that_goes_on_says_what_is_left_and_a_long_one_how_to_make_it_shorter() -> None:
    whole = estimate(config(), HOPPER, 2, False).seconds
    assert f"about {spoken(whole / 4)} and" in expected(config(), HOPPER, 2, False, step=75_000)
    text = expected(config(steps=100_000_000), HOPPER, 2, False)
    assert re.search(r"about [\d.]+ days", text) and "fewer --steps or --seeds take less" in text


def test_evaluations_at_the_ends_of_their_chunks_are_named_where_that_is_not_what_was_asked_for() -> None:
    said = evaluations(config(steps=1000, evaluation={"every": 300})) or ""
    assert "ends of chunks of 200 steps (--chunk-steps): --evaluation.every 300 makes that 400, 600, 1,000" in said
    assert "…" not in said
    said = evaluations(config(evaluation={"every": 50})) or ""
    assert "--evaluation.every 50 makes that 200, 400, 600, …" in said
    assert evaluations(config()) is None
    assert evaluations(config(evaluation={"every": 7000})) is None


def test_one_evaluation_is_said_to_be_the_only_one_with_what_would_make_a_curve() -> None:
    assert evaluations(config(steps=5000)) == "one evaluation, at the end; --evaluation.every 200 makes a curve"
    assert evaluations(config(steps=100_000, evaluation={"every": 100_000})) == (
        "one evaluation, at the end; --evaluation.every 5000 makes a curve"
    )
    assert evaluations(config(steps=150)) == "one evaluation, at the end"


@pytest.mark.parametrize(
    ("settings", "enough"),
    [
        ({"steps": 1999, "warmup_steps": 100}, 2000),
        ({"steps": 4000, "warmup_steps": 100, "envs": 5}, 5200),
        ({"steps": 1999, "warmup_steps": 100, "envs": 2}, 2200),
        ({"steps": 2, "warmup_steps": 1}, 2000),
        ({"steps": 5100, "warmup_steps": 5000, "agent": {"every": 500}}, 5500),
        ({"steps": 1100, "warmup_steps": 1000, "method": {"updates": 3, "every": 10_000}}, 3334),
    ],
)
def test_a_budget_that_is_too_small_is_warned_of_with_a_number_that_is_not(
    settings: dict[str, Any], enough: int
) -> None:
    [sentence] = warnings_of_budget(config(**settings))
    assert f"--steps {enough} " in sentence
    assert list(warnings_of_budget(config(**{**settings, "steps": enough}))) == []


def test_which_of_the_two_is_wrong_with_a_budget_is_said() -> None:
    [late] = warnings_of_budget(config(steps=5100, agent={"every": 500}))
    assert "ends after 5,100 steps, before the agent's first update, which is due at 5,500" in late
    [late] = warnings_of_budget(config(steps=3, warmup_steps=1))
    assert "before the decomposer's first update, which is due at 4" in late
    [short] = warnings_of_budget(config(steps=1500, warmup_steps=150))
    assert "fewer than two episodes" in short and "an episode may last 1,000 steps" in short
    assert list(warnings_of_budget(config())) == []
    assert list(warnings_of_budget(config(method="uniform", agent={"updates": 0}))) == []


@pytest.mark.parametrize("envs", [1, 2, 3])
def test_a_run_learns_in_as_many_steps_as_are_said_to_be_enough(envs: int, tmp_path: Path) -> None:
    settings = small(**QUICK, warmup_steps=3, chunk_steps=7, envs=envs)  # episodes of Toy-v0 last 10 steps
    [sentence] = warnings_of_budget(resolve(build_config(env="Toy-v0", **{**settings, "steps": 10}))[0])
    enough = int(re.search(r"--steps (\d+)", sentence)[1])  # type: ignore[index]
    for steps, learns in ((enough, True), (10 + 9 * (envs == 1), False)):
        heard = Heard()
        run = run_training(build_config(env="Toy-v0", **{**settings, "steps": steps}), tmp_path / f"{steps}", heard)
        assert any("never learnt" in warning for warning in heard.warnings) != learns
        assert math.isfinite(run.progress["critic_loss"][-1]) == learns


def test_what_is_to_be_said_is_said_in_order_and_once() -> None:
    heard = Heard()
    given = config(steps=1500, warmup_steps=150, evaluation={"every": 300})
    announce(heard, given, HOPPER, is_on_gpu=False)
    assert [note.split()[0] for note in heard.notes] == ["this", "evaluations"]
    assert heard.warnings == list(warnings_of_budget(given))
    resumed = Heard()
    announce(resumed, given, HOPPER, is_on_gpu=False, step=800)
    assert (len(resumed.notes), resumed.warnings) == (1, [])

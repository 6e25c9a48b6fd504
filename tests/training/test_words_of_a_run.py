"""What a reporter is told in the course of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_runs import QUICK, Heard, StoppingAt, small

from diaster.config import RunConfig, build_config
from diaster.errors import Stopped
from diaster.training.progress import Progress
from diaster.training.train import resume_training, run_training


class Following(Heard):
    """Keeps all it is told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Progress | str] = []

    def advance(self, progress: Progress) -> None:
        self.told.append(progress)

    def doing(self, what: str) -> None:
        super().doing(what)
        self.told.append(what)


def config(**settings: Any) -> RunConfig:
    return build_config(**small(**{"env": "Toy-v0", **settings}))


def test_a_run_says_what_it_compiles_and_knows_its_pace_from_the_chunks_after_that(tmp_path: Path) -> None:
    reporter = Following()
    run_training(config(steps=400, evaluation={"every": 200}), tmp_path / "run", reporter)
    told = [item if isinstance(item, str) else item.step for item in reporter.told]
    assert told[:7] == [40, "compiling the decomposer's updates", 80, "compiling the agent's updates", 120, 160, 200]
    assert reporter.done.count("evaluating") == 2
    paces = {item.step: item for item in reporter.told if isinstance(item, Progress)}
    unknown = [step for step, item in paces.items() if math.isnan(item.speed)]
    assert unknown[:3] == [40, 80, 120] and unknown[-1] < 320, "a slow machine knows sooner"
    assert all(paces[step].seconds_left > 0 for step in (320, 360))
    assert paces[400].seconds_left == 0.0
    [plan, outlook] = reporter.notes
    assert plan.startswith("this will take about ")
    assert "to go at" in outlook


def test_where_every_episode_returns_the_same_a_run_says_so_once_however_often_it_is_resumed(tmp_path: Path) -> None:
    settings = {"env": "ToyConstant-v0", "evaluation": {"every": 80}, "checkpoint_every": 40, **QUICK}
    first, second = StoppingAt(160), Following()
    with pytest.raises(Stopped):
        run_training(config(**settings), tmp_path / "run", first)
    run = resume_training(tmp_path / "run", second)
    assert [warning[:66] for warning in first.warnings] == [
        "every episode so far returned the same number (10.0): there is not"
    ]
    assert second.warnings == []
    assert {item.only_return for item in second.told if isinstance(item, Progress)} == {10.0}
    assert all(map(math.isnan, run.progress["fit_r2"])) and all(map(math.isnan, run.progress["reward_correlation"]))


def test_a_fit_that_is_not_shown_is_explained_once(tmp_path: Path) -> None:
    reporter = Following()
    settings = {"env": "ToyNearlyConstant-v0", "evaluation": {"every": 80}, **QUICK}
    run = run_training(config(**settings), tmp_path / "run", reporter)
    assert all(map(math.isnan, run.progress["fit_r2"]))
    assert [note for note in reporter.notes if "hardly vary" in note] == [
        "no fit where held-out returns hardly vary (± at most 1 % of their root mean square): there is next to nothing "
        "to explain"
    ]
    assert reporter.warnings == []


def test_where_episodes_differ_nothing_of_the_kind_is_said(tmp_path: Path) -> None:
    reporter = Following()
    run_training(config(evaluation={"every": 80}, **QUICK), tmp_path / "run", reporter)
    assert reporter.warnings == []
    assert all(math.isnan(item.only_return) for item in reporter.told if isinstance(item, Progress))

"""What ends a run early: rules and callbacks, at a step that does not depend on when an evaluation has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import QUICK, StoppingAt, learnt_bytes, small

import diaster
from diaster.config import EvaluationConfig, build_config
from diaster.errors import Stopped
from diaster.rundir.records import read_metadata
from diaster.training.progress import Silent
from diaster.training.stopping import Evaluation, Stopping
from diaster.training.train import resume_training, run_training

EVERY = {"every": 60, "episodes": 2}


def rows(step: int, *returns: float) -> list[dict[str, float]]:
    return [{"step": step, "seed": seed, "return_mean": value} for seed, value in enumerate(returns)]


def ended_after(returns: Sequence[Sequence[float]], **settings: Any) -> int | None:
    """After which evaluation a run would end."""
    stopping = Stopping(EvaluationConfig(**settings))
    for number, of_seeds in enumerate(returns):
        stopping.add(rows(number, *of_seeds))
        if stopping.reason is not None:
            return number
    return None


def test_a_return_is_reached_by_the_mean_of_all_seeds() -> None:
    assert ended_after([(9.0, 0.0), (9.9, 10.0), (0.0, 20.0), (99.0, 99.0)], stop_at=10.0) == 2
    assert ended_after([(9.0, 0.0), (9.9, 10.0)], stop_at=10.0) is None
    assert ended_after([(-5.0,), (-2.0,), (-1.0,)], stop_at=-2.0) == 1


@pytest.mark.parametrize(
    ("returns", "after", "ended"),
    [
        ((1, 2, 2, 1, 5), 2, 3),  # an equal return is no larger one
        ((1, 2, 2, 3, 3, 3), 2, 5),
        ((3, 2, 1), 1, 1),
        ((1, 2, 3, 4), 1, None),
        ((3, 2, 1, 0), 0, None),
        ((3, 2, 1), 3, None),
    ],
)
def test_patience_counts_evaluations_since_the_best(returns: Sequence[float], after: int, ended: int | None) -> None:
    assert ended_after([(value, value) for value in returns], stop_after=after) == ended


def test_the_first_reason_is_the_one_that_is_given() -> None:
    stopping = Stopping(EvaluationConfig(stop_at=1.0))
    stopping.add(rows(10, 2.0))
    stopping.ask(lambda evaluation: True, Evaluation(Path(), 20, 100, tuple(rows(20, 3.0))))
    assert stopping.reason == "at step 10 the mean return 2.0 reached stop_at=1"


def train(out: Path, **settings: Any) -> diaster.Run:
    given = {"env": "Toy-v0", "evaluation": EVERY, **QUICK, **settings}
    callback = given.pop("callback", None)
    return run_training(build_config(**small(**given)), out, Silent(), callback=callback)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> diaster.Run:
    """Four evaluations, at 80, 120, 200 and 240 steps."""
    run = train(tmp_path_factory.mktemp("whole") / "run", seeds=2)
    assert run.progress["step"].tolist() == [80, 80, 120, 120, 200, 200, 240, 240]
    return run


def mean_returns(run: diaster.Run) -> list[float]:
    return run.progress["return_mean"].reshape(-1, len(run.seeds)).mean(axis=1).tolist()


def beginning(run: diaster.Run, evaluations: int) -> str:
    text = (run.path / "progress.csv").read_text()
    return "".join(text.splitlines(keepends=True)[: 1 + evaluations * len(run.seeds)])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_stops_has_the_rows_and_the_policies_of_the_evaluation_that_stopped_it(
    tmp_path: Path, whole: diaster.Run, workers: int
) -> None:
    returns = mean_returns(whole)
    reached = int(np.argmax(returns[:3])) if max(returns[:3]) > returns[0] else 0
    stop = {**EVERY, "stop_at": returns[reached]}
    run = train(tmp_path / "run", seeds=2, workers=workers, evaluation=stop)
    assert run.done
    assert (run.path / "progress.csv").read_text() == beginning(whole, reached + 1)
    assert read_metadata(run.path)["stopped"].endswith(f"reached stop_at={returns[reached]:g}")
    again = train(tmp_path / "again", seeds=2, workers=2 - workers, evaluation=stop)
    assert learnt_bytes(again) == learnt_bytes(run)
    assert (again.path / "nets.safetensors").read_bytes() == (run.path / "nets.safetensors").read_bytes()


def test_a_run_that_would_stop_at_its_last_evaluation_is_an_ordinary_one(tmp_path: Path, whole: diaster.Run) -> None:
    run = train(tmp_path / "run", seeds=2, evaluation={**EVERY, "stop_after": 99})
    assert learnt_bytes(run) == learnt_bytes(whole)
    assert "stopped" not in read_metadata(run.path)


def test_patience_survives_an_interruption(tmp_path: Path) -> None:
    patient = {"every": 40, "episodes": 2, "stop_after": 2}
    run = train(tmp_path / "run", evaluation=patient, checkpoint_every=40)
    assert "stop_after=2" in read_metadata(run.path)["stopped"]
    steps = run.progress["step"].tolist()
    assert steps[-1] < 240
    with pytest.raises(Stopped):
        config = build_config(**small(env="Toy-v0", evaluation=patient, checkpoint_every=40, **QUICK))
        run_training(config, tmp_path / "cut", StoppingAt(steps[-1]))
    resumed = resume_training(tmp_path / "cut", Silent())
    assert learnt_bytes(resumed) == learnt_bytes(run)
    assert read_metadata(resumed.path)["stopped"] == read_metadata(run.path)["stopped"]


def test_a_callback_sees_every_evaluation_once_and_in_order(tmp_path: Path, whole: diaster.Run) -> None:
    seen: list[Evaluation] = []
    run = train(tmp_path / "run", seeds=2, callback=seen.append)
    assert learnt_bytes(run) == learnt_bytes(whole)
    assert [evaluation.step for evaluation in seen] == [80, 120, 200, 240]
    assert [evaluation.return_mean for evaluation in seen] == mean_returns(whole)
    assert [[row["seed"] for row in evaluation.rows] for evaluation in seen] == [[0, 1]] * 4
    assert {(evaluation.run, evaluation.steps) for evaluation in seen} == {(run.path, 240)}
    assert "callback" in read_metadata(run.path)


def test_the_table_is_on_the_disk_when_a_callback_is_called(tmp_path: Path) -> None:
    found: list[int] = []

    def look(evaluation: Evaluation) -> None:
        found.append(len((evaluation.run / "progress.csv").read_text().splitlines()) - 1)

    train(tmp_path / "run", callback=look)
    assert found[-1] == 4 and all(n >= number for number, n in enumerate(found, 1))


def test_a_callback_ends_the_run_by_returning_true(tmp_path: Path, whole: diaster.Run) -> None:
    run = train(tmp_path / "run", seeds=2, callback=lambda evaluation: evaluation.step >= 120)
    assert run.done
    assert (run.path / "progress.csv").read_text() == beginning(whole, 2)
    assert read_metadata(run.path)["stopped"] == "at step 120 the callback asked for it"


def test_what_a_callback_raises_ends_the_run_which_can_be_resumed(tmp_path: Path, whole: diaster.Run) -> None:
    class MineError(Exception):
        pass

    def fail(evaluation: Evaluation) -> None:
        raise MineError

    with pytest.raises(MineError):
        train(tmp_path / "run", seeds=2, callback=fail)
    assert learnt_bytes(resume_training(tmp_path / "run", Silent())) == learnt_bytes(whole)

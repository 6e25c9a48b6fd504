"""One cell from wherever it is to its end, and what its process tells."""

from __future__ import annotations

import os
import signal
import sys
import types
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from small_runs import StoppingAt, learnt_bytes, small

from diaster.config import build_config
from diaster.errors import DiasterError, Stopped
from diaster.run import Run
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, DONE, METADATA, PROGRESS
from diaster.sweep.cell import At, CellOrder, Telling, clear_false_start, run_cell
from diaster.training.progress import Progress, Silent
from diaster.training.resolve import resolve
from diaster.training.train import run_training

SETTINGS = small(env="Toy-v0", method="uniform", checkpoint_every=40)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_training(build_config(**SETTINGS), tmp_path_factory.mktemp("cell") / "whole", Silent())


def order(path: Path, record_episodes: int = 0) -> CellOrder:
    return CellOrder(path, resolve(build_config(**SETTINGS))[0], record_episodes, (), ())


def quiet() -> Telling:
    return Telling(Pipe()[0])


def test_a_new_cell_is_trained_as_by_the_train_command(tmp_path: Path, whole: Run) -> None:
    ours, theirs = Pipe()
    run_cell(order(tmp_path / "cell"), Telling(theirs))
    assert learnt_bytes(Run(tmp_path / "cell")) == learnt_bytes(whole)
    assert ours.recv() == At(0, is_start=True)


def test_a_broken_cell_is_resumed_to_the_same_bytes(tmp_path: Path, whole: Run) -> None:
    with pytest.raises(Stopped):
        run_training(build_config(**SETTINGS), tmp_path / "cell", StoppingAt(160))
    ours, theirs = Pipe()
    run_cell(order(tmp_path / "cell"), Telling(theirs))
    assert learnt_bytes(Run(tmp_path / "cell")) == learnt_bytes(whole)
    assert ours.recv() == At(160, is_start=True)


def test_rollouts_are_recorded_of_a_finished_cell_and_it_is_not_trained_again(
    whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    module = types.ModuleType("diaster.media.recording")
    module.record_rollouts = lambda run, episodes: asked.append((run.path, episodes))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diaster.media.recording", module)
    before = (whole.path / DONE).stat().st_mtime_ns
    run_cell(order(whole.path, record_episodes=5), quiet())
    run_cell(order(whole.path), quiet())
    assert asked == [(whole.path, 5)]
    assert (whole.path / DONE).stat().st_mtime_ns == before


def left(folder: Path, names: list[str]) -> list[str]:
    """What is left of these files when a false start has been cleared."""
    for name in names:
        (folder / name).touch()
    clear_false_start(folder)
    return sorted(item.name for item in folder.iterdir())


def test_what_is_left_of_a_run_that_was_killed_at_its_very_start_is_cleared(tmp_path: Path) -> None:
    for names in ([LOCK, f".{CONFIG}.abc"], [LOCK, CONFIG, f".{METADATA}.abc"], [METADATA], []):
        assert left(tmp_path, names) == [], names


def test_anything_else_stays(tmp_path: Path) -> None:
    for number, names in enumerate(([CONFIG, METADATA], [CONFIG, PROGRESS], ["notes.txt"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert left(folder, names) == sorted(names)


def test_a_cell_that_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    with pytest.raises(DiasterError, match="is being trained by process"):
        clear_false_start(tmp_path)
    lock.release()


def test_a_cell_whose_launcher_is_gone_asks_itself_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    ours, theirs = Pipe()
    telling = Telling(theirs)
    ours.close()
    telling._seeds = 1
    telling.advance(Progress(40, 0.0, 0.0))
    assert sent == [(os.getpid(), signal.SIGTERM)]

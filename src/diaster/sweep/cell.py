"""One cell of a sweep, in a process of its own: trained, resumed or left as it is, then recorded.

A launcher starts it as `python -m diaster.sweep.cell`, sends a `CellOrder` and is told how far the cell is.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from diaster.config import RunConfig
from diaster.errors import DiasterError, Stopped, complain
from diaster.rundir.files import is_file
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, DONE, METADATA
from diaster.rundir.trust import SIGNATURE
from diaster.training.progress import Lines, Progress
from diaster.types import EnvSpec

SECONDS_BETWEEN_MESSAGES = 0.5


class CellOrder(NamedTuple):
    """What the process of a cell has to do."""

    path: Path
    config: RunConfig  # resolved
    record_episodes: int
    cores: tuple[int, ...]  # that it may use; empty: all
    command: tuple[str, ...]  # for the record


class At(NamedTuple):
    """How far a cell is."""

    step: int
    is_start: bool = False
    seconds_left: float | None = None  # once it has learnt for a while


class Ended(NamedTuple):
    """How a cell ended: with a sentence if it failed, by a signal if it was stopped, else well."""

    failure: str = ""
    is_stopped: bool = False


class Telling(Lines):
    """Tells the launcher how far the run is; evaluations and warnings go to the cell's log.

    If the launcher has died, the run is asked to stop: it writes a checkpoint for the next sweep.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(sys.stderr)
        self._connection, self._told = connection, 0.0

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        super().start(config, spec, step)
        self._tell(At(step, is_start=True))

    def advance(self, progress: Progress) -> None:
        super().advance(progress)
        if time.monotonic() - self._told > SECONDS_BETWEEN_MESSAGES:
            left = progress.seconds_left
            self._tell(At(progress.step, seconds_left=None if math.isnan(left) else left))

    def _tell(self, message: At) -> None:
        self._told = time.monotonic()
        try:
            self._connection.send(message)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)


def run_cell(order: CellOrder, reporter: Lines) -> None:
    """Finish a cell, wherever it stands."""
    from diaster.training.train import resume_training, run_training

    clear_false_start(order.path)
    if not is_file(order.path / CONFIG):
        run_training(order.config, order.path, reporter)
    elif not is_file(order.path / DONE):
        resume_training(order.path, reporter, trust=True)  # its settings are those of the sweep's file
    if order.record_episodes:
        from diaster.media.recording import record_rollouts
        from diaster.run import load

        record_rollouts(load(order.path, trust=True), order.record_episodes)


def clear_false_start(path: Path) -> None:
    """Remove what a run left that was killed before its first files were complete."""
    if not path.is_dir() or all(is_file(path / name) for name in (CONFIG, METADATA)):
        return
    found = {item.name for item in path.iterdir()}
    if any(name not in (CONFIG, METADATA, SIGNATURE, LOCK) and not name.startswith(".") for name in found):
        return
    lock = RunLock(path)
    lock.take()  # refused if its process is still alive
    try:
        for name in found - {LOCK}:
            (path / name).unlink(missing_ok=True)
    finally:
        lock.release()


def serve(connection: Connection) -> None:
    """The life of a cell's process; its exit code is that of `diaster train`."""
    order: CellOrder = connection.recv()
    if order.cores and hasattr(os, "sched_setaffinity"):  # macOS has none
        # Before JAX counts the cores: it starts a thread for each, whatever else is running.
        os.sched_setaffinity(0, order.cores)
    sys.argv = list(order.command)
    ended, code = Ended(), 0
    try:
        run_cell(order, Telling(connection))
    except DiasterError as error:
        complain(f"diaster: {error}")
        ended, code = Ended(str(error)), 2
    except Stopped as stop:
        complain(f"diaster: {stop}")
        ended, code = Ended(is_stopped=True), 128 + stop.signal
    with contextlib.suppress(OSError):  # the launcher may be gone
        connection.send(ended)
    sys.exit(code)


if __name__ == "__main__":
    from diaster.sweep import cell  # messages are pickled by the names of its classes, not those of `__main__`

    cell.serve(Connection(int(sys.argv[1])))

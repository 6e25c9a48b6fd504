"""One cell of a sweep, in a process of its own: trained, resumed or left as it is, then its rollouts are recorded.

Started as `python -m diaster.sweep.cell` by a launcher, which sends a `Job` and is told how far the cell is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from diaster.config import RunConfig
from diaster.errors import DiasterError, Stopped
from diaster.rundir.files import is_file
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, DONE, METADATA
from diaster.training.progress import Lines, Progress
from diaster.types import EnvSpec

SECONDS_BETWEEN_MESSAGES = 0.5


class Job(NamedTuple):
    """All that the process of a cell has to know."""

    path: Path
    config: RunConfig  # resolved
    record_episodes: int
    cores: tuple[int, ...]  # that it may use; none: whichever it likes
    command: tuple[str, ...]  # for the record


class At(NamedTuple):
    """How far a cell is."""

    step: int
    is_start: bool = False


class Ended(NamedTuple):
    """How a cell ended: with a sentence if it failed, by a signal if it was stopped, else well."""

    failure: str = ""
    is_stopped: bool = False


class Telling(Lines):
    """Tells the launcher how far the run is; evaluations and warnings go to the cell's log.

    Where there is nobody to tell any more, the run is asked to stop: it writes a checkpoint for the next sweep.
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
            self._tell(At(progress.step))

    def _tell(self, message: At) -> None:
        self._told = time.monotonic()
        try:
            self._connection.send(message)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)


def run_cell(job: Job, reporter: Lines) -> None:
    """Bring a cell to its end from wherever it is."""
    from diaster.training.train import resume_training, run_training

    clear_false_start(job.path)
    if not is_file(job.path / CONFIG):
        run_training(job.config, job.path, reporter)
    elif not is_file(job.path / DONE):
        resume_training(job.path, reporter)
    if job.record_episodes:
        from diaster.media.recording import record_rollouts

        record_rollouts(job.path, job.record_episodes)


def clear_false_start(path: Path) -> None:
    """A run that was killed at its very start leaves some of what it writes first, and nothing of value."""
    if not path.is_dir() or all(is_file(path / name) for name in (CONFIG, METADATA)):
        return
    found = {item.name for item in path.iterdir()}
    if any(name not in (CONFIG, METADATA, LOCK) and not name.startswith(".") for name in found):
        return
    lock = RunLock(path)
    lock.take()  # refused where the process is alive after all
    try:
        for name in found - {LOCK}:
            (path / name).unlink(missing_ok=True)
    finally:
        lock.release()


def serve(connection: Connection) -> None:
    """The life of a cell's process; its exit code is that of `diaster train`."""
    job: Job = connection.recv()
    if job.cores and hasattr(os, "sched_setaffinity"):
        # Before JAX counts the cores: as many threads as the cell has cores, whatever runs beside it.
        os.sched_setaffinity(0, job.cores)
    sys.argv = list(job.command)
    ended, code = Ended(), 0
    try:
        run_cell(job, Telling(connection))
    except DiasterError as error:
        print(f"diaster: {error}", file=sys.stderr)
        ended, code = Ended(str(error)), 2
    except Stopped as stop:
        print(f"diaster: {stop}", file=sys.stderr)
        ended, code = Ended(is_stopped=True), 128 + stop.signal
    with contextlib.suppress(OSError):  # the launcher may be gone
        connection.send(ended)
    sys.exit(code)


if __name__ == "__main__":
    from diaster.sweep import cell  # messages are of its kinds, and not of those of `__main__`

    cell.serve(Connection(int(sys.argv[1])))

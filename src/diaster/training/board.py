"""TensorBoard's event files, where the package for them is installed: a run of its own for each seed."""

from __future__ import annotations

import io
import os
import platform
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from diaster.errors import DiasterError
from diaster.rundir.files import refuse_link
from diaster.rundir.results import ResultRow
from diaster.types import Episode

BOARD = "tensorboard"
SECONDS_BETWEEN_WRITES = 10.0  # of training's numbers; those of an evaluation are written at once


class Board:
    """The event files of a run, `tensorboard/seed-N` for seed N. TensorBoard shows the seeds' curves in one panel."""

    def __init__(self, out: Path, seeds: Sequence[int]) -> None:
        self._files = {seed: EventFile(out / BOARD, f"seed-{seed}") for seed in seeds}
        self._written: float | None = None  # a run that fails before its first evaluation leaves nothing behind

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        """The columns of progress.csv under their names."""
        for row in rows:
            numbers = {name: value for name, value in row.items() if name not in ("step", "seed") and value == value}
            self._files[int(row["seed"])].add(int(row["step"]), numbers)
        self._write()

    def trained(self, step: int, episodes: Sequence[Sequence[Episode]]) -> None:
        """Return and length of the training episodes that have ended, as means."""
        for file, of_seed in zip(self._files.values(), episodes, strict=True):
            if of_seed:
                returns, lengths = zip(*((episode.episode_return, episode.length) for episode in of_seed), strict=True)
                file.add(step, {"episode_return": float(np.mean(returns)), "episode_length": float(np.mean(lengths))})
        if self._written is not None and time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self._write()

    def close(self) -> None:
        """Write what waits."""
        if self._written is not None:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        try:
            for file in self._files.values():
                file.write()
        except DiasterError as error:
            raise DiasterError(f"TensorBoard's files have to wait for the next numbers: {error}") from None


class EventFile:
    """One event file, created when the first numbers are written.

    The package frames the records, in memory; its own `SummaryWriter` is not used. That one writes in a thread, and
    where the thread fails, on a full disk, training would wait for it for ever.
    """

    def __init__(self, board: Path, run: str) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import RecordWriter, register_writer_factory
        except ImportError:
            raise DiasterError(
                "--tensorboard needs a package that is not installed; pip install 'diaster[tensorboard]'."
            ) from None
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._folders = board, board / run
        unique = f"{int(time.time()):010}.{secrets.token_hex(8)}.{platform.node()}"
        self.path = board / run / f"events.out.tfevents.{unique}"
        self._size = 0
        self._waiting = io.BytesIO()
        # A writer with a path of its own starts the file anew, and cannot remove half a record.
        register_writer_factory("diaster-memory", SimpleNamespace(open=lambda _: self._waiting))
        self._records = RecordWriter("diaster-memory:")
        self._frame(file_version="brain.Event:2")
        self._is_empty = True

    def add(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers to be written, each under its name."""
        self._is_empty = self._is_empty and not numbers
        for name, value in numbers.items():
            entry = self._summary.Value(tag=name, simple_value=value)
            self._frame(step=step, summary=self._summary(value=[entry]))

    def write(self) -> None:
        """Append the numbers; those that cannot be written now wait for the next call."""
        if self._is_empty or not self._waiting.tell():
            return
        for folder in self._folders:
            refuse_link(folder)
        try:
            for folder in self._folders:
                folder.mkdir(exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            with os.fdopen(handle, "ab") as file:
                file.truncate(self._size)  # a write that failed may have left half a record
                file.write(self._waiting.getvalue())
        except OSError as error:
            raise DiasterError(f"'{self.path}' cannot be written: {error.strerror}.") from None
        self._size += self._waiting.tell()
        self._waiting.seek(0)
        self._waiting.truncate()

    def _frame(self, **content: Any) -> None:
        """Add an event to those that wait."""
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())

"""TensorBoard's event files, where the package for them is installed."""

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

from diaster.errors import DiasterError
from diaster.rundir.files import refuse_link
from diaster.rundir.results import ResultRow

BOARD = "tensorboard"


class Board:
    """TensorBoard's event file in the run directory, created when the first numbers arrive.

    The package frames the records, in memory; its own `SummaryWriter` is not used. That one writes in a thread, and
    where the thread fails, on a full disk, training would wait for it for ever.
    """

    def __init__(self, out: Path) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import RecordWriter, register_writer_factory
        except ImportError:
            raise DiasterError(
                "--tensorboard needs a package that is not installed; pip install 'diaster[tensorboard]'."
            ) from None
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._path = (
            out / BOARD / f"events.out.tfevents.{int(time.time()):010}.{secrets.token_hex(8)}.{platform.node()}"
        )
        self._size = 0
        self._waiting = io.BytesIO()
        # A writer with a path of its own starts the file anew, and cannot remove half a record.
        register_writer_factory("diaster-memory", SimpleNamespace(open=lambda _: self._waiting))
        self._records = RecordWriter("diaster-memory:")
        self._write(file_version="brain.Event:2")

    def add(self, rows: Sequence[ResultRow]) -> None:
        """Append the numbers; those that cannot be written now wait for the next call."""
        for row in rows:
            for name, value in row.items():
                if name not in ("step", "seed") and value == value:
                    entry = self._summary.Value(tag=f"{name}/seed{row['seed']}", simple_value=value)
                    self._write(step=row["step"], summary=self._summary(value=[entry]))
        refuse_link(self._path.parent)
        try:
            self._path.parent.mkdir(exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
            with os.fdopen(handle, "ab") as file:
                file.truncate(self._size)  # a write that failed may have left half a record
                file.write(self._waiting.getvalue())
        except OSError as error:
            raise DiasterError(f"'{self._path}' cannot be written: {error.strerror}.") from None
        self._size += self._waiting.tell()
        self._waiting.seek(0)
        self._waiting.truncate()

    def _write(self, **content: Any) -> None:
        """Add an event to those that wait."""
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())

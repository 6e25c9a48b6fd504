"""TensorBoard's event files, where the package for them is installed."""

from __future__ import annotations

import platform
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diaster.errors import DiasterError
from diaster.rundir.results import ResultRow as Row

BOARD = "tensorboard"


class Board:
    """TensorBoard's event files in the run directory, made when the first numbers arrive.

    Not by `SummaryWriter`: where its thread fails, on a disk that is full, training would wait for it for ever.
    """

    def __init__(self, out: Path) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import masked_crc32c
        except ImportError:
            raise DiasterError(
                "--tensorboard needs a package that is not installed; pip install 'diaster[tensorboard]'."
            ) from None
        self._event, self._summary, self._checksum = event_pb2.Event, summary_pb2.Summary, masked_crc32c
        self._path = out / BOARD / f"events.out.tfevents.{int(time.time()):010}.{platform.node()}"
        self._size = 0
        self._waiting = self._record(file_version="brain.Event:2")

    def add(self, rows: Sequence[Row]) -> None:
        """Append the numbers; those that cannot be written now wait for the next ones."""
        for row in rows:
            for name, value in row.items():
                if name not in ("step", "seed") and value == value:
                    entry = self._summary.Value(tag=f"{name}/seed{row['seed']}", simple_value=value)
                    self._waiting += self._record(step=row["step"], summary=self._summary(value=[entry]))
        try:
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("ab") as file:
                file.truncate(self._size)  # of a write that failed, half may be there
                file.write(self._waiting)
        except OSError as error:
            raise DiasterError(f"'{self._path}' cannot be written: {error.strerror}.") from None
        self._size, self._waiting = self._size + len(self._waiting), b""

    def _record(self, **content: Any) -> bytes:
        """An event as it stands in the file: its length and itself, each with a checksum."""
        data: bytes = self._event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        return b"".join(
            [length, struct.pack("<I", self._checksum(length)), data, struct.pack("<I", self._checksum(data))]
        )

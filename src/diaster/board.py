"""TensorBoard's event files, where the package for them is installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diaster.errors import DiasterError
from diaster.records import Row

BOARD = "tensorboard"


class Board:
    """TensorBoard's event files in the run directory, made when the first numbers arrive."""

    def __init__(self, out: Path) -> None:
        try:
            import tensorboardX
        except ImportError:
            raise DiasterError(
                "--tensorboard needs a package that is not installed; pip install 'diaster[tensorboard]'."
            ) from None
        self._make = partial(tensorboardX.SummaryWriter, str(out / BOARD))
        self._writer: Any = None

    def add(self, rows: Sequence[Row]) -> None:
        self._writer = self._writer or self._make()
        for row in rows:
            for name, value in row.items():
                if name not in ("step", "seed") and value == value:
                    self._writer.add_scalar(f"{name}/seed{row['seed']}", value, row["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

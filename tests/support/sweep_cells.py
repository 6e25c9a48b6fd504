"""Cells of a sweep, as its status knows them."""

from __future__ import annotations

from diaster.config import build_config
from diaster.sweep.status import CellStatus
from diaster.training.estimate import Need


def cell(steps: int = 1000, seconds: float = 100.0, method: str = "diaster") -> CellStatus:
    return CellStatus(build_config(env="x", steps=steps, method=method), Need(seconds, 10**9))

"""Which cells are done, running, waiting or failed, and how long is left; written to sweep.json at every change."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.rundir.files import read_json, write_atomically
from diaster.sweep.cell import At, Ended
from diaster.sweep.estimate import Finished, Need, correction

STATUS = "sweep.json"
MOST_BYTES = 16 << 20
WAITING, BROKEN, RUNNING, DONE, FAILED, STOPPED = "waiting", "broken", "running", "done", "failed", "stopped"
STATES = (DONE, RUNNING, FAILED, STOPPED, BROKEN, WAITING)
TO_COME = (RUNNING, BROKEN, WAITING)
SECONDS_TO_KNOW_ITS_SPEED = 20.0


@dataclass
class CellStatus:
    """Where one cell stands."""

    config: RunConfig
    need: Need
    state: str = WAITING
    step: int = 0
    seconds: float | None = None  # that it took, resumed parts included; known when it is done
    failure: str = ""
    recorded: int = 0  # rollouts that were asked for and are there
    starts: int = 0  # in this sweep; on a cluster a cell may be started again
    from_step: int | None = None  # where the last start began
    _first: tuple[float, int] | None = field(default=None, repr=False)  # when it first told its step, and which

    def note(self, at: At) -> None:
        """The cell tells how far it is."""
        self.step = at.step
        if at.is_start:
            self.from_step = at.step
        if at.is_start or self._first is None:
            self._first = time.monotonic(), at.step

    def seconds_left(self, factor: float) -> float:
        """From its own speed if that is known, else what it is expected to take."""
        expected = self.need.seconds * factor * (1.0 - self.step / self.config.steps)
        if self.state != RUNNING or self._first is None:
            return expected
        elapsed, steps = time.monotonic() - self._first[0], self.step - self._first[1]
        if elapsed < SECONDS_TO_KNOW_ITS_SPEED or steps <= 0:
            return max(0.0, expected - elapsed)
        return (self.config.steps - self.step) * elapsed / steps


class Status:
    """All cells of a sweep. Every change is written to the results directory."""

    def __init__(self, path: Path, cells: Mapping[str, CellStatus], width: int) -> None:
        self.cells = dict(cells)
        self.path, self.width = path, width

    def started(self, name: str) -> None:
        cell = self.cells[name]
        cell.state, cell.failure = RUNNING, ""
        cell.starts += 1
        self.write()

    def told(self, name: str, at: At) -> None:
        self.cells[name].note(at)

    def ended(self, name: str, ended: Ended, seconds: float | None, recorded: int = 0) -> None:
        """A cell has ended: done, failed or stopped."""
        cell = self.cells[name]
        cell.failure, cell.seconds = ended.failure, seconds
        cell.state = FAILED if ended.failure else STOPPED if ended.is_stopped else DONE
        if cell.state == DONE:
            cell.step, cell.recorded = cell.config.steps, recorded
        self.write()

    def waits(self, name: str, why: str) -> None:
        """A cell was lost and will be started again."""
        cell = self.cells[name]
        cell.state, cell.failure = WAITING, why
        self.write()

    def count(self, state: str) -> int:
        return sum(cell.state == state for cell in self.cells.values())

    @property
    def finished(self) -> list[Finished]:
        """What is known of how long cells take."""
        return [
            Finished(cell.config.method.name, cell.need.seconds, cell.seconds)
            for cell in self.cells.values()
            if cell.state == DONE and cell.seconds
        ]

    def seconds_left_of(self, cell: CellStatus) -> float:
        """For one cell, corrected by those that are done."""
        return cell.seconds_left(correction(cell.config.method.name, self.finished)[0])

    def seconds_left(self) -> float:
        """For all cells that are running or waiting, `width` of them at a time."""
        left = [self.seconds_left_of(cell) for cell in self.cells.values() if cell.state in TO_COME]
        return max(sum(left) / max(1, self.width), max(left)) if left else 0.0

    def write(self) -> None:
        rows = {
            name: {
                "state": cell.state,
                "step": cell.step,
                "steps": cell.config.steps,
                "seconds": cell.seconds,
                "failure": cell.failure,
                "recorded": cell.recorded,
                "starts": cell.starts,
                "from_step": cell.from_step,
            }
            for name, cell in self.cells.items()
        }
        with contextlib.suppress(DiasterError):  # a full disk must not end cells that could still be saved
            write_atomically(self.path / STATUS, (json.dumps({"cells": rows}, indent=2) + "\n").encode())


def read_recorded(path: Path) -> dict[str, int]:
    """For every cell, how many rollouts an earlier sweep recorded. If in doubt, none: recording again does no harm."""
    try:
        rows: Any = read_json(path / STATUS, MOST_BYTES).get("cells", {})
        return {name: int(row["recorded"]) for name, row in rows.items()}
    except (DiasterError, AttributeError, KeyError, TypeError, ValueError):
        return {}

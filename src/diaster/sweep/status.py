"""Which cells are done, running, waiting or failed, and how long is left; written to sweep.json at every change."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.rundir.files import read_json, write_atomically
from diaster.sweep.cell import At, Ended
from diaster.training.estimate import Need

STATUS = "sweep.json"
MOST_BYTES = 16 << 20
WAITING, BROKEN, RUNNING, DONE, FAILED, STOPPED = "waiting", "broken", "running", "done", "failed", "stopped"
STATES = (DONE, RUNNING, FAILED, STOPPED, BROKEN, WAITING)
TO_COME = (RUNNING, BROKEN, WAITING)


class Finished(NamedTuple):
    """A cell that is done: what it was expected to take, and what it took."""

    method: str
    expected: float
    taken: float


def correction(method: str, finished: Iterable[Finished]) -> tuple[float, int]:
    """What to multiply expectations by, and how many finished cells say so: those of the method, else all."""
    found = [cell for cell in finished if cell.expected > 0 and cell.taken > 0]
    same = [cell for cell in found if cell.method == method] or found
    return (median(cell.taken / cell.expected for cell in same), len(same)) if same else (1.0, 0)


@dataclass
class CellStatus:
    """Where one cell stands."""

    config: RunConfig
    need: Need
    state: str = WAITING
    step: int = 0
    seconds: float | None = None  # that it took, resumed parts included; known when it is done
    is_from_here: bool = True  # whether those seconds tell what cells take here; another machine may have trained it
    failure: str = ""
    recorded: int = 0  # rollouts that were asked for and are there
    starts: int = 0  # in this sweep; on a cluster a cell may be started again
    from_step: int | None = None  # where the last start began
    _begun: float | None = field(default=None, repr=False)  # when it told where it begins
    _outlook: tuple[float, float] | None = field(default=None, repr=False)  # when it told how long it takes, and that

    def note(self, at: At) -> None:
        """The cell tells how far it is."""
        now, self.step = time.monotonic(), at.step
        if at.is_start:
            self.from_step, self._begun, self._outlook = at.step, now, None
        if at.seconds_left is not None:
            self._outlook = now, at.seconds_left

    def seconds_left(self, factor: float) -> float:
        """As it says itself, once it learns; else what it is expected to take."""
        if self.state != RUNNING or self._begun is None:
            return self.need.seconds * factor * (1.0 - self.step / self.config.steps)
        if self._outlook is not None:
            told, seconds = self._outlook
            return max(0.0, seconds - (time.monotonic() - told))
        share = 1.0 - (self.from_step or 0) / self.config.steps
        return max(0.0, self.need.seconds * factor * share - (time.monotonic() - self._begun))


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
        cell.failure, cell.seconds, cell.is_from_here = ended.failure, seconds, True
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
        """What is known of how long cells take here."""
        return [
            Finished(cell.config.method.name, cell.need.seconds, cell.seconds)
            for cell in self.cells.values()
            if cell.state == DONE and cell.seconds and cell.is_from_here
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

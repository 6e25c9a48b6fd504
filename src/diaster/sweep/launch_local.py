"""Cells as processes of this machine, as many at a time as there are slots and memory for."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, Protocol

from diaster.envs.processes import start_child
from diaster.errors import DiasterError
from diaster.signals import Interruption
from diaster.sweep.cell import At, CellOrder, Ended
from diaster.sweep.resources import MOST_MEMORY, Slot, host_bytes

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_DIE = 5.0
CELL_MODULE = "diaster.sweep.cell"


class CellToRun(NamedTuple):
    """A cell that is not finished."""

    name: str
    order: CellOrder
    memory: int  # bytes
    uses_gpu: bool


class Watcher(Protocol):
    """A launcher tells it what happens to cells."""

    def started(self, name: str) -> None: ...

    def told(self, name: str, at: At) -> None: ...

    def ended(self, name: str, ended: Ended) -> None: ...

    def waits(self, name: str, why: str) -> None:
        """The cell was lost, and will be started again."""

    def look(self) -> None:
        """Called about twice a second."""


class CellProcess(NamedTuple):
    """A cell that is running."""

    cell: CellToRun
    slot: Slot
    process: subprocess.Popen[bytes]
    connection: Connection


Start = Callable[[CellToRun, Slot, Path], tuple[subprocess.Popen[bytes], Connection]]


def start_cell(cell: CellToRun, slot: Slot, log: Path) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process of a cell; its output is added to its log."""
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process, connection = start_child(CELL_MODULE, slot.variables(cell.uses_gpu), output.fileno())
    except OSError as error:
        raise DiasterError(f"the process of cell '{cell.name}' cannot be started: {error.strerror}.") from None
    connection.send(cell.order._replace(cores=slot.cores))
    return process, connection


class LocalLauncher:
    """Starts cells in the order given; one that needs more memory than is free waits for smaller ones behind it."""

    def __init__(self, slots: Sequence[Slot], memory: int | None, logs: Path, start: Start = start_cell) -> None:
        self._free, self._logs, self._start = list(slots), logs, start
        self._memory = None if memory is None else memory * MOST_MEMORY
        self._running: list[CellProcess] = []

    def run(self, cells: Sequence[CellToRun], watcher: Watcher, interruption: Interruption) -> None:
        """Until every cell has ended; after a signal, until those that run have written their checkpoints."""
        waiting, is_stopping = list(cells), False
        try:
            while self._running or (waiting and not is_stopping):
                if interruption.signal is not None and not is_stopping:
                    is_stopping = True
                    for running in self._running:
                        running.process.terminate()
                while not is_stopping and self._free and (cell := self._next(waiting)) is not None:
                    waiting.remove(cell)
                    self._begin(cell, watcher)
                for ready in wait([running.connection for running in self._running], SECONDS_BETWEEN_LOOKS):
                    running = next(running for running in self._running if running.connection is ready)
                    self._hear(running, watcher, is_stopping)
                watcher.look()
        finally:
            for running in self._running:  # a second signal: they will be resumed from their last checkpoints
                running.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.process.wait(SECONDS_TO_DIE)
                running.process.kill()

    def _next(self, waiting: Sequence[CellToRun]) -> CellToRun | None:
        """The first cell that fits into memory together with those that run; one that never fits is tried alone."""
        if self._memory is None or not self._running:
            return next(iter(waiting), None)
        taken = sum(host_bytes(running.cell.memory, running.cell.uses_gpu) for running in self._running)
        left = self._memory - taken
        return next((cell for cell in waiting if host_bytes(cell.memory, cell.uses_gpu) <= left), None)

    def _begin(self, cell: CellToRun, watcher: Watcher) -> None:
        slot = self._free.pop(0)
        watcher.started(cell.name)
        try:
            started = self._start(cell, slot, self._logs / f"{cell.name}.txt")
            self._running.append(CellProcess(cell, slot, *started))
        except DiasterError as error:
            self._free.append(slot)
            watcher.ended(cell.name, Ended(str(error)))

    def _hear(self, running: CellProcess, watcher: Watcher, is_stopping: bool) -> None:
        """Take one message of a cell. A line that closes without a last message means that its process died."""
        message: At | Ended | None
        try:
            message = running.connection.recv()
        except (EOFError, OSError):
            message = None
        if isinstance(message, At):
            watcher.told(running.cell.name, message)
            return
        running.connection.close()
        code = running.process.wait()
        self._running.remove(running)
        self._free.append(running.slot)
        name = running.cell.name
        watcher.ended(name, message or ended_without_a_word(code, is_stopping, self._logs / name))


def ended_without_a_word(code: int, is_stopping: bool, log: Path) -> Ended:
    """How a cell ended whose process sent no last message."""
    if is_stopping and code < 0:
        return Ended(is_stopped=True)
    how = f"was killed by signal {-code}" if code < 0 else f"ended unexpectedly with exit code {code}"
    return Ended(f"its process {how}; what it said is in '{log}.txt'.")

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
from diaster.sweep.cell import At, Ended, Job
from diaster.sweep.resources import MOST_MEMORY, Slot, host_bytes

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_DIE = 5.0
CELL_MODULE = "diaster.sweep.cell"


class Task(NamedTuple):
    """A cell that has to be brought to its end."""

    name: str
    job: Job
    memory: int  # bytes
    uses_gpu: bool


class Watcher(Protocol):
    """Told by a launcher what becomes of cells."""

    def started(self, name: str) -> None: ...

    def told(self, name: str, at: At) -> None: ...

    def ended(self, name: str, ended: Ended) -> None: ...

    def waits(self, name: str, why: str) -> None:
        """It was lost, and will be started again."""

    def look(self) -> None:
        """Called about twice a second."""


class Child(NamedTuple):
    """A cell that is running."""

    task: Task
    slot: Slot
    process: subprocess.Popen[bytes]
    connection: Connection


Start = Callable[[Task, Slot, Path], tuple[subprocess.Popen[bytes], Connection]]


def start_cell(task: Task, slot: Slot, log: Path) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process of a cell; what it says is added to its log."""
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process, connection = start_child(CELL_MODULE, slot.variables(task.uses_gpu), output.fileno())
    except OSError as error:
        raise DiasterError(f"the process of cell '{task.name}' cannot be started: {error.strerror}.") from None
    connection.send(task.job._replace(cores=slot.cores))
    return process, connection


class LocalLauncher:
    """Starts cells in the order given; one that needs more memory than is left lets smaller ones go first."""

    def __init__(self, slots: Sequence[Slot], memory: int | None, logs: Path, start: Start = start_cell) -> None:
        self._free, self._logs, self._start = list(slots), logs, start
        self._memory = None if memory is None else memory * MOST_MEMORY
        self._children: list[Child] = []

    def run(self, tasks: Sequence[Task], watcher: Watcher, interruption: Interruption) -> None:
        """Until every cell has ended; after a signal, until those that run have written their checkpoints."""
        waiting, is_stopping = list(tasks), False
        try:
            while self._children or (waiting and not is_stopping):
                if interruption.signal is not None and not is_stopping:
                    is_stopping = True
                    for child in self._children:
                        child.process.terminate()
                while not is_stopping and self._free and (task := self._next(waiting)) is not None:
                    waiting.remove(task)
                    self._begin(task, watcher)
                for ready in wait([child.connection for child in self._children], SECONDS_BETWEEN_LOOKS):
                    child = next(child for child in self._children if child.connection is ready)
                    self._hear(child, watcher, is_stopping)
                watcher.look()
        finally:
            for child in self._children:  # a second signal: they go back to their last checkpoints
                child.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(SECONDS_TO_DIE)
                child.process.kill()

    def _next(self, waiting: Sequence[Task]) -> Task | None:
        """The first cell that fits beside those that run; one that fits nowhere may try it alone."""
        if self._memory is None or not self._children:
            return next(iter(waiting), None)
        taken = sum(host_bytes(child.task.memory, child.task.uses_gpu) for child in self._children)
        left = self._memory - taken
        return next((task for task in waiting if host_bytes(task.memory, task.uses_gpu) <= left), None)

    def _begin(self, task: Task, watcher: Watcher) -> None:
        slot = self._free.pop(0)
        watcher.started(task.name)
        try:
            self._children.append(Child(task, slot, *self._start(task, slot, self._logs / f"{task.name}.txt")))
        except DiasterError as error:
            self._free.append(slot)
            watcher.ended(task.name, Ended(str(error)))

    def _hear(self, child: Child, watcher: Watcher, is_stopping: bool) -> None:
        """Take one message of a cell. Without a last word it died: of a signal of ours, or of something worse."""
        message: At | Ended | None
        try:
            message = child.connection.recv()
        except (EOFError, OSError):
            message = None
        if isinstance(message, At):
            watcher.told(child.task.name, message)
            return
        child.connection.close()
        code = child.process.wait()
        self._children.remove(child)
        self._free.append(child.slot)
        watcher.ended(child.task.name, message or ended_without_a_word(code, is_stopping, self._logs / child.task.name))


def ended_without_a_word(code: int, is_stopping: bool, log: Path) -> Ended:
    """How a cell ended whose process said nothing."""
    if is_stopping and code < 0:
        return Ended(is_stopped=True)
    how = f"was killed by signal {-code}" if code < 0 else f"ended unexpectedly with exit code {code}"
    return Ended(f"its process {how}; what it said is in '{log}.txt'.")

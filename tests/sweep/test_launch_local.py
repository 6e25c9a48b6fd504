"""Which cells run when, with processes that only pretend."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.signals import Interruption
from diaster.sweep.cell import At, CellOrder, Ended
from diaster.sweep.launch_local import CellToRun, LocalLauncher
from diaster.sweep.resources import Slot

GB = 10**9
CONFIG = build_config(env="x")


class Pretender:
    """A process that says what it was told to say, or waits to be stopped."""

    def __init__(self, words: list[Any], code: int = 0) -> None:
        self.ours, self.theirs = Pipe()
        self.code, self.terminated, self.killed = code, 0, False
        for word in words:
            self.theirs.send(word)
        if words or code:
            self.theirs.close()

    def terminate(self) -> None:
        self.terminated += 1
        if not self.theirs.closed:
            self.theirs.send(Ended(is_stopped=True))
            self.theirs.close()

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        return self.code


class Watching:
    """Notes everything; `at_look` is called after every look."""

    def __init__(self, at_look: Callable[[], None] = lambda: None) -> None:
        self.events: list[Any] = []
        self.running: set[str] = set()
        self.most_at_a_time = 0
        self.look = at_look

    def started(self, name: str) -> None:
        self.running.add(name)
        self.most_at_a_time = max(self.most_at_a_time, len(self.running))
        self.events.append(f"{name} started")

    def told(self, name: str, at: At) -> None:
        self.events.append(f"{name} at {at.step}")

    def ended(self, name: str, ended: Ended) -> None:
        self.running.discard(name)
        self.events.append((name, ended))

    def waits(self, name: str, why: str) -> None:
        raise AssertionError("only a cluster loses cells")


def cell(name: str, memory: int = GB) -> CellToRun:
    return CellToRun(name, CellOrder(Path(name), CONFIG, 0, (), ()), memory, uses_gpu=False)


def launch(
    cells: list[CellToRun],
    processes: dict[str, Pretender],
    n_slots: int = 2,
    memory: int | None = None,
    watching: Watching | None = None,
    interruption: Interruption | None = None,
) -> Watching:
    watching = watching or Watching()

    def start(cell: CellToRun, slot: Slot, log: Path) -> tuple[Any, Connection]:
        process = processes[cell.name]
        return process, process.ours

    slots = [Slot((number,)) for number in range(n_slots)]
    launcher = LocalLauncher(slots, memory, Path("logs"), start)
    launcher.run(cells, watching, interruption or Interruption())
    return watching


def test_cells_start_in_order_and_no_more_of_them_at_a_time_than_there_are_slots() -> None:
    names = ["a", "b", "c", "d", "e"]
    done = {name: Pretender([At(1), Ended()]) for name in names}
    watching = launch([cell(name) for name in names], done)
    assert [event for event in watching.events if "started" in event] == [f"{name} started" for name in names]
    assert watching.most_at_a_time == 2
    assert [event for event in watching.events if event[1:] == (Ended(),)] != []
    assert {event[0] for event in watching.events if isinstance(event, tuple)} == set(names)


def test_a_cell_that_fails_or_dies_stops_no_other() -> None:
    processes = {
        "fails": Pretender([Ended("a sentence")], code=2),
        "crashes": Pretender([], code=1),
        "killed": Pretender([], code=-9),
        "good": Pretender([Ended()]),
    }
    watching = launch([cell(name) for name in processes], processes)
    found = dict(event for event in watching.events if isinstance(event, tuple))
    assert found["fails"] == Ended("a sentence")
    assert found["good"] == Ended()
    assert found["crashes"].failure.startswith("its process ended unexpectedly with exit code 1; what it said is in")
    assert found["killed"].failure.startswith("its process was killed by signal 9")


def test_a_cell_that_cannot_be_started_has_failed() -> None:
    def start(cell: CellToRun, slot: Slot, log: Path) -> tuple[Any, Connection]:
        raise DiasterError("no room")

    watching = Watching()
    LocalLauncher([Slot((0,))], None, Path("logs"), start).run([cell("a"), cell("b")], watching, Interruption())
    assert watching.events == ["a started", ("a", Ended("no room")), "b started", ("b", Ended("no room"))]


def test_cells_that_do_not_fit_into_memory_together_run_one_after_another_and_small_ones_go_first() -> None:
    processes = {name: Pretender([At(1), Ended()]) for name in ("large", "huge", "small")}
    cells = [cell("large", 6 * GB), cell("huge", 20 * GB), cell("small", 2 * GB)]
    watching = launch(cells, processes, n_slots=3, memory=10 * GB)
    started = [event for event in watching.events if "started" in event]
    assert started == ["large started", "small started", "huge started"]
    assert watching.most_at_a_time == 2


def test_a_signal_stops_those_that_run_and_starts_no_other() -> None:
    processes = {name: Pretender([]) for name in ("a", "b", "c")}
    interruption = Interruption()

    def interrupt() -> None:
        interruption.signal = signal.SIGTERM

    watching = launch(
        [cell(name) for name in processes], processes, watching=Watching(interrupt), interruption=interruption
    )
    assert [process.terminated for process in processes.values()] == [1, 1, 0]
    assert watching.events[-2:] == [("a", Ended(is_stopped=True)), ("b", Ended(is_stopped=True))]
    assert "c started" not in watching.events


def test_a_second_signal_leaves_no_process_behind() -> None:
    processes = {"a": Pretender([])}

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch([cell("a")], processes, watching=Watching(interrupt))
    assert processes["a"].terminated
    assert processes["a"].killed

"""Processes that train, watched from outside and killed, for benchmarks/soak_long.py.

As a script it is such a process: `python benchmarks/lives.py FILE train …` is `diaster train …`, and notes in the file
which steps it reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diaster import cli
from diaster.training import progress as reporters

SAMPLE_SECONDS = 2.0
WARM_UP_SECONDS, LONG_ENOUGH = 90.0, 60.0  # what a process may grow for, and how long it has to be seen after that
PARTS, FLAT = 6, 0.05
MEBI = 2**20
WORKER, ISOLATED = "diaster.actors.workers", "diaster.envs.isolation"


class Counting(reporters.Lines):
    """Says where the run begins, and after each chunk where it stands, in a file that outlives the process."""

    def __init__(self, file: Path) -> None:
        super().__init__(sys.stderr)
        self._file = file.open("a", buffering=1, encoding="ascii")

    def start(self, config: Any, spec: Any, step: int = 0) -> None:
        super().start(config, spec, step)
        self._file.write(f"{step}\n")

    def advance(self, progress: reporters.Progress) -> None:
        super().advance(progress)
        self._file.write(f"{progress.step}\n")


class Sample(NamedTuple):
    """Resident memory of a process and of those below it, some seconds after its start."""

    seconds: float
    own: int
    others: int


class Life:
    """A process that trains, from its start to its end, with its memory."""

    def __init__(
        self, folder: Path, name: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> None:
        self.steps_file = folder / f"steps-{name}"
        self.log_file = folder / f"log-{name}"
        self.samples: list[Sample] = []
        self._start = time.monotonic()
        command = [sys.executable, __file__, str(self.steps_file), *arguments]
        places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": places, **(variables or {})}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def quiet_seconds(self) -> float:
        """How long it has reached no further step."""
        with contextlib.suppress(OSError):
            return time.time() - self.steps_file.stat().st_mtime
        return self.seconds

    def is_over(self) -> bool:
        """Look at it; takes a sample where one is due."""
        if self.process.poll() is not None:
            return True
        if not self.samples or self.seconds - self.samples[-1].seconds >= SAMPLE_SECONDS:
            with contextlib.suppress(OSError):  # one of them ended just now
                own = resident(self.process.pid)
                self.samples.append(Sample(self.seconds, own, sum(map(resident, self.family()))))
        return False

    def family(self) -> list[int]:
        """All processes below it."""
        return descendants(self.process.pid)

    def kill(self) -> int:
        """Kill it, and nothing else. Returns how many of those below it are still there some seconds later."""
        family = self.family()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return left_of(family)

    @property
    def steps(self) -> list[int]:
        """The step it began at and those it reached; none if it was killed before that."""
        text = self.steps_file.read_text(encoding="ascii") if self.steps_file.exists() else ""
        return [int(line) for line in text.split("\n")[:-1]]  # the last line may be half written

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def lost_checkpoints(self) -> int:
        return self.log.count("a checkpoint could not be written")

    def own_after_warm_up(self) -> list[int]:
        """Resident bytes of the process itself, from when it has reason to grow no more."""
        return [sample.own for sample in self.samples if sample.seconds > WARM_UP_SECONDS]


def children(pid: int, module: str = "") -> list[int]:
    """Processes that this one has started; those that run this module, where one is given."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split() if not module or runs(int(child), module)]


def runs(pid: int, module: str) -> bool:
    try:
        return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    own = children(pid)
    return own + [process for child in own for process in descendants(child)]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def left_of(pids: Sequence[int]) -> int:
    """How many are still there some seconds later."""
    deadline = time.monotonic() + 10.0
    while (left := sum(map(is_alive, pids))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def kill_child(parent: int, pid: int) -> bool:
    """Kill a child of this parent, and wait until it is dead. False: it ended before."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle is of what has this number now: no other process can be hit, however late it is.
        if pid not in children(parent) or not is_alive(pid):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    while is_alive(pid) and pid in children(parent):
        time.sleep(0.0005)
    return True


def drift(values: Sequence[int]) -> float:
    """How far apart the least and the largest part of a life lie, of some parts; each counts with its median."""
    size = len(values) / PARTS
    medians = [statistics.median(values[int(n * size) : int((n + 1) * size)]) for n in range(PARTS)]
    return max(medians) / min(medians) - 1.0


def table_of_memory(lives: Mapping[str, Life]) -> bool:
    """Print the memory of every life that was long enough. Whether there was one, and it was flat in each."""
    print("\n| life | seconds | steps/s | least MiB | median | largest | drift | its processes, median MiB |")
    print("|---|---|---|---|---|---|---|---|")
    drifts = []
    for name, life in lives.items():
        own = life.own_after_warm_up()
        if len(own) < LONG_ENOUGH / SAMPLE_SECONDS:
            continue
        drifts.append(drift(own))
        seconds, steps = life.samples[-1].seconds, life.steps
        others = statistics.median(sample.others for sample in life.samples)
        print(
            f"| {name} | {seconds:,.0f} | {(steps[-1] - steps[0]) / seconds:.0f} | {min(own) / MEBI:.0f} | "
            f"{statistics.median(own) / MEBI:.0f} | {max(own) / MEBI:.0f} | {drifts[-1]:.1%} | {others / MEBI:.0f} |"
        )
    if not drifts:
        print("no process lived long enough for its memory to be judged")
    return bool(drifts) and max(drifts) <= FLAT


def live() -> int:
    reporters.make_reporter = lambda: Counting(Path(sys.argv[1]))
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(live())

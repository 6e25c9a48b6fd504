"""An hour of trouble: a run on a flaky environment, with a disk that fills up, killed again and again and resumed.

    make soak-long                                      # about an hour on 2 cores; root, for the small file system
    python benchmarks/soak_long.py --minutes 10

Two runs of the same settings train concurrently. One is uninterrupted: its memory has to stay flat for as long as it
lives. The other has its run directory on a small tmpfs that is full now and then, and is killed with `kill -9` at
random moments, every other time when a file of a checkpoint is half written, and resumed until it ends. Both step
environments that raise, die, hang and return NaN (flaky.py), in processes of their own. In the end all bytes have to be
the same. Exit code 1 if anything was lost or memory was not flat.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flaky
from soak import diaster, finish, how_to_go_on, is_moment, same_results

from diaster import cli
from diaster.training import progress as reporters
from diaster.types import Stream, reset_seed

STEPS_PER_MINUTE = 50_000  # of each of the two runs, on 2 cores with nothing else
CHUNK, INTERVAL, CAPACITY, EVALUATE = 100, 2000, 20_000, 2500
SETTINGS = [
    "Flaky-v0", "--import=flaky", "--isolate-envs", "--step-seconds=10", "--env-retries=10", "--workers=0",
    f"--chunk-steps={CHUNK}", "--warmup-steps=1000", f"--checkpoint-every={INTERVAL}", f"--replay.capacity={CAPACITY}",
    "--agent.hidden=64", "--agent.batch-size=64", "--agent.every=2", "--method.hidden=32",
    f"--evaluation.every={EVALUATE}", "--evaluation.episodes=3",
]  # fmt: skip
DISK = "16m"
SAMPLE_SECONDS = 2.0
WARM_UP_SECONDS, LONG_ENOUGH = 90.0, 60.0  # what a process may grow for, and how long it has to be seen after that
PARTS, FLAT = 6, 0.05
MEBI = 2**20


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
    """Resident memory of a process and of those it has started, some seconds after its start."""

    seconds: float
    own: int
    children: int


class Life:
    """A process that trains, from its start to its end, with its memory."""

    def __init__(self, folder: Path, number: int, arguments: Sequence[str]) -> None:
        self.steps_file = folder / f"steps-{number}"
        self.log_file = folder / f"log-{number}"
        self.samples: list[Sample] = []
        self._start = time.monotonic()
        command = [sys.executable, __file__, "--life", str(self.steps_file), "--", *arguments]
        places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": places})

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def is_over(self) -> bool:
        """Look at it; takes a sample where one is due."""
        if self.process.poll() is not None:
            return True
        if not self.samples or self.seconds - self.samples[-1].seconds >= SAMPLE_SECONDS:
            with contextlib.suppress(OSError):  # it ended just now
                own = resident(self.process.pid)
                self.samples.append(Sample(self.seconds, own, sum(map(resident, children(self.process.pid)))))
        return False

    def kill(self) -> int:
        """Kill it, and nothing else. Returns how many of its children are still there some seconds later."""
        orphans = children(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10.0
        while (left := sum(map(is_alive, orphans))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

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


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Pressure(threading.Thread):
    """Fills a file system now and then, and makes room again."""

    def __init__(self, mount: Path, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._ballast, self._chance, self._end = mount / "ballast", chance, threading.Event()
        self.is_full = threading.Event()
        self.times = 0

    def run(self) -> None:
        while not self._end.wait(self._chance.uniform(30.0, 120.0)):
            self.times += 1
            self.is_full.set()
            until = time.monotonic() + self._chance.uniform(15.0, 60.0)
            while time.monotonic() < until and not self._end.wait(0.05):  # what the run removes is taken as well
                with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            self._ballast.unlink()
            self.is_full.clear()

    def end(self) -> None:
        self._end.set()
        self.join()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system there. Yields whether that could be done."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


class Soak:
    """The run that is killed, and the one that is not."""

    def __init__(self, folder: Path, disk: Path, steps: int, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self.whole, self.half = folder / "whole", disk / "half"
        self._arguments = ["train", *SETTINGS, f"--steps={steps}"]
        self.uninterrupted = Life(folder, 0, [*self._arguments, "--out", str(self.whole)])
        self.lives: list[Life] = []
        self.repeated: list[int] = []  # steps, of every resumption
        self.kills = self.in_writing = self.refused = self.orphans = self.too_many = 0
        self._reached = self._lost = 0  # of the lives since the last checkpoint that was taken up

    def run(self, seconds: float, pressure: Pressure | None) -> None:
        """Kill and resume until both have ended; after these seconds they are left alone."""
        end = time.monotonic() + seconds
        while not (self.half / "DONE").exists():
            life = Life(self._folder, len(self.lives) + 1, how_to_go_on(self.half, self._arguments))
            self.lives.append(life)
            # Most lives are short; some are long enough to see whether memory stays flat.
            limits = (180.0, 300.0) if self._chance.random() < 0.25 else (3.0, 60.0)
            deadline, while_writing = time.monotonic() + self._chance.uniform(*limits), self.kills % 2 == 1
            while not life.is_over():
                self.uninterrupted.is_over()
                now = time.monotonic()
                if now < end and is_moment(self.half, deadline, while_writing):
                    self.orphans += life.kill()
                    self.kills, self.in_writing = self.kills + 1, self.in_writing + while_writing
                    break
                if now > end and pressure is not None:
                    pressure.end()
                time.sleep(0.05 if now < deadline else 0.0005)
            self._note_end(life, pressure)
        while not self.uninterrupted.is_over():
            time.sleep(0.1)
        if self.uninterrupted.process.returncode:
            sys.exit(f"exit code {self.uninterrupted.process.returncode}: {self.uninterrupted.log}")

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for life in (self.uninterrupted, *self.lives):
            life.process.kill()
            life.process.wait()

    def _note_end(self, life: Life, pressure: Pressure | None) -> None:
        if steps := life.steps:
            if self._reached:
                self.repeated.append(self._reached - steps[0])
                # The newest checkpoint may have been half written, and while the disk is full none can be.
                self.too_many += self.repeated[-1] > (2 + self._lost) * INTERVAL + CHUNK
            self._reached, self._lost = steps[-1], 0
        self._lost += life.lost_checkpoints
        code = life.process.returncode
        if code in (0, -signal.SIGKILL):
            return
        if code != cli.USAGE_ERROR or "No space left" not in life.log:
            sys.exit(f"exit code {code}: {life.log}")
        self.refused += 1  # on a full disk a run can neither begin nor end
        while pressure is not None and pressure.is_full.is_set():
            self.uninterrupted.is_over()
            time.sleep(0.1)


def drift(values: Sequence[int]) -> float:
    """How far apart the least and the largest part of a life lie, of some parts; each counts with its median."""
    size = len(values) / PARTS
    medians = [statistics.median(values[int(n * size) : int((n + 1) * size)]) for n in range(PARTS)]
    return max(medians) / min(medians) - 1.0


def expected_faults(rows: Sequence[dict[str, str]]) -> Counter[str]:
    """The faults that the training episodes of a run have to have had, by their kind."""
    last = rows[-1]
    begun = range(int(last["episodes"]) + int(float(last["faults"])))
    seeds = (reset_seed(int(last["seed"]), Stream.COLLECT_RESET, number) for number in begun)
    return Counter(fault.kind for fault in map(flaky.fault_of, seeds) if fault is not None)


def table_of_memory(lives: dict[str, Life]) -> bool:
    """Print the memory of every life that was long enough. Whether there was one, and it was flat in each."""
    print("\n| life | seconds | steps/s | least MiB | median | largest | drift | environments, median MiB |")
    print("|---|---|---|---|---|---|---|---|")
    drifts = []
    for name, life in lives.items():
        own = life.own_after_warm_up()
        if len(own) < LONG_ENOUGH / SAMPLE_SECONDS:
            continue
        drifts.append(drift(own))
        seconds, steps = life.samples[-1].seconds, life.steps
        environments = statistics.median(sample.children for sample in life.samples)
        print(
            f"| {name} | {seconds:,.0f} | {(steps[-1] - steps[0]) / seconds:.0f} | {min(own) / MEBI:.0f} | "
            f"{statistics.median(own) / MEBI:.0f} | {max(own) / MEBI:.0f} | {drifts[-1]:.1%} | "
            f"{environments / MEBI:.0f} |"
        )
    if not drifts:
        print("no process lived long enough for its memory to be judged")
    return bool(drifts) and max(drifts) <= FLAT


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def say_what_differs(whole: Path, half: Path) -> None:
    """The first row that differs, and whether faults do: a sound step that took too long looks like one."""
    for mine, theirs in zip(rows_of(whole), rows_of(half), strict=False):
        differing = [f"{name} {mine[name]} and {theirs[name]}" for name in mine if mine[name] != theirs[name]]
        if differing:
            print(f"uninterrupted and killed differ first at step {mine['step']}: {', '.join(differing)}")
            break
    counts = [(rows[-1]["faults"], expected_faults(rows).total()) for rows in map(rows_of, (whole, half))]
    print("faults, and those to be expected: uninterrupted {} and {}, killed {} and {}".format(*counts[0], *counts[1]))


def verdict(soak: Soak, steps: int) -> bool:
    """Print whether anything was lost."""
    rows = rows_of(soak.half)
    faults, expected = int(float(rows[-1]["faults"])), expected_faults(rows)
    evaluated = [int(row["step"]) for row in rows]
    places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = places
    finish(diaster("evaluate", str(soak.half), "--episodes", "5"))
    held = {
        "no resumption repeated more steps than it had to": soak.too_many == 0,
        "no process was left behind": soak.orphans == 0,
        "every evaluation is in progress.csv once": evaluated == sorted({*range(EVALUATE, steps, EVALUATE), steps}),
        "every fault was counted, and no other": faults == expected.total(),
        "all bytes are those of the uninterrupted run": same_results(soak.whole, soak.half),
    }
    print(f"\nfaults: {faults}; to be expected: {dict(sorted(expected.items()))}")
    for sentence, is_so in held.items():
        print(f"{'yes' if is_so else 'NO '}  {sentence}")
    if not same_results(soak.whole, soak.half):
        say_what_differs(soak.whole, soak.half)
    return all(held.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long it is made to last, about")
    parser.add_argument("--steps", type=int, help="of each run, instead of as many as fit into the minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--life", type=Path, help="(for the script itself)")
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.life is not None:
        reporters.make_reporter = lambda: Counting(arguments.life)
        sys.exit(cli.main(arguments.arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what was begun and mounted is ended
    start, steps = time.monotonic(), arguments.steps or int(STEPS_PER_MINUTE * arguments.minutes)
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "disk") as is_small:
        folder, pressure = Path(name), None
        if is_small:
            pressure = Pressure(folder / "disk", random.Random(arguments.seed))
            pressure.start()
        else:
            print("no file system can be mounted here (that needs root): the disk will not be full")
        soak = Soak(folder, folder / "disk", steps, arguments.seed)
        try:
            soak.run(60.0 * arguments.minutes, pressure)
        finally:
            soak.end()
            if pressure is not None:
                pressure.end()
        lives = [soak.uninterrupted, *soak.lives]
        repeated = sorted(soak.repeated) or [0]
        print("| what | how often |\n|---|---|")
        print(f"| kills, of them while a checkpoint was written | {soak.kills}, {soak.in_writing} |")
        print(f"| the disk was full | {0 if pressure is None else pressure.times} |")
        print(f"| checkpoints lost to it | {sum(life.lost_checkpoints for life in lives)} |")
        print(f"| results put off because of it | {sum(life.log.count('results could not') for life in lives)} |")
        print(f"| sessions that could not begin or end because of it | {soak.refused} |")
        moody = sum(life.log.count("does not repeat itself") for life in lives)
        print(f"| episodes under way that could not be brought back | {moody} |")
        print(f"| steps of a run; repeated in all | {steps:,}; {sum(repeated):,} |")
        print(f"| repeated by a resumption: median, most | {statistics.median(repeated):,.0f}, {repeated[-1]:,} |")
        flat = table_of_memory(
            {"uninterrupted": soak.uninterrupted, **{str(n): life for n, life in enumerate(soak.lives, 1)}}
        )
        good = verdict(soak, steps)
        print(f"{'yes' if flat else 'NO '}  memory was flat within {FLAT:.0%}")
    print(f"{time.monotonic() - start:,.0f} seconds")
    sys.exit(not (good and flat))


if __name__ == "__main__":
    main()

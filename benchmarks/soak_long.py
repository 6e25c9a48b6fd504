"""An hour of trouble: runs on a flaky environment, with a disk that fills up, killed in every part and resumed.

    make soak-long                                      # about an hour on 2 cores; root, for the small file system
    python benchmarks/soak_long.py --minutes 10

Two runs of the same settings train concurrently. One is uninterrupted: its memory has to stay flat for as long as it
lives. The other steps its environments in worker processes, and has its run directory on a small tmpfs that is full now
and then. At random moments it is killed with `kill -9`, or one of its workers is, every other time when a file of a
checkpoint is half written. A dead worker has to end the run with a sentence. It is resumed until it ends. Both step
environments that raise, die, hang and return NaN (flaky.py), in processes of their own. In the end all bytes have to be
the same. A third run, a shorter one, has the processes of its environments killed (soak_envs.py). Exit code 1 if
anything was lost or memory was not flat.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator
from pathlib import Path

import flaky
from lives import FLAT, WORKER, Life, children, kill_child, left_of, table_of_memory
from soak import diaster, finish, how_to_go_on, is_moment, same_results
from soak_envs import (
    CHUNK,
    ENVS,
    INTERVAL,
    SETTINGS,
    STUCK_SECONDS,
    DisturbedRun,
    evaluations_are_whole,
    rows_of,
    say,
    training_seeds,
)

from diaster import cli

STEPS_PER_MINUTE = 40_000  # of each of the two runs, on 2 cores with nothing else
SHORTER = 6  # times, the third run
DISK = "16m"
WORKER_DIED = "a process that steps environments ended unexpectedly (exit code -9)"


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
    """The run that is killed, the one that is not, and the one whose environments are."""

    def __init__(self, folder: Path, disk: Path, steps: int, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self.whole, self.half = folder / "whole", disk / "half"
        arguments = ["train", *SETTINGS, "--evaluation.episodes=3", f"--steps={steps}"]
        self._arguments = [*arguments, "--workers=2"]  # no result depends on it
        self.uninterrupted = Life(folder, "whole", [*arguments, "--workers=0", "--out", str(self.whole)])
        self.disturbed = DisturbedRun(folder, steps // SHORTER // CHUNK * CHUNK, seed)
        self.lives: list[Life] = []
        self.without_worker: list[Life] = []  # of them, those that had a worker killed
        self.repeated: list[int] = []  # steps, of every resumption
        self.kills, self.in_writing = Counter[str](), Counter[str]()
        self.refused = self.orphans = self.too_many = self.stuck = 0
        self._reached = self._lost = 0  # of the lives since the last checkpoint that was taken up

    def run(self, seconds: float, pressure: Pressure | None) -> None:
        """Kill and resume until all have ended; after these seconds they are left alone."""
        end = time.monotonic() + seconds
        while not (self.half / "DONE").exists():
            life = Life(self._folder, str(len(self.lives) + 1), how_to_go_on(self.half, self._arguments))
            self.lives.append(life)
            # Most lives are short; some are long enough to see whether memory stays flat.
            limits = (180.0, 300.0) if self._chance.random() < 0.25 else (3.0, 60.0)
            deadline = time.monotonic() + self._chance.uniform(*limits)
            victim = self._chance.choice(("main", "worker"))
            while_writing = self.kills[victim] % 2 == 1
            while not life.is_over():
                self._look_at_others()
                now = time.monotonic()
                if now < end and is_moment(self.half, deadline, while_writing) and self._kill(life, victim):
                    self.kills[victim] += 1
                    self.in_writing[victim] += while_writing
                    break
                if now > end and pressure is not None:
                    pressure.end()
                time.sleep(0.05 if now < deadline else 0.0005)
            self._note_end(life, pressure)
        while not self._look_at_others():
            time.sleep(0.05)
        self.disturbed.note_end()
        if self.uninterrupted.process.returncode:
            sys.exit(f"exit code {self.uninterrupted.process.returncode}: {self.uninterrupted.log}")

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for life in (self.uninterrupted, self.disturbed.life, *self.lives):
            life.process.kill()
            life.process.wait()

    def _look_at_others(self) -> bool:
        """Whether the two other runs are over."""
        return all([self.uninterrupted.is_over(), self.disturbed.is_over()])

    def _kill(self, life: Life, victim: str) -> bool:
        """Kill the run or one of its workers, and wait for the run's end. False: there is none yet, or no more."""
        if victim == "main":
            self.orphans += life.kill()
            return True
        workers, family = children(life.process.pid, WORKER), life.family()
        if not workers or not kill_child(life.process.pid, self._chance.choice(workers)):
            return False
        self.without_worker.append(life)
        killed = time.monotonic()
        while not life.is_over():  # one that evaluates is missed only when the next evaluation is due
            self._look_at_others()
            if time.monotonic() - killed > STUCK_SECONDS:
                self.stuck += 1
                self.orphans += life.kill()
            time.sleep(0.05)
        self.orphans += left_of(family)
        return True

    def _note_end(self, life: Life, pressure: Pressure | None) -> None:
        if steps := life.steps:
            if self._reached:
                self.repeated.append(self._reached - steps[0])
                # The newest checkpoint may have been half written, and while the disk is full none can be.
                self.too_many += self.repeated[-1] > (2 + self._lost) * INTERVAL + CHUNK
            self._reached, self._lost = steps[-1], 0
        self._lost += life.lost_checkpoints
        code, log = life.process.returncode, life.log
        if code == -signal.SIGKILL or (code == 0 and (self.half / "DONE").exists()):
            return
        if life in self.without_worker and ends_with_the_sentence(life):
            return
        if code != cli.USAGE_ERROR or "No space left" not in log:
            sys.exit(f"exit code {code}: {log}")
        self.refused += 1  # on a full disk a run can neither begin nor end
        while pressure is not None and pressure.is_full.is_set():
            self._look_at_others()
            time.sleep(0.05)


def ends_with_the_sentence(life: Life) -> bool:
    """Whether it ended as a run has to whose worker has died: with a sentence, an exit code and nothing else."""
    return life.process.returncode == cli.USAGE_ERROR and WORKER_DIED in life.log and "Traceback" not in life.log


def expected_faults(steps: int) -> Counter[str]:
    """The faults that the training episodes of a run have to have, by their kind."""
    kinds: Counter[str] = Counter()
    for share in range(ENVS):
        left = steps // ENVS
        for fault in map(flaky.fault_of, training_seeds(share)):
            left -= flaky.HORIZON if fault is None else fault.step
            if left < 0:
                break
            if fault is not None:
                kinds[fault.kind] += 1
    return kinds


def say_what_differs(whole: Path, half: Path) -> None:
    """The first row that differs, and whether faults do: a sound step that took too long looks like one."""
    for mine, theirs in zip(rows_of(whole), rows_of(half), strict=False):
        differing = [f"{name} {mine[name]} and {theirs[name]}" for name in mine if mine[name] != theirs[name]]
        if differing:
            print(f"uninterrupted and killed differ first at step {mine['step']}: {', '.join(differing)}")
            break
    print("faults: uninterrupted {}, killed {}".format(*(rows_of(run)[-1]["faults"] for run in (whole, half))))


def verdict(soak: Soak, steps: int) -> bool:
    """Print whether anything was lost."""
    rows = rows_of(soak.half)
    faults, expected = int(float(rows[-1]["faults"])), expected_faults(steps)
    places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = places
    finish(diaster("evaluate", str(soak.half), "--episodes", "5"))
    held = {
        "no resumption repeated more steps than it had to": soak.too_many == 0,
        "no process was left behind": soak.orphans == 0,
        "no run waited for a worker that was dead": soak.stuck == 0,
        "every evaluation is in progress.csv once": evaluations_are_whole(rows, steps),
        "every fault was counted, and no other": faults == expected.total(),
        "all bytes are those of the uninterrupted run": same_results(soak.whole, soak.half),
    }
    print(f"\nfaults: {faults}; to be expected: {dict(sorted(expected.items()))}")
    good = say(held)
    if not same_results(soak.whole, soak.half):
        say_what_differs(soak.whole, soak.half)
    return soak.disturbed.verdict() and good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long it is made to last, about")
    parser.add_argument("--steps", type=int, help="of each run, instead of as many as fit into the minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what was begun and mounted is ended
    start, steps = time.monotonic(), arguments.steps or int(STEPS_PER_MINUTE * arguments.minutes)
    steps = steps // CHUNK * CHUNK  # environments share a chunk evenly, so what each of them takes is known
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
        kills, in_writing = soak.kills, soak.in_writing
        repeated = sorted(soak.repeated) or [0]
        print("| what | how often |\n|---|---|")
        print(f"| kills of the run, of them while a checkpoint was written | {kills['main']}, {in_writing['main']} |")
        print(
            f"| kills of a worker, of them while a checkpoint was written | {kills['worker']}, {in_writing['worker']} |"
        )
        print(f"| of these, the run ended with the sentence | {sum(map(ends_with_the_sentence, lives))} |")
        print(f"| kills of an isolated environment, in the third run | {len(soak.disturbed.kills)} |")
        print(f"| the disk was full | {0 if pressure is None else pressure.times} |")
        print(f"| checkpoints lost to it | {sum(life.lost_checkpoints for life in lives)} |")
        print(f"| results put off because of it | {sum(life.log.count('results could not') for life in lives)} |")
        print(f"| sessions that could not begin or end because of it | {soak.refused} |")
        moody = sum(life.log.count("does not repeat itself") for life in lives)
        print(f"| episodes under way that could not be brought back | {moody} |")
        print(f"| steps of a run; repeated in all | {steps:,}; {sum(repeated):,} |")
        print(f"| repeated by a resumption: median, most | {statistics.median(repeated):,.0f}, {repeated[-1]:,} |")
        flat = table_of_memory(
            {"uninterrupted": soak.uninterrupted, "environments killed": soak.disturbed.life}
            | {str(n): life for n, life in enumerate(soak.lives, 1)}
        )
        good = verdict(soak, steps)
        print(f"{'yes' if flat else 'NO '}  memory was flat within {FLAT:.0%}")
    print(f"{time.monotonic() - start:,.0f} seconds")
    sys.exit(not (good and flat))


if __name__ == "__main__":
    main()

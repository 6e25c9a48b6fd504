"""A run whose isolated environments are killed, for benchmarks/soak_long.py.

A kill costs an episode, so the bytes are not those of another run. But how many episodes have to be lost is known
exactly. The environments note when an episode of theirs begins and when it is about to fail (flaky.py), and a kill
waits until its process is dead. So for each kill it is certain whether the episode would have been lost anyway.
"""

from __future__ import annotations

import csv
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import flaky
from lives import ISOLATED, WORKER, Life, children, kill_child, left_of

from diaster.types import Stream, reset_seed

CHUNK, INTERVAL, EVALUATE, ENVS = 100, 2000, 2500, 2
SETTINGS = [
    "Flaky-v0", "--import=flaky", "--isolate-envs", "--step-seconds=10", "--env-retries=10", f"--envs={ENVS}",
    f"--chunk-steps={CHUNK}", "--warmup-steps=1000", f"--checkpoint-every={INTERVAL}", "--replay.capacity=20000",
    "--agent=sac", "--agent.hidden=64", "--agent.batch-size=64", "--agent.every=2", "--method.hidden=32",
    f"--evaluation.every={EVALUATE}",
]  # fmt: skip
EPISODES = 5  # of an evaluation; where all are lost another is run, and a warning does not say how many were
PAUSES = (0.2, 12.0)  # seconds between two kills: some hit a process that is only just starting
STUCK_SECONDS = 180.0  # no chunk takes as long, not even one in which environments hang


class Kill(NamedTuple):
    """A process that was killed: whose it was, and whether its episode would have been lost anyway."""

    worker: int
    was_failing: bool


class Losses(NamedTuple):
    """Episodes lost in training, and in evaluations."""

    training: int
    evaluation: int


class DisturbedRun:
    """A run in two workers, whose environments are killed until shortly before its end."""

    def __init__(self, folder: Path, steps: int, seed: int) -> None:
        self.out, self._events, self._steps = folder / "disturbed", folder / "events", steps
        self._chance, self._next = random.Random(seed), 0.0
        numbers = [f"--steps={steps}", f"--evaluation.episodes={EPISODES}", "--workers=2"]
        arguments = ["train", *SETTINGS, *numbers, "--out", str(self.out)]
        self.life = Life(folder, "disturbed", arguments, {flaky.EVENTS: str(self._events)})
        self.kills: list[Kill] = []
        self.is_stuck = False
        self.orphans = 0
        self._family: set[int] = set()

    def is_over(self) -> bool:
        """Look at it; kills one of its environments where that is due."""
        if self.life.is_over():
            return True
        self._family.update(self.life.family())
        if self.life.quiet_seconds > STUCK_SECONDS:
            self.is_stuck = True
            self.life.kill()
        elif time.monotonic() > self._next:
            self._kill_one()
            self._next = time.monotonic() + self._chance.uniform(*PAUSES)
        return False

    def note_end(self) -> None:
        """Once it is over: what it has left behind."""
        self.orphans = left_of(sorted(self._family))

    def _kill_one(self) -> None:
        steps = self.life.steps
        # Each kill is followed by a chunk and an evaluation, so that what it costs is counted.
        if not steps or not 0 < steps[-1] < self._steps - 2 * EVALUATE:
            return
        workers = children(self.life.process.pid, WORKER)
        victims = [(worker, pid) for worker in workers for pid in children(worker, ISOLATED)]
        if not victims:
            return
        worker, pid = self._chance.choice(victims)
        if kill_child(worker, pid):
            last = [event for event in self._all_events() if event.pid == pid][-1:]
            self.kills.append(Kill(worker, bool(last) and last[0].what == flaky.FAILS))

    def _all_events(self) -> list[flaky.Event]:
        return flaky.read_events(self._events)

    def expected(self) -> Losses:
        """What has to have been lost: episodes that failed by themselves, and those that a kill took."""
        events = self._all_events()
        firsts = {seed for share in range(ENVS) for seed in islice(training_seeds(share), 1000)}
        collecting = {event.worker for event in events if event.what == flaky.BEGINS and event.seed in firsts}
        workers = [event.worker for event in events if event.what == flaky.FAILS]
        workers += [kill.worker for kill in self.kills if not kill.was_failing]
        training = sum(worker in collecting for worker in workers)
        return Losses(training, len(workers) - training)

    def counted(self) -> Losses:
        """What the run says it has lost."""
        lost = re.findall(r"lost (\d+) of its \d+ episodes", self.life.log)
        return Losses(int(float(rows_of(self.out)[-1]["faults"])), sum(map(int, lost)))

    def verdict(self) -> bool:
        """Print whether all kills were survived and counted."""
        code = self.life.process.returncode
        print(f"\nenvironments killed: {len(self.kills)}; already failing: {sum(k.was_failing for k in self.kills)}")
        held = {"the run whose environments were killed did not get stuck": not self.is_stuck}
        held["it ended with exit code 0"] = code == 0
        held["it left no process behind"] = self.orphans == 0
        if code == 0:
            counted, expected = self.counted(), self.expected()
            print(f"episodes lost: {counted}; to be expected: {expected}")
            held["every episode that was lost was counted, and no other"] = counted == expected
            held["it has every evaluation once"] = evaluations_are_whole(rows_of(self.out), self._steps)
        elif code != -signal.SIGKILL:
            print(self.life.log)
        return say(held)


def training_seeds(share: int) -> Iterator[int]:
    """The seeds of the resets of an environment that collects."""
    number = 0
    while True:
        place = (number, share) if share else (number,)
        yield reset_seed(0, Stream.COLLECT_RESET, *place)
        number += 1


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def evaluations_are_whole(rows: Sequence[dict[str, str]], steps: int) -> bool:
    return [int(row["step"]) for row in rows] == sorted({*range(EVALUATE, steps, EVALUATE), steps})


def say(held: dict[str, bool]) -> bool:
    """Print what holds and what does not. Whether all does."""
    for sentence, is_so in held.items():
        print(f"{'yes' if is_so else 'NO '}  {sentence}")
    return all(held.values())

"""An environment that fails now and then, for benchmarks/soak_long.py (`--import flaky`).

Whether, when and how an episode fails follows from the seed of its reset alone: a run that was cut off and resumed
meets the faults of one that was not, and how many there have to be is known beforehand. Where an environment is killed
from outside that no longer follows from the seeds; for that it can note in a file what it does.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HORIZON = 100
SIZE = 24
KINDS = ("raises", "dies", "hangs", "NaN")
ONE_IN = 50  # episodes
EVENTS = "FLAKY_EVENTS"  # the variable that names the file
BEGINS, FAILS = "begins", "fails"


class Fault(NamedTuple):
    """What goes wrong in an episode, and at which step."""

    kind: str
    step: int


def fault_of(seed: int) -> Fault | None:
    """The fault of the episode that is reset with this seed."""
    random = np.random.default_rng(seed)
    fails, kind, step = random.random() < 1 / ONE_IN, random.choice(KINDS), random.integers(1, HORIZON + 1)
    return Fault(str(kind), int(step)) if fails else None


class Event(NamedTuple):
    """An episode begins, or is about to fail, in a process that a worker has started."""

    worker: int
    pid: int
    what: str
    seed: int


def read_events(file: Path) -> list[Event]:
    text = file.read_text(encoding="ascii") if file.exists() else ""
    parts = (line.split() for line in text.splitlines())
    return [Event(int(worker), int(pid), what, int(seed)) for worker, pid, what, seed in parts]


def note(what: str, seed: int) -> None:
    """One write of a whole line: it is there or not, also where the process is killed."""
    if name := os.environ.get(EVENTS):
        with Path(name).open("ab", buffering=0) as file:
            file.write(f"{os.getppid()} {os.getpid()} {what} {seed}\n".encode())


class Flaky(gym.Env[Any, Any]):
    """A point that drifts and can be pushed; a step is worth more the nearer the point stays to a place."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None, "every episode has a seed of its own here"
        note(BEGINS, seed)
        self._fault, self._time, self._seed = fault_of(seed), 0, seed
        self._place = self.np_random.normal(size=SIZE).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        if self._fault is not None and self._time == self._fault.step:
            self._fail(self._fault.kind)
        self._place = (0.97 * np.roll(self._place, 1)).astype(np.float32)
        self._place[:2] += 0.3 * np.asarray(action, np.float32)
        return self._place.copy(), 1.0 - float(np.square(self._place[:4] - 0.5).mean()), False, False, {}

    def _fail(self, kind: str) -> None:
        note(FAILS, self._seed)
        if kind == "raises":
            raise RuntimeError("flaky by design")
        if kind == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hangs":
            time.sleep(86400)
        self._place[0] = np.nan


gym.register("Flaky-v0", entry_point="flaky:Flaky", max_episode_steps=HORIZON)

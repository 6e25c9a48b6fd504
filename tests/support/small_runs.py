"""Small runs: their settings, what they have learnt, and reporters that cut them off."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diaster.config import build_config, write_toml
from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.records import DECOMPOSER, DONE, POLICY, PROGRESS
from diaster.training.progress import Progress, Silent
from diaster.training.train import run_training

SMALL: dict[str, Any] = {
    "steps": 240,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 40,
    "warmup_steps": 80,
    "method": {"name": "diaster", "hidden": 8, "segments_per_episode": 4, "base": "none"},
    "agent": {"name": "sac", "hidden": 8, "batch_size": 16},
    "evaluation": {"every": 120, "episodes": 2},
}
QUICK: dict[str, Any] = {"method": "uniform", "agent": "ddpg"}  # to compile
# Chunks of 33 steps: at the ends of most, an episode of 10 is unfinished. Each makes as many updates as the others, and
# so one program does for all.
CHUNKS: dict[str, Any] = {"steps": 231, "warmup_steps": 66, "chunk_steps": 33, "checkpoint_every": 33}
EVERY_METHOD: dict[str, dict[str, Any]] = {
    "rrd": {"agent": "td3", "method": {"name": "rrd", "hidden": 4, "subset": 4}},
    "rd": {"agent": "ddpg", "method": {"name": "rd", "hidden": 4}},
    "rudder": {
        "agent": "ddpg",
        "method": {"name": "rudder", "hidden": 4, "relabel_every": 1, "updates": 1, "every": 40},
    },
    "ircr": {"agent": "ddpg", "method": "ircr"},
    "uniform": {"env": "ToyDiscrete-v0", "agent": "dqn", "method": "uniform"},
    "episodic": {"env": "ToyDiscreteFrom5-v0", "agent": "sac", "method": "episodic"},
    "dense": {"agent": "ddpg", "seeds": 2, "workers": 2, "method": "dense"},
}
# Few layers and atoms: what they compile to takes most of the time.
XQC: dict[str, Any] = {"name": "xqc", "actor_hidden": 8, "layers": 2, "atoms": 11}


def small(**settings: Any) -> dict[str, Any]:
    """The settings of a small run, some of them changed; another method has settings of its own."""
    found = dict(SMALL)
    for name, value in settings.items():
        base = SMALL.get(name)
        given = {"name": value} if name in ("method", "agent") and isinstance(value, str) else value
        if name == "method" and given.get("name", "diaster") != "diaster":
            base = {}
        found[name] = {**base, **given} if isinstance(base, dict) and isinstance(given, dict) else given
    return found


def trained(root: Path, **settings: Any) -> Run:
    """A small run of Toy-v0 that is trained once for all tests, in all processes; it is not to be changed."""
    config = build_config(**small(**{"env": "Toy-v0", **settings}))
    path = root / hashlib.sha256(write_toml(config).encode()).hexdigest()[:16]
    with (root / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Run(path) if (path / DONE).exists() else run_training(config, path, Silent())


def learnt_bytes(run: Run) -> tuple[bytes, bytes, bytes]:
    return tuple((run.path / name).read_bytes() for name in (PROGRESS, POLICY, DECOMPOSER))  # type: ignore[return-value]


class Heard(Silent):
    """Keeps what it is told in words."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.done: list[str] = []

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def doing(self, what: str) -> None:
        self.done.append(what)


class Copying(Silent):
    """Copies the run directory after some steps, as if the machine had died there; warnings are kept."""

    def __init__(self, run: Path, *steps: int) -> None:
        self.run, self.steps = run, steps
        self.warnings: list[str] = []

    def advance(self, progress: Progress) -> None:
        if progress.step in self.steps:
            # Not in the middle of a write: a copy takes longer than a kill. `make soak` kills there.
            wait_for(lambda: generations(self.run / DIRECTORY) and self.is_quiet())
            shutil.copytree(self.run, copy_of(self.run, progress.step))

    def is_quiet(self) -> bool:
        before = sorted(self.run.rglob("*"))
        time.sleep(0.2)
        return sorted(self.run.rglob("*")) == before and not any(self.run.rglob(".*"))

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


class StoppingAt(Copying):
    """Sends this process a signal after some step."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__(Path())
        self.step, self.number = step, number

    def advance(self, progress: Progress) -> None:
        if progress.step == self.step:
            os.kill(os.getpid(), self.number)


def wait_for(condition: Callable[[], Any]) -> None:
    """Until it holds; a machine may be busy."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copy_of(run: Path, step: int) -> Path:
    return run.with_name(f"{run.name}-{step}")

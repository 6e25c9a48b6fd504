"""Small runs: their settings, what they have learnt, and reporters that cut them off."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.records import DECOMPOSER, POLICY, PROGRESS
from diaster.training.progress import Progress, Silent

SMALL: dict[str, Any] = {
    "steps": 240,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 40,
    "warmup_steps": 80,
    "decomposer": {"hidden": 8, "segments_per_episode": 4},
    "learner": {"hidden": 8, "batch_size": 16},
    "evaluation": {"every": 120, "episodes": 2},
}
EVERY_METHOD = {
    "rrd": {"agent": "td3", "decomposer": {"hidden": 4, "subset": 4}},
    "rd": {"agent": "ddpg", "decomposer": {"hidden": 4}},
    "rudder": {"agent": "ddpg", "decomposer": {"hidden": 4, "relabel_every": 1, "updates": 1, "every": 40}},
    "ircr": {"agent": "ddpg"},
    "uniform": {"env": "ToyDiscrete-v0", "agent": "dqn"},
    "episodic": {"env": "ToyDiscreteFrom5-v0", "agent": "sac"},
    "dense": {"agent": "ddpg", "seeds": 2, "workers": 2},
}


def small(**settings: Any) -> dict[str, Any]:
    """The settings of a small run; another method has settings of its own."""
    base = SMALL if settings.get("method", "diaster") == "diaster" else {**SMALL, "decomposer": {}}
    return {**base, **{k: {**base.get(k, {}), **v} if isinstance(v, dict) else v for k, v in settings.items()}}


def learnt_bytes(run: Run) -> tuple[bytes, bytes, bytes]:
    return tuple((run.path / name).read_bytes() for name in (PROGRESS, POLICY, DECOMPOSER))  # type: ignore[return-value]


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
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def copy_of(run: Path, step: int) -> Path:
    return run.with_name(f"{run.name}-{step}")

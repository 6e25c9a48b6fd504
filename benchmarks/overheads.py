"""What reliability costs: an environment in a process of its own, and the wait for a checkpoint.

python benchmarks/overheads.py      # a minute on 2 cores
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from diaster.config import build_config
from diaster.envs.isolation import IsolatedEnv
from diaster.envs.making import make_env
from diaster.envs.source import find_source, pack
from diaster.training.loop import Trainer
from diaster.training.progress import Silent
from diaster.training.schedule import Chunk
from diaster.training.train import run_training

ENV, STEPS = "Hopper-v5", 3000


def microseconds_per_step(env: Any) -> float:
    env.reset(seed=0)
    start = time.perf_counter()
    for number in range(STEPS):
        _, _, terminated, truncated, _ = env.step(np.zeros(3, np.float32))
        if terminated or truncated:
            env.reset(seed=number)
    env.close()
    return (time.perf_counter() - start) / STEPS * 1e6


def checkpoint_milliseconds() -> list[float]:
    """How long training waits for each checkpoint of a short run."""
    took, write = [], Trainer._write_checkpoint

    def timed(self: Trainer, chunk: Chunk, is_last: bool = False) -> None:
        self._learner.snapshot()  # waits for the learning that runs, as the next chunk would without a checkpoint
        start = time.perf_counter()
        write(self, chunk, is_last)
        took.append((time.perf_counter() - start) * 1e3)

    Trainer._write_checkpoint = timed  # type: ignore[method-assign]
    config = build_config(env=ENV, agent="sac", steps=6000, warmup_steps=1000, checkpoint_every=400)
    with tempfile.TemporaryDirectory() as folder:
        run_training(config, Path(folder) / "run", Silent())
    return took


def main() -> None:
    isolated = IsolatedEnv(pack(find_source(ENV)), 1000, 60.0)
    print(f"a step of {ENV}: {microseconds_per_step(make_env(ENV, 1000)):.0f} µs")
    print(f"the same in a process of its own: {microseconds_per_step(isolated):.0f} µs")
    took = checkpoint_milliseconds()
    # Some fall on an evaluation that runs, which a checkpoint waits for.
    print(f"training waits for a checkpoint: median {np.median(took):.1f} ms, most {max(took):.1f} ms, of {len(took)}")


if __name__ == "__main__":
    main()

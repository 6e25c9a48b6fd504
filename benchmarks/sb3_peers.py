"""SBX's SAC with our replay buffer compared with our own SAC, on one number per episode.

    python benchmarks/sb3_peers.py                               # Hopper-v5, 100,000 steps, three seeds of each
    python benchmarks/sb3_peers.py --only sbx --seeds 5 --jobs 2 # SBX's alone, two processes at a time
    python benchmarks/sb3_peers.py --table                       # the table of what is finished

Needs the extras `sb3` and `bench` (`make sb3-peers` installs them in an environment of its own). Both sides have the
settings that they have by default, but for SBX's `learning_starts`, which is our warm-up of 5000 steps. Every seed of
SBX's is a process of its own and writes each evaluation at once; finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

EVERY, EPISODES = 5000, 5  # steps between two evaluations, and their deterministic episodes: ours by default
LAST = 5  # evaluations, whose mean is compared too: a single one is noise
WARMUP = 5000
Curve = dict[int, float]


def train_sbx(env_id: str, steps: int, seed: int, out: Path) -> None:
    """SBX's SAC on an environment that tells nothing before an episode ends."""
    import gymnasium as gym
    from sbx import SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    from diaster import DelayedReward
    from diaster.sb3 import DecomposedReplayBuffer, FitDecomposer

    test_env = Monitor(gym.make(env_id))
    test_env.reset(seed=10_000 + seed)

    class Write(BaseCallback):
        """A row per evaluation."""

        def _on_step(self) -> bool:
            if self.num_timesteps % EVERY == 0:
                mean, _ = evaluate_policy(self.model, test_env, EPISODES, deterministic=True)
                fit = self.model.replay_buffer.replay.metrics().get("fit_r2", float("nan"))
                with out.open("a", encoding="ascii") as file:
                    file.write(f"{self.num_timesteps},{mean:.2f},{fit:.4f}\n")
            return True

    out.write_text("step,return_mean,fit_r2\n", encoding="ascii")
    model = SAC(
        "MlpPolicy",
        DelayedReward(gym.make(env_id)),
        seed=seed,
        learning_starts=WARMUP,
        replay_buffer_class=DecomposedReplayBuffer,
        replay_buffer_kwargs={"method": "diaster"},
    )
    model.learn(steps, callback=[FitDecomposer(), Write()])


def curve_of(path: Path, steps: int) -> Curve | None:
    """What a process has written, if it is finished."""
    if not path.exists():
        return None
    with path.open(encoding="ascii") as file:
        curve = {int(row["step"]): float(row["return_mean"]) for row in csv.DictReader(file)}
    return curve if steps in curve else None


def sbx_curve(env_id: str, steps: int, seed: int, out: Path) -> Curve | None:
    path = out / f"sbx-{env_id}-{steps}-{seed}.csv"
    if curve_of(path, steps) is None:
        command = [sys.executable, __file__, "--env", env_id, "--steps", str(steps), "--worker", str(seed), str(path)]
        subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return curve_of(path, steps)


def our_curves(env_id: str, steps: int, seeds: int, out: Path, may_train: bool) -> list[Curve]:
    path = out / f"ours-{env_id}-{steps}"
    if may_train and not (path / "DONE").exists():
        flags = (
            f"{env_id} --agent sac --steps {steps} --seeds {seeds} --warmup-steps {WARMUP} --evaluation.every {EVERY}"
        )
        subprocess.run([sys.executable, "-m", "diaster", "train", *flags.split(), "--out", str(path)], check=True)
    if not (path / "DONE").exists():
        return []
    import diaster

    table = diaster.load(path).progress
    return [
        dict(zip(table["step"][of_seed].tolist(), table["return_mean"][of_seed].tolist(), strict=True))
        for of_seed in (table["seed"] == seed for seed in sorted(set(table["seed"].tolist())))
    ]


def print_table(env_id: str, steps: int, sides: dict[str, list[Curve]]) -> None:
    print(f"\n{env_id}, {steps:,} steps, mean ± standard error over seeds; and each seed's")
    print(f"| agent | at the end | mean of the last {LAST} evaluations |\n|---|---|---|")
    found = {}
    for name, curves in sides.items():
        if not curves:
            continue
        ends = np.array([curve[steps] for curve in curves])
        lasts = np.array([np.mean([curve[steps - EVERY * back] for back in range(LAST)]) for curve in curves])
        found[name] = ends, lasts
        cells = [
            f"{side.mean():,.0f} ± {side.std(ddof=1) / len(side) ** 0.5:,.0f} ({', '.join(f'{x:,.0f}' for x in side)})"
            for side in found[name]
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)
    if len(found) == 2:
        for what, (ours, theirs) in zip(
            ("at the end", "last evaluations"), zip(*found.values(), strict=True), strict=True
        ):
            error = np.sqrt(sum(side.var(ddof=1) / len(side) for side in (ours, theirs)))
            print(f"difference, {what}: {theirs.mean() - ours.mean():+,.0f} ± {error:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("ours", "sbx"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/sb3-peers"))
    parser.add_argument("--worker", nargs=2, metavar=("SEED", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train_sbx(given.env, given.steps, int(given.worker[0]), Path(given.worker[1]))
        return
    given.out.mkdir(parents=True, exist_ok=True)

    def sbx(seed: int) -> Curve | None:
        if given.table:
            return curve_of(given.out / f"sbx-{given.env}-{given.steps}-{seed}.csv", given.steps)
        return sbx_curve(given.env, given.steps, seed, given.out)

    ours, theirs = (given.only in (None, side) for side in ("ours", "sbx"))
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        curves = list(pool.map(sbx, range(given.seeds))) if theirs else []
    sides = {
        "ours": our_curves(given.env, given.steps, given.seeds, given.out, not given.table) if ours else [],
        "SBX": [curve for curve in curves if curve is not None],
    }
    print_table(given.env, given.steps, sides)


if __name__ == "__main__":
    main()

"""How long until a policy is good: minutes from the start of a process to the first evaluation that passes a return.

    python benchmarks/time_to_return.py --env Hopper-v5 --goal 3000           # three seeds, one after the other
    python benchmarks/time_to_return.py --sides sac xqc-small --seeds 0 --minutes 20
    python benchmarks/time_to_return.py --sides xqc xqc-bfloat16 --together    # a GPU: the mean of all seeds

Our sides see one number per episode, SBX's the dense rewards. All evaluate every 5,000 steps, five deterministic
episodes. Imports, compilation and evaluations are counted. SBX needs the environment of `make bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EVERY, EPISODES, MOST_STEPS = 5000, 5, 1_000_000
OURS: dict[str, dict[str, Any]] = {
    "sac": {"name": "sac"},
    "xqc": {"name": "xqc", "size": "full"},
    "xqc-bfloat16": {"name": "xqc", "size": "full", "precision": "bfloat16"},
    "xqc-small": {"name": "xqc", "size": "small"},
}
SBX = {"sbx-sac": "SAC", "sbx-crossq": "CrossQ"}
ANNEALED = 300_000  # updates: a run that ends when it is good enough does not know its length


def train_ours(side: str, env: str, seeds: list[int], goal: float) -> dict[str, float] | None:
    """Until the mean over seeds passes; steps and return then."""
    from diaster.config import build_config
    from diaster.errors import Stopped
    from diaster.training.progress import Silent
    from diaster.training.train import run_training

    found: list[dict[str, float]] = []

    class Watch(Silent):
        def evaluated(self, rows: Any) -> None:
            mean = statistics.mean(row["return_mean"] for row in rows)
            print(f"  {rows[0]['step']:>9,} {mean:10.1f}", file=sys.stderr, flush=True)
            if mean >= goal and not found:
                found.append({"time": time.time(), "steps": rows[0]["step"], "return": mean})
                os.kill(os.getpid(), signal.SIGTERM)

    agent = dict(OURS[side])
    if agent["name"] == "xqc":
        agent["annealing_updates"] = ANNEALED
    evaluation = {"every": EVERY, "episodes": EPISODES}
    config = build_config(
        env=env,
        steps=MOST_STEPS,
        seeds=seeds,
        agent=agent,
        evaluation=evaluation,
        warmup_steps=5000,
        checkpoint_every=0,
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Stopped):
        run_training(config, Path(folder) / "run", Watch())
    return found[0] if found else None


def train_sbx(side: str, env: str, seeds: list[int], goal: float) -> dict[str, float] | None:
    """Until the policy passes, on dense rewards."""
    import gymnasium as gym
    import sbx
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    found: list[dict[str, float]] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % EVERY:
                return True
            returns, _ = evaluate_policy(self.model, evaluated, EPISODES, warn=False)
            print(f"  {self.num_timesteps:>9,} {returns:10.1f}", file=sys.stderr, flush=True)
            if returns >= goal:
                found.append({"time": time.time(), "steps": self.num_timesteps, "return": float(returns)})
            return not found

    evaluated = gym.make(env)
    [seed] = seeds
    # Updates in blocks of 100 take the least time there; CrossQ's settings are its own.
    blocks = {"train_freq": 100, "gradient_steps": 100, "learning_starts": 5000}
    getattr(sbx, SBX[side])("MlpPolicy", gym.make(env), seed=seed, **blocks).learn(MOST_STEPS, callback=Watch())
    return found[0] if found else None


def measure(side: str, arguments: argparse.Namespace, seeds: list[int]) -> str:
    """One run in a process of its own, as a cell of the table."""
    start = time.time()
    command = [sys.executable, __file__, "--env", arguments.env, "--goal", str(arguments.goal), "--one", side]
    done = subprocess.Popen([*command, "--seeds", *map(str, seeds)], stdout=subprocess.PIPE, text=True)
    try:
        out, _ = done.communicate(timeout=60 * arguments.minutes)
    except subprocess.TimeoutExpired:
        done.kill()
        done.communicate()
        return f"not within {arguments.minutes:g} min"
    found = json.loads(out.splitlines()[-1]) if out.strip() else None
    if not found:
        return "failed" if done.returncode else "never"
    return f"{(found['time'] - start) / 60:.1f} min, {found['steps']:,.0f} steps, {found['return']:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--goal", type=float, default=3000.0)
    parser.add_argument("--sides", nargs="+", choices=[*OURS, *SBX], default=["sac", "xqc-small", *SBX])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--together", action="store_true", help="all seeds in one run; our sides alone")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of a run")
    parser.add_argument("--one", choices=[*OURS, *SBX], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        train = train_ours if arguments.one in OURS else train_sbx
        print(json.dumps(train(arguments.one, arguments.env, arguments.seeds, arguments.goal)))
        return
    groups = [arguments.seeds] if arguments.together else [[seed] for seed in arguments.seeds]
    print(f"| {arguments.env}, {arguments.goal:,.0f} | " + " | ".join(f"seeds {group}" for group in groups) + " |")
    print("|---" * (len(groups) + 1) + "|")
    for side in arguments.sides:
        print(f"| {side} | " + " | ".join(measure(side, arguments, group) for group in groups) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Our agents compared with those of SBX on dense rewards: same steps, same hyper-parameters, several seeds.

    make peers                                          # all pairs, three seeds (long; uses all cores)
    python benchmarks/peers.py --only dqn --jobs 3      # one pair, three processes at a time

Needs the extra `bench` (`make bench` installs it in an environment of its own). Every run is a process of its own; the
peers run on the CPU, ours wherever JAX finds a device. Results are kept in --out, and finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Pair(NamedTuple):
    """One agent, on one environment, in both libraries."""

    env: str
    flags: str  # ours
    peer: str  # SBX's class and what it is given


EVALUATION_EPISODES = 10
# Ours exchanges 200 steps for 200 updates at a time.
CONTINUOUS = (
    "batch_size=256, learning_rate=3e-4, gamma=0.99, tau=0.005, train_freq=200, gradient_steps=200, "
    "learning_starts=5000, buffer_size=1_000_000"
)
NOISE = "action_noise=NormalActionNoise(np.zeros(n_actions), 0.1 * np.ones(n_actions))"
NETS = "policy_kwargs=dict(net_arch=[256, 256])"
DQN = (
    "batch_size=128, learning_rate=3e-4, gamma=0.99, tau=0.005, target_update_interval=1, "
    "train_freq=1, gradient_steps=1, learning_starts=1000, buffer_size=1_000_000, "
    "exploration_fraction=0.2, exploration_final_eps=0.05"
)
PAIRS = {
    "sac": Pair("HalfCheetah-v5", "", f"SAC({{}}, {CONTINUOUS}, {NETS})"),
    "td3": Pair("HalfCheetah-v5", "", f"TD3({{}}, {CONTINUOUS}, {NOISE}, {NETS})"),
    "ddpg": Pair("HalfCheetah-v5", "", f"DDPG({{}}, {CONTINUOUS}, {NOISE}, {NETS})"),
    "dqn": Pair(
        "CartPole-v1",
        # SBX's DQN is not double.
        "--agent.no-double --agent.hidden 256 --agent.batch-size 128 --agent.learning-rate 0.0003 "
        "--agent.critic-loss huber --agent.target-rate 0.005 --agent.target-every 1 "
        "--agent.exploration-final 0.05 --agent.updates 1 --agent.every 1",
        f"DQN({{}}, {DQN}, {NETS})",
    ),
}

PEER = """
import json, sys
import gymnasium as gym, numpy as np
from sbx import DDPG, DQN, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
env, steps, seed, episodes = gym.make(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
n_actions = env.action_space.shape[0] if env.action_space.shape else 0
model = MODEL
model.learn(steps)
mean, _ = evaluate_policy(model, gym.make(sys.argv[1]), episodes, deterministic=True, warn=False)
print(json.dumps(float(mean)))
"""


def run_peer(pair: Pair, steps: int, seed: int) -> float:
    """The return of SBX's agent after n steps."""
    script = PEER.replace("MODEL", pair.peer.format("'MlpPolicy', env, seed=seed"))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    arguments = [pair.env, str(steps), str(seed), str(EVALUATION_EPISODES)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def run_ours(name: str, pair: Pair, steps: int, seeds: int, out: Path) -> list[float]:
    """The returns of our agent, one per seed, on the hidden rewards."""
    if not (out / "DONE").exists():
        warm_up = min({"HalfCheetah-v5": 5000, "CartPole-v1": 1000}[pair.env], steps // 2)
        flags = (
            f"{pair.env} --method dense --method.return-scale 1 --agent {name} --steps {steps} --seeds {seeds} "
            f"--warmup-steps {warm_up} --evaluation.every {steps} --evaluation.episodes {EVALUATION_EPISODES} "
            f"--quiet {pair.flags}"
        )
        if name == "dqn":  # SBX counts the fall of its exploration from the first step on
            flags += f" --agent.exploration-steps {max(1, steps // 5 - warm_up)}"
        command = [sys.executable, "-m", "diaster", "train", *flags.split(), "--out", str(out)]
        subprocess.run(command, check=True)
    import diaster

    table = diaster.load(out).progress
    return [float(value) for value in table["return_mean"][table["step"] == steps]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PAIRS)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    arguments = parser.parse_args()
    chosen = [arguments.only] if arguments.only else list(PAIRS)
    arguments.out.mkdir(parents=True, exist_ok=True)

    def peer(name: str, seed: int) -> float:
        kept = arguments.out / f"sbx-{name}-{arguments.steps}-{seed}.json"
        if not kept.exists():
            kept.write_text(json.dumps(run_peer(PAIRS[name], arguments.steps, seed)))
        return float(json.loads(kept.read_text()))

    def ours(name: str) -> list[float]:
        return run_ours(
            name, PAIRS[name], arguments.steps, arguments.seeds, arguments.out / f"{name}-{arguments.steps}"
        )

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        our_returns = {name: pool.submit(ours, name) for name in chosen}
        peer_returns = {name: [pool.submit(peer, name, seed) for seed in range(arguments.seeds)] for name in chosen}
        print("| agent | environment | steps | ours, mean ± standard error | SBX | ratio |")
        print("|---|---|---|---|---|---|")
        for name in chosen:
            both = [np.array(our_returns[name].result()), np.array([item.result() for item in peer_returns[name]])]
            cells = [f"{r.mean():,.0f} ± {r.std(ddof=1) / np.sqrt(len(r)):,.0f}" for r in both]
            ratio = both[0].mean() / both[1].mean()
            print(f"| {name} | {PAIRS[name].env} | {arguments.steps:,} | {cells[0]} | {cells[1]} | {ratio:.2f} |")


if __name__ == "__main__":
    main()

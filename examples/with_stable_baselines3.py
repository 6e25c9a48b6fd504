"""SAC of Stable-Baselines3, or of SBX, on an environment that gives its return only at the end of an episode.

    pip install 'diaster[sb3]'                                       # and sbx-rl, for --library sbx
    python examples/with_stable_baselines3.py                             # InvertedPendulum-v5: a few minutes
    python examples/with_stable_baselines3.py --library sbx --env Hopper-v5 --steps 100000 --warmup 5000

The environment is made episodic first: every reward is 0 except the last one, which is the return. If you know
Stable-Baselines3, only two things are new: the class of the replay buffer, and the callback.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import gymnasium as gym

from diaster import DelayedReward, DiasterError
from diaster.sb3 import DecomposedReplayBuffer, FitDecomposer


def main() -> None:
    """Train, evaluate and save, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="InvertedPendulum-v5")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--warmup", type=int, default=500, help="steps of random actions")
    parser.add_argument("--method", default="diaster", help="'diaster list methods' shows all there are")
    parser.add_argument("--library", choices=("sb3", "sbx"), default="sb3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/stable-baselines3"))
    given = parser.parse_args()

    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    sac = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[given.library]).SAC
    model = sac(
        "MlpPolicy",
        DelayedReward(gym.make(given.env)),
        learning_starts=given.warmup,
        seed=given.seed,
        verbose=1,
        replay_buffer_class=DecomposedReplayBuffer,
        replay_buffer_kwargs={"method": given.method},
    )
    model.learn(given.steps, callback=FitDecomposer(), log_interval=50)
    mean, spread = evaluate_policy(model, Monitor(gym.make(given.env)), 10, deterministic=True)
    print(f"return of 10 deterministic episodes: {mean:.1f} ± {spread:.1f}")

    # The learnt reward of single steps, in the environment's units; actions as SB3 stores them, from −1 to 1.
    batch = model.replay_buffer.sample(5)
    parts = batch.observations.numpy(), batch.actions.numpy(), batch.next_observations.numpy()
    print("rewards of five steps:", model.replay_buffer.replay.rewards(*parts).round(2))

    # To go on another day: load both, and learn with the callback again.
    given.out.mkdir(parents=True, exist_ok=True)
    model.save(given.out / "model")
    model.save_replay_buffer(given.out / "replay")
    print(f"saved in {given.out}")


if __name__ == "__main__":
    try:
        main()
    except DiasterError as error:
        sys.exit(str(error))

"""Recover known step rewards from episode totals alone: a data set with no environment and no policy.

    python benchmarks/synthetic.py             # the default and the paper's preset, a minute each

Episodes of 20 to 200 steps; the hidden reward of a step is a smooth non-linear function of (s, a). The number
printed is Pearson's correlation of r̂ with it on held-out episodes.
"""

from __future__ import annotations

import argparse
import time

import jax
import numpy as np

from diaster.config import build_config
from diaster.evaluate import pearson
from diaster.learner import Learner
from diaster.registry import make_agent, make_decomposer
from diaster.reward_model import RewardModel
from diaster.types import EnvSpec, Episode

OBS_DIM, ACTION_DIM, HORIZON = 6, 2, 200
SPEC = EnvSpec("synthetic", OBS_DIM, ACTION_DIM, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), HORIZON)


def true_reward(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.tanh(obs[:, 0]) + 0.5 * np.sin(obs[:, 1]) + 0.3 * obs[:, 2] * action[:, 0] - 0.5 * (action**2).sum(axis=1)


def make_episodes(n: int, seed: int) -> list[tuple[Episode, np.ndarray]]:
    """Smooth random paths, drifting by another constant in each episode, so that totals tell something."""
    random = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        length = int(random.integers(20, HORIZON + 1))
        obs = np.zeros((length + 1, OBS_DIM))
        drift = random.normal(size=OBS_DIM)
        obs[0] = random.normal(size=OBS_DIM)
        for step in range(length):
            obs[step + 1] = 0.9 * obs[step] + 0.1 * drift + 0.3 * random.normal(size=OBS_DIM)
        action = np.clip(0.5 * random.normal(size=ACTION_DIM) + 0.5 * random.normal(size=(length, ACTION_DIM)), -1, 1)
        reward = true_reward(obs[:-1], action)
        episode = Episode(obs.astype(np.float32), action.astype(np.float32), float(reward.sum()), True)
        episodes.append((episode, reward))
    return episodes


def recovered_correlation(preset: str, updates: int, seconds: float, **decomposer: object) -> tuple[float, int, float]:
    """Correlation on held-out episodes after so many updates or seconds, and what was used of both."""
    config = build_config(preset, seeds=(0,), decomposer=decomposer)
    model = make_decomposer(config, HORIZON)
    learner = Learner(model, make_agent(config), SPEC, (0,), 100_000, 1, jax.devices()[0])
    for episode, _ in make_episodes(500, seed=0):
        learner.ingest([[episode]])
    start, done, share = time.perf_counter(), 0, max(1, min(50, updates))
    while done < updates and time.perf_counter() - start < seconds:
        jax.block_until_ready(learner.fit_decomposer(np.array([True]), done, share))
        done += share
    spent = time.perf_counter() - start
    held_out = make_episodes(50, seed=1)
    rewards = RewardModel(model, HORIZON).of_episodes(learner.decomposer_state(0), [episode for episode, _ in held_out])
    return pearson(np.concatenate(rewards), np.concatenate([reward for _, reward in held_out])), done, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=55.0)
    arguments = parser.parse_args()
    print("| preset  | correlation on held-out episodes | updates | seconds |\n|---|---|---|---|")
    for preset in ("default", "paper"):
        correlation, updates, seconds = recovered_correlation(preset, 10**9, arguments.seconds)
        print(f"| {preset:<7} | {correlation:.3f} | {updates:,} | {seconds:.0f} |")


if __name__ == "__main__":
    main()

"""Recover known step rewards from episode totals alone: a data set with no environment and no policy.

    python benchmarks/synthetic.py                               # Diaster's two presets, a minute each
    python benchmarks/synthetic.py --method rrd unbiased=true    # another method, with settings of its own

Episodes of 20 to 200 steps; the hidden reward of a step is a smooth non-linear function of (s, a). The number
printed is Pearson's correlation of r̂ with it on held-out episodes.
"""

from __future__ import annotations

import argparse
import time
import tomllib

import jax
import numpy as np

from diaster.agents import make_agent
from diaster.analysis.diagnostics import pearson
from diaster.config import METHODS, build_config
from diaster.decomposers import make_decomposer
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.types import EnvSpec, Episode, EvaluationEpisode

OBS_DIM, ACTION_DIM, HORIZON = 6, 2, 200
SPEC = EnvSpec("synthetic", OBS_DIM, ACTION_DIM, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), HORIZON)


def true_reward(obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    reward: np.ndarray = np.tanh(obs[:, 0]) + 0.5 * np.sin(obs[:, 1]) + 0.3 * obs[:, 2] * action[:, 0]
    reward -= 0.5 * (action**2).sum(axis=1)
    return reward


def make_episodes(n: int, seed: int) -> list[EvaluationEpisode]:
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
        episodes.append(EvaluationEpisode(episode, reward.astype(np.float32)))
    return episodes


def recovered_correlation(
    preset: str, updates: int, seconds: float, method: str = "diaster", **settings: object
) -> tuple[float, int, float]:
    """Correlation on held-out episodes after n updates or seconds, whichever ends first, and what was used of both."""
    config = build_config(preset, seeds=(0,), agent="sac", method={"name": method, **settings})
    model = make_decomposer(config.method, HORIZON)
    learner = Learner(model, make_agent(config.agent, SPEC), SPEC, (0,), 100_000, 1, jax.devices()[0])
    learner.store_episodes([[item.episode for item in make_episodes(500, seed=0)]])
    updates = 0 if model.update is None else updates
    start, done, share = time.perf_counter(), 0, max(1, min(50, updates))
    while done < updates and time.perf_counter() - start < seconds:
        jax.block_until_ready(learner.fit_decomposer(np.array([True]), done, share))
        done += share
    spent = time.perf_counter() - start
    held_out = make_episodes(50, seed=1)
    rewards = RewardModel(model, HORIZON).of_episodes(learner.decomposer_state(0), held_out)
    return pearson(np.concatenate(rewards), np.concatenate([item.true_reward for item in held_out])), done, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=55.0)
    known = sorted(set(METHODS) - {"dense"})  # which would be given what it has to find
    parser.add_argument("--method", choices=known, help="one method with its default settings")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="a setting of that method, as in TOML")
    arguments = parser.parse_args()
    if arguments.settings and not arguments.method:
        parser.error("settings belong to a method; name it with --method")
    if arguments.method:
        heading, method = "method", arguments.method
        rows = {" ".join([method, *arguments.settings]): ("default", tomllib.loads("\n".join(arguments.settings)))}
    else:
        heading, method = "preset", "diaster"
        rows = {preset: (preset, {}) for preset in ("default", "paper")}
    print(f"| {heading:<7} | correlation on held-out episodes | updates | seconds |\n|---|---|---|---|")
    for name, (preset, settings) in rows.items():
        correlation, updates, seconds = recovered_correlation(preset, 10**9, arguments.seconds, method, **settings)
        print(f"| {name:<7} | {correlation:.3f} | {updates:,} | {seconds:.0f} |")


if __name__ == "__main__":
    main()

"""How well methods find hidden rewards in a few episodes of random actions: no policy is learnt.

    python benchmarks/offline_fit.py --env Ant-v5 --steps 15000
    python benchmarks/offline_fit.py --env HalfCheetah-v5 Swimmer-v5 --steps 20000 --seeds 3

Each method sees the episodes in the order and with the updates of a run. On episodes of another seed r̂ is compared with
the hidden rewards: "within" and "slope" are as in docs/run-directory.md, "R²" is that of Σ r̂ against the return.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import chain

import jax
import numpy as np

from diaster.actors.acting import HostPolicy
from diaster.actors.collector import Collector
from diaster.actors.rollout import Handling
from diaster.agents import make_agent
from diaster.analysis.diagnostics import diagnose
from diaster.config import RunConfig, build_config
from diaster.decomposers import Decomposer, make_decomposer
from diaster.envs.making import make_env
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.training.resolve import resolve
from diaster.training.schedule import updates_due
from diaster.types import EnvSpec, Episode, EvaluationEpisode

METHODS = {
    "diaster, no base": {"name": "diaster"},
    "diaster, penalty that fades": {"name": "diaster", "penalty_episodes": 10},
    "diaster, linear base": {"name": "diaster", "base": "linear"},
    "rrd": {"name": "rrd"},
    "rrd, unbiased": {"name": "rrd", "unbiased": True},
    "rrd, linear base": {"name": "rrd", "base": "linear"},
}
CHUNK = 200


def collect(spec: EnvSpec, policy: HostPolicy, seed: int, n_steps: int) -> list[list[Episode]]:
    """The episodes that end in each chunk of uniformly random actions, with their hidden rewards."""
    collector = Collector(partial(make_env, spec.id, spec.horizon), spec, policy, seed, Handling(keep_hidden=True))
    chunks = [collector.collect(None, number, CHUNK) for number in range(n_steps // CHUNK)]
    collector.close()
    return chunks


def fit(config: RunConfig, spec: EnvSpec, chunks: Sequence[Sequence[Episode]], seed: int) -> tuple[Learner, Decomposer]:
    """A learner that has made the updates of a run on these episodes."""
    decomposer = make_decomposer(config.method, spec.horizon)
    capacity = CHUNK * len(chunks) + 10 * spec.horizon
    agent = make_agent(config.agent, spec)
    learner = Learner(decomposer, agent, spec, [seed], capacity, config.agent.batch_size, jax.devices("cpu")[0])
    n_episodes, n_updates = 0, 0
    for number, episodes in enumerate(chunks):
        learner.store_episodes([[episode._replace(hidden_reward=None) for episode in episodes]])
        n_episodes += len(episodes)
        due = updates_due(config.method, CHUNK * (number + 1))
        if n_episodes >= 2 and due > n_updates:
            learner.fit_decomposer(np.ones(1, bool), n_updates, due - n_updates)
        n_updates = due
    return learner, decomposer


def judge(learner: Learner, decomposer: Decomposer, horizon: int, episodes: Sequence[Episode]) -> list[float]:
    """Within-episode correlation, slope and R² of sums."""
    items = [EvaluationEpisode(episode, episode.hidden_reward) for episode in episodes]
    found = diagnose(items, RewardModel(decomposer, horizon).of_episodes(learner.decomposer_state(0), items))
    return [found.within_correlation, found.reward_slope, found.fit_r2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    for env in arguments.env:
        config, spec = resolve(build_config(env=env, steps=300_000))
        acting = make_agent(config.agent, spec).acting
        data = [collect(spec, acting, seed, arguments.steps) for seed in range(arguments.seeds + 1)]
        print(f"| {env}, {sum(map(len, data[0]))} episodes | within | slope | R² |\n|---|---|---|---|")
        for name in arguments.methods:
            config, _ = resolve(build_config(env=env, steps=300_000, method=METHODS[name]))
            found = [
                judge(*fit(config, spec, data[seed], seed), spec.horizon, list(chain.from_iterable(data[seed + 1])))
                for seed in range(arguments.seeds)
            ]
            cells = (", ".join(f"{value:.2f}" for value in column) for column in zip(*found, strict=True))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()

"""How well methods find hidden rewards in given episodes: no policy is learnt.

    python benchmarks/offline_fit.py --env Ant-v5 --steps 15000                     # episodes of random actions
    python benchmarks/offline_fit.py --env HalfCheetah-v5 Swimmer-v5 --steps 20000 --seeds 3
    python benchmarks/offline_fit.py --env Ant-v5 --steps 5000 --noise sizes --methods "diaster base=linear" rrd
    python benchmarks/offline_fit.py --data build/data/ant-*.npz --steps 5000 20000 50000   # of `offline_data.py`

Each method sees the episodes in the order and with the updates of a run. A method is its name and settings, as on the
command line of `diaster train`. After so many steps r̂ is compared with the hidden rewards of episodes that were not
fitted: of random actions, those of another seed; of recorded runs, the evaluation episodes so far, and behind them the
training episodes of the next 5,000 steps. "within" and "slope" are as in docs/run-directory.md, "R²" is that of Σ r̂
against the return.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from offline_data import Data, load

from diaster.actors.collector import Collector
from diaster.actors.rollout import Handling, WarmupNoise
from diaster.agents import make_agent
from diaster.analysis.diagnostics import diagnose
from diaster.config import RunConfig, build_config
from diaster.decomposers import Decomposer, make_decomposer
from diaster.envs.making import make_env
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.training.resolve import resolve
from diaster.training.schedule import fits_due, may_fit
from diaster.types import EnvSpec, Episode, EvaluationEpisode

METHODS = (
    "diaster",
    "diaster penalty_episodes=10",
    "diaster base=linear",
    "rrd",
    "rrd unbiased=true",
    "rrd base=linear",
)
CHUNK = 200
AHEAD = 5000  # steps whose training episodes are looked at, beyond those that were fitted


def collect(config: RunConfig, spec: EnvSpec, noise: WarmupNoise, seed: int, n_steps: int) -> Data:
    """Episodes of random actions, with their hidden rewards."""
    make, policy = partial(make_env, spec.id, spec.horizon), make_agent(config.agent, spec).acting
    collector = Collector(make, spec, policy, seed, Handling(keep_hidden=True, warmup_noise=noise))
    chunks = [collector.collect(None, number, CHUNK) for number in range(n_steps // CHUNK)]
    collector.close()
    return Data(spec.id, CHUNK, chunks, [], [])


def fit(
    config: RunConfig, spec: EnvSpec, data: Data, steps: Sequence[int], seed: int
) -> Iterator[tuple[int, float, Learner, Decomposer]]:
    """A learner that has made the updates of a run on these episodes, after each number of steps; and its seconds."""
    decomposer, size = make_decomposer(config.method, spec.horizon), data.chunk_steps
    capacity = max(steps) + 10 * spec.horizon
    agent = make_agent(config.agent, spec)
    learner = Learner(decomposer, agent, spec, [seed], capacity, config.agent.batch_size, jax.devices("cpu")[0])
    episodes, made, n_updates = np.zeros(1, int), np.zeros(1, int), 0
    config = dataclasses.replace(config, chunk_steps=size)
    start = time.process_time()
    for number, chunk in enumerate(data.chunks, start=1):
        learner.store_episodes([[episode._replace(hidden_reward=None) for episode in chunk]])
        episodes += len(chunk)
        is_warm = size * number >= min(steps)  # what is owed until then is paid then, as in a run
        for n in fits_due(config, n_updates, size * number) if is_warm else []:
            may = may_fit(config.method, episodes >= 2, made, n, episodes)
            if may.any():
                learner.fit_decomposer(may, n_updates, n)
            n_updates, made = n_updates + n, made + n * may
        if size * number in steps:
            jax.block_until_ready(learner.state.decomposer)
            yield size * number, time.process_time() - start, learner, decomposer
        if size * number >= max(steps):
            return


def judge(learner: Learner, decomposer: Decomposer, horizon: int, episodes: Sequence[Episode]) -> list[float]:
    """Within-episode correlation, slope and R² of sums."""
    items = [EvaluationEpisode(episode, episode.hidden_reward) for episode in episodes]
    if not items:
        return [float("nan")] * 3
    found = diagnose(items, RewardModel(decomposer, horizon).of_episodes(learner.decomposer_state(0), items))
    return [found.within_correlation, found.reward_slope, found.fit_r2]


def parse_method(text: str) -> dict[str, object]:
    """A method's name and settings, as a table."""
    name, *settings = text.split()
    table: dict[str, object] = {"name": name}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            table |= tomllib.loads(setting)
        except tomllib.TOMLDecodeError:
            table[key] = value  # a text without quotes
    return table


def tables(env: str, data: Sequence[tuple[Data, Data | None]], steps: Sequence[int], methods: Sequence[str]) -> None:
    """A table for each number of steps: a line for each method, a number in each cell for each seed's data."""
    rows: dict[int, list[str]] = {step: [] for step in steps}
    for text in methods:
        config, spec = resolve(build_config(env=env, steps=300_000, agent="sac", method=parse_method(text)))
        found: dict[int, list[list[float]]] = {step: [] for step in steps}
        for seed, (fitted, other) in enumerate(data):
            for step, seconds, learner, decomposer in fit(config, spec, fitted, steps, seed):
                if other is None:
                    held_out = [item.episode for item in fitted.held_out(step)]
                    judged = [held_out, fitted.ended(step, step + AHEAD)]
                else:
                    judged = [other.ended(0, other.chunk_steps * len(other.chunks))]
                numbers = [judge(learner, decomposer, spec.horizon, episodes) for episodes in judged]
                found[step].append([*(value for triple in zip(*numbers, strict=True) for value in triple), seconds])
        for step, of_data in found.items():
            columns = [", ".join(f"{value:.2f}" for value in column) for column in zip(*of_data, strict=True)]
            n, last = (len(columns) - 1) // 3, f"{np.mean([row[-1] for row in of_data]):.0f}"
            cells = [" / ".join(columns[first : first + n]) for first in range(0, 3 * n, n)]
            rows[step].append(f"| {text} | {' | '.join(cells)} | {last} |")
            print("  ", env, step, rows[step][-1], flush=True)
    for step in steps:
        counts = ", ".join(str(len(fitted.ended(0, step))) for fitted, _ in data)
        print(f"\n| {env}, {step:,} steps, {counts} episodes | within | slope | R² | CPU s |\n|---|---|---|---|---|")
        print("\n".join(rows[step]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"])
    parser.add_argument("--data", nargs="+", type=Path, help="files of `offline_data.py` in place of random actions")
    parser.add_argument("--noise", choices=["uniform", "sizes", "varied"], default="uniform")
    parser.add_argument("--steps", type=int, nargs="+", default=[10_000])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="'NAME KEY=VALUE ...'")
    arguments = parser.parse_args()
    if arguments.data:
        recorded = [load(path) for path in arguments.data]
        for env in dict.fromkeys(data.env for data in recorded):
            of_env = [(data, None) for data in recorded if data.env == env]
            tables(env, of_env, sorted(arguments.steps), arguments.methods)
        return
    for env in arguments.env:
        config, spec = resolve(build_config(env=env, steps=300_000, agent="sac"))
        n_steps = max(arguments.steps)
        made = [collect(config, spec, arguments.noise, seed, n_steps) for seed in range(arguments.seeds + 1)]
        pairs = [(made[seed], made[seed + 1]) for seed in range(arguments.seeds)]
        tables(env, pairs, sorted(arguments.steps), arguments.methods)


if __name__ == "__main__":
    main()

"""A relabelled Minari data set trains in d3rlpy: `make data-test`.

    export MINARI_DATASETS_PATH=$PWD/build/minari    # Minari cannot collect into a relative path
    .venv/bin/python benchmarks/in_d3rlpy.py make
    build/venv-d3rlpy/bin/python benchmarks/in_d3rlpy.py train

d3rlpy needs another version of Gymnasium than this package, so there are two environments: the first command makes a
Minari data set of Pendulum-v1, forgets its rewards but for their sums, and writes another one with learnt rewards; the
second one trains TD3+BC on it for 300 steps, without this package.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

NAME, DENSE = "diaster-test/pendulum-v0", "diaster-test/pendulum-dense-v0"
EPISODES = 150


def make() -> None:
    """Collect episodes of random actions, fit, relabel."""
    import gymnasium as gym
    import minari

    from diaster.offline.decomposition import Decomposition
    from diaster.offline.fit import fit

    for name in (NAME, DENSE):
        if name in minari.list_local_datasets():
            minari.delete_dataset(name)
    env = minari.DataCollector(gym.make("Pendulum-v1"))
    for seed in range(EPISODES):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        is_over = False
        while not is_over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            is_over = terminated or truncated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari's, on who has made it
        env.create_dataset(NAME)
    model: Decomposition = fit(NAME, updates=2000)
    model.relabel(NAME, DENSE)
    print(f"wrote {DENSE}: fit_r2 {model.fit_r2:.3f}")


def train() -> None:
    """Load it as any Minari data set, and train."""
    import d3rlpy
    import minari
    from d3rlpy.datasets import get_minari

    stored, first = minari.load_dataset(DENSE), minari.load_dataset(NAME)
    check(stored.total_steps == first.total_steps and stored.total_episodes == first.total_episodes == EPISODES)
    check(stored.recover_environment().spec.id == "Pendulum-v1")
    episodes = list(stored.iterate_episodes())
    for new, old in zip(episodes, first.iterate_episodes(), strict=True):
        check(np.array_equal(new.observations, old.observations) and np.array_equal(new.actions, old.actions))
        check(np.array_equal(new.infos["original_rewards"][1:], old.rewards) and len(new.rewards) == len(old.rewards))
    by_itself, _ = get_minari(DENSE)
    aligned = d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminals=np.concatenate([episode.terminations for episode in episodes]),
        timeouts=np.concatenate([episode.truncations for episode in episodes]),
    )
    for name, dataset in (("get_minari", by_itself), ("MDPDataset", aligned)):
        shift = [
            next(k for k in range(EPISODES) if np.allclose(found.observations[k], episode.observations[0]))
            for found, episode in list(zip(dataset.episodes, episodes, strict=True))[:3]
        ]
        print(f"{name}: the first observations of the first three episodes are at rows {shift} of theirs")
        losses = trained(dataset)
        print(f"{name}: {len(dataset.episodes)} episodes; TD3+BC, losses {losses}")
        check(all(np.isfinite(value) for value in losses.values()))


def trained(dataset: Any) -> dict[str, float]:
    """The mean losses of the last of three epochs."""
    import d3rlpy

    agent = d3rlpy.algos.TD3PlusBCConfig().create(device="cpu")
    quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
    found = agent.fit(dataset, n_steps=300, n_steps_per_epoch=100, **quiet)
    check(agent.predict(np.zeros((1, 3), np.float32)).shape == (1, 1))
    return {name: round(float(value), 3) for name, value in found[-1][1].items() if name.endswith("loss")}


def check(is_so: Any) -> None:
    """Also where Python leaves out assertions."""
    if not is_so:
        raise SystemExit("the relabelled data set is not what it should be")


if __name__ == "__main__":
    {"make": make, "train": train}[sys.argv[1]]()

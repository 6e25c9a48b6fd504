"""A finished (or running) run, read from its directory: its table, its policies, its step rewards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.collect import evaluation_episodes
from diaster.config import RunConfig
from diaster.envs import describe_env, find_horizon, import_modules, make_env
from diaster.errors import DiasterError
from diaster.evaluate import Diagnostics, ReturnStatistics, diagnose, return_statistics
from diaster.records import DECOMPOSER, DONE, POLICY, Table, read_config, read_metadata, read_progress, read_tensors
from diaster.registry import make_agent, make_decomposer
from diaster.reward_model import RewardModel
from diaster.types import EnvSpec, EvaluationEpisode

# Evaluations after the run draw their episodes from numbers that no evaluation during it can have.
AFTER_THE_RUN = 1_000_000


def leaf_names(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf of a state with its dotted name."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


class Run:
    """What `train` returns and `load` reads. Seeds are named by their number, as on the command line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: RunConfig = read_config(path)
        self.metadata: dict[str, Any] = read_metadata(path)
        import_modules(self.config.imports)
        self._horizon = find_horizon(self.config.env, self.config.horizon)
        env = make_env(self.config.env, self._horizon)
        self.spec: EnvSpec = describe_env(env, self.config.env, self._horizon)
        self._raw_space = env.unwrapped.observation_space
        env.close()
        self._decomposer = make_decomposer(self.config, self._horizon)
        self._reward_model = RewardModel(self._decomposer, self._horizon)
        self._policy_tensors = read_tensors(path / POLICY)
        self._decomposer_tensors = read_tensors(path / DECOMPOSER)

    def __repr__(self) -> str:
        state = "complete" if self.done else "unfinished"
        return f"Run({str(self.path)!r}: {self.config.env}, {self.config.method}, seeds {self.seeds}, {state})"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained."""
        return self.config.seeds

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return (self.path / DONE).exists()

    @property
    def progress(self) -> Table:
        """A row per seed and evaluation."""
        return read_progress(self.path)

    def policy(self, seed: int | None = None) -> Callable[[Any], NDArray[np.float32]]:
        """The deterministic policy of one seed (the first, unless named): observation → action of the environment."""
        layers = self._layers(self._position(seed))
        acting = make_agent(self.config).acting

        def act(obs: Any) -> NDArray[np.float32]:
            return self.spec.to_env(acting(layers, self._flat(obs), None))

        return act

    def step_reward(self, obs: Any, action: Any, seed: int | None = None) -> NDArray[np.float64]:
        """r̂(s, a) in the environment's units, for one step or a batch; actions in the environment's bounds."""
        if self._reward_model.needs_history:
            raise DiasterError(
                "this run was trained with decomposer.reward_source=difference: its rewards depend on the whole "
                "history and single steps have none; train with reward_source=step_reward."
            )
        state = self._state(self._position(seed))
        return self._reward_model.of_steps(state, self._flat(obs), self.spec.from_env(np.asarray(action, np.float32)))

    def evaluate(self, episodes: int = 10, seed: int | None = None) -> dict[int, tuple[ReturnStatistics, Diagnostics]]:
        """Fresh deterministic episodes of every seed (or of one): their returns, and how well r̂ explains them."""
        if episodes < 1:
            raise DiasterError(f"{episodes} episodes were asked for; at least one is needed.")
        chosen = self.seeds if seed is None else (seed,)
        return {number: self._evaluate_one(number, episodes) for number in chosen}

    def _evaluate_one(self, seed: int, episodes: int) -> tuple[ReturnStatistics, Diagnostics]:
        position = self._position(seed)
        env = make_env(self.config.env, self._horizon)
        try:
            acting = make_agent(self.config).acting
            layers = self._layers(position)
            seen: list[EvaluationEpisode] = list(
                evaluation_episodes(env, self.spec, acting, layers, seed, AFTER_THE_RUN, episodes)
            )
        finally:
            env.close()
        state = self._state(position)
        rewards = self._reward_model.of_episodes(state, [item.episode for item in seen])
        return return_statistics(seen), diagnose(seen, rewards)

    def _position(self, seed: int | None) -> int:
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise DiasterError(f"the run '{self.path}' has no seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        return self.seeds.index(seed)

    def _layers(self, position: int) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
        tensors = self._policy_tensors
        n_layers = len(tensors) // 2
        try:
            return tuple((tensors[f"{n}.weight"][position], tensors[f"{n}.bias"][position]) for n in range(n_layers))
        except (KeyError, IndexError):
            raise DiasterError(f"'{self.path / POLICY}' does not belong to this run's configuration.") from None

    def _state(self, position: int) -> Any:
        template = jax.eval_shape(lambda key: self._decomposer.init(key, self.spec), jax.random.key(0))

        def fill(path: Any, leaf: Any) -> NDArray[Any]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            stored = self._decomposer_tensors.get(name)
            if stored is None:
                return np.zeros(leaf.shape, leaf.dtype)  # optimizers are not part of a finished run
            if position >= len(stored) or stored[position].shape != leaf.shape:
                raise DiasterError(f"'{self.path / DECOMPOSER}' does not belong to this run's configuration.")
            return np.asarray(stored[position], leaf.dtype)

        return jax.tree_util.tree_map_with_path(fill, template)

    def _flat(self, obs: Any) -> NDArray[np.float32]:
        if isinstance(obs, dict):
            obs = spaces.flatten(self._raw_space, obs)
        array = np.asarray(obs, np.float32)
        if array.shape[-1:] != (self.spec.obs_dim,):
            raise DiasterError(
                f"an observation of shape {array.shape} was given; '{self.spec.id}' has {self.spec.obs_dim} entries."
            )
        return array


def load(path: str | Path) -> Run:
    """A run, from the directory that `train` wrote."""
    return Run(Path(path))

"""A finished (or running) run, read from its directory: its table, its policies, its step rewards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.actors.acting import HostParameters
from diaster.actors.evaluation import evaluation_episodes
from diaster.actors.fleet import isolated
from diaster.actors.rollout import Handling, MakeEnv, Rollout
from diaster.agents import make_agent
from diaster.analysis.diagnostics import Diagnostics, ReturnStatistics, diagnose, has_step_rewards, return_statistics
from diaster.config import RunConfig
from diaster.decomposers import make_decomposer
from diaster.envs.isolation import describe
from diaster.envs.making import Env, find_horizon, gym_spec, import_modules, make_env
from diaster.errors import DiasterError
from diaster.learning.machine import device_memory
from diaster.learning.reward_model import GROUP, RewardModel
from diaster.nn.trees import leaf_names
from diaster.rundir.files import Form, check_finite, is_file
from diaster.rundir.records import DECOMPOSER, DONE, POLICY, read_config, read_metadata, read_tensors
from diaster.rundir.results import Table, read_progress
from diaster.rundir.trust import check_trust
from diaster.types import EnvSpec, EvaluationEpisode, FloatArray

# Evaluations after the run draw their episodes from numbers that no evaluation during it can have.
AFTER_THE_RUN = 1_000_000


def saved_forms(template: Any, n_seeds: int, fields: Sequence[str] | None = None) -> dict[str, Form]:
    """Shape and kind of every array that a run directory holds of a state, the seeds in front."""
    return {name: ((n_seeds, *leaf.shape), np.dtype(leaf.dtype)) for name, leaf in leaf_names(template, fields)}


class Run:
    """What `train` returns and `load` reads. Seeds are named by their number, as on the command line."""

    def __init__(self, path: Path, trust: bool = False) -> None:
        self.path = path
        self.config: RunConfig = read_config(path)
        self.metadata: dict[str, Any] = read_metadata(path)
        if not trust:
            check_trust(path, self.config)
        import_modules(self.config.imports)
        self._horizon = find_horizon(self.config.env, self.config.horizon)
        handling = self.config.isolate_envs, self.config.step_seconds
        self.spec: EnvSpec
        self.spec, self._raw_space = describe(self.config.env, self._horizon, self.config.imports, *handling)
        self._decomposer = make_decomposer(self.config.method, self._horizon)
        self._agent = make_agent(self.config.agent, self.spec)
        self._reward_model = RewardModel(self._decomposer, self._horizon)
        key, n_seeds = jax.random.key(0), len(self.seeds)
        self._policy_form = jax.eval_shape(lambda key: self._agent.policy(self._agent.init(key, self.spec)), key)
        self._state_form = jax.eval_shape(lambda key: self._decomposer.init(key, self.spec), key)
        self._policy_tensors = read_tensors(path / POLICY, saved_forms(self._policy_form, n_seeds))
        saved = saved_forms(self._state_form, n_seeds, self._decomposer.saved)
        self._decomposer_tensors = read_tensors(path / DECOMPOSER, saved)

    def __repr__(self) -> str:
        state = "complete" if self.done else "unfinished"
        return f"Run({str(self.path)!r}: {self.config.env}, {self.config.method.name}, seeds {self.seeds}, {state})"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained."""
        return self.config.seeds

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return is_file(self.path / DONE)

    @property
    def progress(self) -> Table:
        """A row per seed and evaluation."""
        return read_progress(self.path)

    def policy(self, seed: int | None = None) -> Callable[[Any], NDArray[Any]]:
        """The deterministic policy of one seed (the first, unless named): observation → action of the environment."""
        parameters = self._parameters(self._position(seed))
        acting = self._agent.acting

        def act(obs: Any) -> NDArray[Any]:
            return self.spec.to_env(acting.act(parameters, self._flat(obs), None))

        return act

    def step_reward(self, obs: Any, action: Any, next_obs: Any = None, seed: int | None = None) -> NDArray[np.float64]:
        """r̂ in the environment's units, for one step or a batch; actions as the environment takes them.

        `next_obs` is needed where the method looks at what a step led to: rrd, rd, and any with a linear base.
        """
        if not self._reward_model.has_step_reward:
            raise DiasterError(
                f"the rewards of this run ({self.config.method.name}) depend on more than a single step, on its "
                "history or on its episode's return; only methods with a net of their own for the step reward have one."
            )
        if self._reward_model.needs_next_obs and next_obs is None:
            raise DiasterError(
                f"the step reward of '{self.config.method.name}' looks at what a step led to; give next_obs as well."
            )
        state = self._state(self._position(seed))
        following = None if next_obs is None else self._flat(next_obs)
        return self._reward_model.of_steps(state, self._flat(obs), self._as_nets_see(action), following)

    def step_rewards(self, episodes: Sequence[EvaluationEpisode], seed: int | None = None) -> list[NDArray[np.float64]]:
        """r̂ of every step of whole episodes, in the environment's units: every method has these."""
        self._check_memory()
        return self._reward_model.of_episodes(self._state(self._position(seed)), episodes)

    def actor(self, seed: int | None = None) -> Callable[[FloatArray], FloatArray]:
        """The deterministic policy as the nets see it: flat observation → action in [−1, 1], or one-hot."""
        act, parameters = self._agent.acting.act, self._parameters(self._position(seed))
        return lambda obs: act(parameters, obs, None)

    def make_env(self, **kwargs: Any) -> Env:
        """An environment as the run was trained on; further arguments go to Gymnasium's `make`."""
        return make_env(self.config.env, self._horizon, **kwargs)

    @property
    def raw_observation_space(self) -> spaces.Space[Any]:
        """What the environment itself shows, before it was made flat."""
        return self._raw_space

    def evaluate(self, episodes: int = 10, seed: int | None = None) -> dict[int, tuple[ReturnStatistics, Diagnostics]]:
        """Fresh deterministic episodes of every seed (or of one): their returns, and how well r̂ explains them.

        Environments are treated as the run has treated them; a warning says how many episodes their faults have cost.
        """
        if episodes < 1:
            raise DiasterError(f"{episodes} episodes were asked for; at least one is needed.")
        self._check_memory()
        chosen = self.seeds if seed is None else (seed,)
        seen = {number: self._evaluation_episodes(number, episodes) for number in chosen}
        is_known = has_step_rewards([item for of_seed in seen.values() for item in of_seed])
        found = {}
        for number, of_seed in seen.items():
            rewards = self._reward_model.of_episodes(self._state(self._position(number)), of_seed)
            found[number] = return_statistics(of_seed), diagnose(of_seed, rewards, is_known)
        return found

    def _check_memory(self) -> None:
        """Refuse episodes that cannot be held: a file can claim any horizon."""
        needed = 4 * GROUP * self._horizon * (2 * self.spec.obs_dim + self.spec.action_dim)
        available = device_memory(jax.devices("cpu")[0])
        if available is not None and needed > 0.9 * available:
            raise DiasterError(
                f"{GROUP} episodes of horizon={self._horizon} need {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB "
                f"are free; if '{self.path}' was trained with another horizon, put it right in its config.toml."
            )

    def _evaluation_episodes(self, seed: int, episodes: int) -> list[EvaluationEpisode]:
        position, config = self._position(seed), self.config
        make: MakeEnv = partial(make_env, config.env, self._horizon)
        if config.isolate_envs:
            handling = Handling(step_seconds=config.step_seconds)
            make = isolated(gym_spec(config.env).to_json(), self._horizon, config.imports, handling)
        rollout = Rollout(make, self.spec, f"seed {seed}'s evaluation")
        try:
            acting, parameters = self._agent.acting, self._parameters(position)
            seen = evaluation_episodes(rollout, acting, parameters, seed, AFTER_THE_RUN, episodes, config.env_retries)
        finally:
            rollout.close()
        if len(seen) < episodes:
            lost = episodes - len(seen)
            warnings.warn(f"seed {seed} lost {lost} of {episodes} episodes to faults of its environment.", stacklevel=4)
        return seen

    def _position(self, seed: int | None) -> int:
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise DiasterError(f"the run '{self.path}' has no seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        return self.seeds.index(seed)

    def _parameters(self, position: int) -> HostParameters:
        filled = self._fill(self._policy_form, self._policy_tensors, position, POLICY)
        layers = tuple((layer.weight, layer.bias) for layer in filled.layers)
        return HostParameters(layers, float(filled.exploration))

    def _state(self, position: int) -> Any:
        return self._fill(self._state_form, self._decomposer_tensors, position, DECOMPOSER)

    def _fill(self, template: Any, tensors: dict[str, NDArray[Any]], position: int, file: str) -> Any:
        """A state of the template's form with one seed's stored arrays."""
        of_seed = {name: np.asarray(tensor[position]) for name, tensor in tensors.items()}
        check_finite(of_seed, self.path / file)
        # What was not saved has no bearing on what the state is used for here; this form of it takes no memory.
        leaves = [
            of_seed[name] if name in of_seed else np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for name, leaf in leaf_names(template)
        ]
        return jax.tree.unflatten(jax.tree.structure(template), leaves)

    def _as_nets_see(self, action: Any) -> NDArray[np.float32]:
        """Actions of the environment; a number that names none of its discrete ones is refused."""
        array, first = np.asarray(action), self.spec.first_action
        last = first + self.spec.action_dim - 1
        if self.spec.discrete and not ((array >= first) & (array <= last)).all():
            raise DiasterError(f"the action {action} was given; '{self.spec.id}' has the actions {first} to {last}.")
        return self.spec.from_env(array)

    def _flat(self, obs: Any) -> NDArray[np.float32]:
        """Observations as the nets see them: flat ones in any batch shape, or one as the environment shows it."""
        if not isinstance(obs, dict | tuple):
            array = np.asarray(obs, np.float32)
            if array.shape[-1:] == (self.spec.obs_dim,):
                return array
        try:
            return np.asarray(spaces.flatten(self._raw_space, obs), np.float32).reshape(self.spec.obs_dim)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            raise DiasterError(
                f"an observation of shape {np.shape(obs)} was given; '{self.spec.id}' shows {self._raw_space}, "
                f"{self.spec.obs_dim} numbers when flat."
            ) from None


def load(path: str | Path, *, trust: bool = False) -> Run:
    """A run, from the directory that `train` wrote.

    With `trust` the modules that it names are imported even if it was not made here by this user.
    """
    return Run(Path(path), trust)

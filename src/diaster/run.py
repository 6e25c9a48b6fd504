"""A finished (or running) run, read from its directory: its table, its policies, its step rewards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.actors.acting import HostParameters
from diaster.actors.evaluation import evaluation_episodes
from diaster.actors.fleet import maker
from diaster.actors.rollout import Handling, Rollout
from diaster.agents import check_pair, make_agent
from diaster.analysis.diagnostics import (
    Diagnostics,
    ReturnStatistics,
    diagnose,
    episode_columns,
    has_step_rewards,
    return_statistics,
)
from diaster.analysis.figures.credit import draw_episode
from diaster.analysis.figures.style import PAGE, check_width, drawing
from diaster.analysis.plots import plot
from diaster.config import RunConfig
from diaster.decomposers import make_decomposer
from diaster.envs.creating import Env
from diaster.envs.given import GivenEnv, creator_of
from diaster.envs.isolation import describe
from diaster.envs.making import make_env
from diaster.envs.source import Creator, source_of
from diaster.errors import DiasterError, unknown
from diaster.learning.machine import device_memory
from diaster.learning.policies import acting_of, host_parameters
from diaster.learning.reward_model import GROUP, RewardModel
from diaster.media.video import write_video
from diaster.nn.trees import filled, leaf_names
from diaster.policy.trained import Policy, Which, flat_action, flat_observation, refuse_other_batches
from diaster.rundir.files import Form, check_finite, is_file
from diaster.rundir.records import (
    BEST,
    DECOMPOSER,
    DONE,
    POLICY,
    STOPPED,
    read_config,
    read_metadata,
    read_tensors,
    refuse_untrained,
)
from diaster.rundir.results import Table, read_progress
from diaster.rundir.trust import check_trust
from diaster.types import EnvSpec, EvaluationEpisode, FloatArray, Observation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Evaluations after the run draw their episodes from numbers that no evaluation during it can have.
AFTER_THE_RUN = 1_000_000


def saved_forms(template: Any, n_seeds: int, fields: Sequence[str] | None = None) -> dict[str, Form]:
    """Shape and kind of every array that a run directory holds of a state, the seeds in front."""
    return {name: ((n_seeds, *leaf.shape), np.dtype(leaf.dtype)) for name, leaf in leaf_names(template, fields)}


class Run:
    """A run: `train` returns it, and `load` reads it. Seeds are named by their number, as on the command line.

    Examples:
        >>> run = diaster.load("runs/hopper")
        >>> run.progress["return_mean"], run.progress.to_pandas()  # the table
        >>> run.evaluate(episodes=10)  # fresh episodes
        >>> run.policy(seed=0, which="best")(obs)  # observation → action
        >>> run.step_reward(obs, action, next_obs)  # the learnt reward, in the environment's units
        >>> run.plot(), run.credit(), run.video("hopper.mp4")  # figures of Matplotlib, and a film
    """

    def __init__(self, path: Path, trust: bool = False, given: Creator | None = None) -> None:
        self.path = path
        self.config: RunConfig = read_config(path)
        refuse_untrained(path)
        self.metadata: dict[str, Any] = read_metadata(path)
        if not trust:
            check_trust(path, self.config)
        self._source = source_of(self.config, given)
        handling = self.config.isolate_envs, self.config.step_seconds
        self.spec: EnvSpec
        self.spec, self._raw_space = describe(self._source, self.config.horizon, *handling)
        self._horizon = self.spec.horizon
        feedback = self.config.feedback
        self._decomposer = make_decomposer(
            self.config.method, self._horizon, feedback.longest_span(self._horizon), self.spec.image is not None
        )
        check_pair(self.config.agent.name, self.spec)
        self._agent = make_agent(self.config.agent, self.spec)
        self._reward_model = RewardModel(self._decomposer, self._horizon)
        key, n_seeds = jax.random.key(0), len(self.seeds)
        self._state_form = jax.eval_shape(lambda key: self._decomposer.init(key, self.spec), key)
        agent_form = jax.eval_shape(lambda key: self._agent.init(key, self.spec.of_features), key)
        acting = partial(acting_of, self._agent, self._decomposer)
        self._policy_form = jax.eval_shape(acting, agent_form, self._state_form)
        saved = saved_forms(self._state_form, n_seeds, self._decomposer.saved)
        try:
            self._policy_tensors = read_tensors(path / POLICY, saved_forms(self._policy_form, n_seeds))
            self._decomposer_tensors = read_tensors(path / DECOMPOSER, saved)
        except DiasterError as error:
            if given is None:
                raise
            raise DiasterError(
                f"the environment given, with {self.spec.obs_dim} observations and {self.spec.action_dim} actions, "
                f"does not fit the nets of '{path}' ({error}); give the one it was trained in."
            ) from error
        self._states: dict[int, Any] = {}

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
    def stopped(self) -> str | None:
        """Why the run ended before its last step, if it did."""
        reason = self.metadata.get(STOPPED) if self.done else None  # one that is made longer has not ended yet
        return None if reason is None else str(reason)

    @property
    def progress(self) -> Table:
        """A row per seed and evaluation."""
        return read_progress(self.path)

    def policy(self, seed: int | None = None, which: Which = "last") -> Policy:
        """The deterministic policy of one seed (the first, unless named): observation → action of the environment.

        `which` is "last", or "best": the policy of the evaluation with the largest mean return, the earliest of equal
        ones.
        """
        position = self._position(seed)
        parameters = self._parameters(position, which)
        return Policy(self.spec, self.seeds[position], which, self._raw_space, self._agent.acting, parameters)

    def step_reward(self, obs: Any, action: Any, next_obs: Any = None, seed: int | None = None) -> NDArray[np.float64]:
        """r̂ in the environment's units, for one step or a batch; actions as the environment takes them.

        `next_obs` is needed by methods that look at what a step led to: rrd, rd, and any with a base, as the default.
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
        actions = flat_action(action, self.spec)
        given = [self._flat(item) for item in (obs, next_obs) if item is not None]
        refuse_other_batches(*given, actions)
        return self._reward_model.of_steps(state, given[0], actions, given[1] if len(given) > 1 else None)

    def step_rewards(self, episodes: Sequence[EvaluationEpisode], seed: int | None = None) -> list[NDArray[np.float64]]:
        """r̂ of every step of whole episodes, plus the known part of its reward, in the environment's units.

        Every method has these. Methods that distribute a number have NaN at the steps of spans without a number.
        """
        found = self._decomposed(episodes, seed)
        known = [item.episode.known_reward for item in episodes]
        return [reward if part is None else reward + part for reward, part in zip(found, known, strict=True)]

    def _decomposed(self, episodes: Sequence[EvaluationEpisode], seed: int | None) -> list[NDArray[np.float64]]:
        """r̂ alone, which diagnostics compare with what known rewards leave."""
        self._check_memory()
        return self._reward_model.of_episodes(self._state(self._position(seed)), episodes)

    def actor(self, seed: int | None = None) -> Callable[[FloatArray], FloatArray]:
        """The deterministic policy as the nets see it: flat observation → action in [−1, 1], or one-hot."""
        return self.policy(seed).act

    def make_env(self, **kwargs: Any) -> Env:
        """An environment as the run was trained on; further arguments go to Gymnasium's `make`."""
        return make_env(self._source, self._horizon, self.config.feedback, **kwargs)

    @property
    def raw_observation_space(self) -> spaces.Space[Any]:
        """What the environment itself shows, before it was made flat."""
        return self._raw_space

    @overload
    def evaluate(
        self,
        episodes: int = 10,
        seed: int | None = None,
        which: Which = "last",
        per_episode: Literal[False] = False,
    ) -> dict[int, tuple[ReturnStatistics, Diagnostics]]: ...

    @overload
    def evaluate(
        self, episodes: int = 10, seed: int | None = None, which: Which = "last", *, per_episode: Literal[True]
    ) -> Table: ...

    def evaluate(
        self, episodes: int = 10, seed: int | None = None, which: Which = "last", per_episode: bool = False
    ) -> dict[int, tuple[ReturnStatistics, Diagnostics]] | Table:
        """Fresh deterministic episodes of every seed (or of one): their returns, and how well r̂ explains them.

        With `per_episode` the result is a table with a row for each episode: its seed, number, return, length and sum
        of r̂, and whether a time limit ended it. Environments are treated as during the run. A warning says how many
        episodes were lost to their faults.

        Examples:
            >>> returns, fit = run.evaluate(episodes=10)[0]
            >>> returns.return_mean, fit.fit_r2
            >>> run.evaluate(per_episode=True)["return"]
        """
        chosen = self.seeds if seed is None else (seed,)
        seen = {number: self.episodes(episodes, number, which) for number in chosen}
        if per_episode:
            return Table(episode_columns(seen, {number: self.step_rewards(of, number) for number, of in seen.items()}))
        is_known = has_step_rewards([item for of_seed in seen.values() for item in of_seed])
        return {
            number: (return_statistics(of_seed), diagnose(of_seed, self._decomposed(of_seed, number), is_known))
            for number, of_seed in seen.items()
        }

    def episodes(self, n: int = 10, seed: int | None = None, which: Which = "last") -> list[EvaluationEpisode]:
        """Fresh deterministic episodes of one seed (the first, unless named), the same ones in every call.

        Examples:
            >>> episode, true_reward = run.episodes(1)[0]
            >>> episode.obs, episode.action, episode.episode_return
        """
        if n < 1:
            raise DiasterError(f"{n} episodes were asked for; at least one is needed.")
        self._check_memory()
        return self._fresh_episodes(self._position(seed), n, which)

    def plot(self, metric: str = "return_mean") -> Figure:
        """A column of the table against steps, with mean, standard error and every seed: a figure of Matplotlib."""
        return plot(self.path, metric=metric)

    def credit(self, episode: int | EvaluationEpisode = 0, seed: int | None = None, width: float = PAGE) -> Figure:
        """The rewards of an episode's steps: r̂, the true reward if there is one, and their running sums.

        `episode` is one of `run.episodes()`, or its number. The result is a Matplotlib figure, `width` inches wide.
        """
        check_width(width)
        if isinstance(episode, int | np.integer) and episode >= 0:
            episode = self.episodes(int(episode) + 1, seed)[-1]
        if not isinstance(episode, EvaluationEpisode):
            raise DiasterError(
                f"the episode {episode!r} was asked for; give a number from 0 on, or one of run.episodes()."
            )
        shown = episode
        [reward] = self.step_rewards([shown], seed)
        true = shown.true_reward if has_step_rewards([shown]) else None
        with drawing():
            return draw_episode(self.config.method.name, reward, true, shown.episode.episode_return, width)

    def video(self, path: str | Path = "run.mp4", seed: int | None = None) -> Path:
        """Film one deterministic episode, with r̂ below the picture, as .mp4 or .gif (extra video); returns the path."""
        write_video(self, Path(path), seed)
        return Path(path)

    def _check_memory(self) -> None:
        """Refuse episodes that cannot be held: a file can claim any horizon."""
        each_obs = self.spec.obs_dim * np.dtype(self.spec.obs_dtype).itemsize
        needed = GROUP * self._horizon * (2 * each_obs + 4 * self.spec.action_dim)
        available = device_memory(jax.devices("cpu")[0])
        if available is not None and needed > 0.9 * available:
            raise DiasterError(
                f"{GROUP} episodes of horizon={self._horizon} need {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB "
                f"are free; if '{self.path}' was trained with another horizon, put it right in its config.toml."
            )

    def _fresh_episodes(self, position: int, episodes: int, which: Which) -> list[EvaluationEpisode]:
        seed, config = self.seeds[position], self.config
        handling = Handling(isolate=config.isolate_envs, step_seconds=config.step_seconds, feedback=config.feedback)
        make = maker(self._source, self._horizon, handling)
        rollout = Rollout(make, self.spec, f"seed {seed}'s evaluation", config.feedback)
        try:
            acting, parameters = self._agent.acting, self._parameters(position, which)
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

    def _parameters(self, position: int, which: Which) -> HostParameters:
        if which not in (names := get_args(Which)):
            raise unknown("policy", str(which), names)
        file, tensors = (BEST, self._best_tensors()) if which == "best" else (POLICY, self._policy_tensors)
        return host_parameters(self._fill(self._policy_form, tensors, position, file))

    def _best_tensors(self) -> dict[str, NDArray[Any]]:
        if not is_file(self.path / BEST):
            raise DiasterError(
                f"'{self.path}' has no {BEST}, which earlier versions of diaster did not write; take the last policy."
            )
        return read_tensors(self.path / BEST, saved_forms(self._policy_form, len(self.seeds)))

    def _state(self, position: int) -> Any:
        """The decomposer of a seed, on the device once and for all: single steps are asked for by the thousand."""
        if position not in self._states:
            state = self._fill(self._state_form, self._decomposer_tensors, position, DECOMPOSER)
            self._states[position] = jax.device_put(state)
        return self._states[position]

    def _fill(self, template: Any, tensors: dict[str, NDArray[Any]], position: int, file: str) -> Any:
        """A state of the template's form with one seed's stored arrays."""
        of_seed = {name: np.asarray(tensor[position]) for name, tensor in tensors.items()}
        check_finite(of_seed, self.path / file)
        # What was not saved has no bearing on what the state is used for here.
        return filled(template, of_seed)

    def _flat(self, obs: Any) -> Observation:
        return flat_observation(obs, self.spec, self._raw_space)


def load(path: str | Path, *, env: GivenEnv | None = None, trust: bool = False) -> Run:
    """A run, from the directory that `train` wrote.

    `env` is the environment that `train` was given, if the run could not keep it. With `trust`, the modules that the
    run names are imported even if it was not made here by this user.

    Examples:
        >>> run = diaster.load("runs/hopper")
    """
    return Run(Path(path), trust, creator_of(env))

"""The learnt step reward on the host: r̂ of arrays or whole episodes, in the environment's units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.decomposers import Decomposer
from diaster.learning.updates import each_seed
from diaster.replay.store import Steps
from diaster.types import Episode, EvaluationEpisode, FloatArray

Rewards = list[list[NDArray[np.float64]]]  # r̂ of every step of each episode, of every seed

GROUP = 8  # episodes per call where r̂ needs the history, and
BLOCK = 4096  # steps per call where it does not: one compiled shape, whatever the number of episodes


class RewardModel:
    """A decomposer with the state of one seed."""

    def __init__(self, decomposer: Decomposer, horizon: int) -> None:
        self._decomposer, self._horizon = decomposer, horizon
        self._steps = jax.jit(partial(_steps, decomposer))
        self._rows = jax.jit(partial(_rows, decomposer))
        self._steps_of_seeds = jax.jit(each_seed(partial(_steps, decomposer)))

    @property
    def has_step_reward(self) -> bool:
        """Whether r̂ of a step depends on nothing but the step: a net was fitted, and it needs no history."""
        return self._decomposer.label is None and self._decomposer.update is not None

    @property
    def saved(self) -> tuple[str, ...]:
        """The fields of a state that are a run's result."""
        return self._decomposer.saved

    @property
    def needs_next_obs(self) -> bool:
        """Whether r̂ of a step depends on what the step led to."""
        return self._decomposer.needs_next_obs

    def of_steps(
        self, state: Any, obs: FloatArray, action: FloatArray, next_obs: FloatArray | None = None
    ) -> NDArray[np.float64]:
        """r̂ of single steps; obs  # [..., D]; action  # [..., A], as the nets see it"""
        steps = _steps_of(obs, action, obs if next_obs is None else next_obs)
        return np.asarray(self._steps(state, steps), np.float64)

    def of_episodes(self, state: Any, episodes: Sequence[EvaluationEpisode]) -> list[NDArray[np.float64]]:
        """r̂ of every step of each episode; of the upper reference, the hidden rewards themselves."""
        return self.of_seeds(jax.tree.map(lambda leaf: leaf[None], state), [episodes])[0]

    def of_seeds(self, states: Any, episodes: Sequence[Sequence[EvaluationEpisode]]) -> Rewards:
        """The same for the episodes of every seed; states  # [S, …]"""
        return self.start(states, episodes)()

    def start(self, states: Any, episodes: Sequence[Sequence[EvaluationEpisode]]) -> Callable[[], Rewards]:
        """Set out to compute them, before whatever the device is given next; what is returned waits for them."""
        if self._decomposer.is_hidden_reward:
            return lambda: [list(map(_hidden_reward, of_seed)) for of_seed in episodes]
        plain = [[item.episode for item in of_seed] for of_seed in episodes]
        if self._decomposer.label is None:
            return self._without_history(states, plain)
        of_seeds = [
            self._with_history(jax.tree.map(lambda leaf, position=position: leaf[position], states), of_seed)
            for position, of_seed in enumerate(plain)
        ]
        return lambda: [of_seed() for of_seed in of_seeds]

    def _without_history(self, states: Any, episodes: Sequence[Sequence[Episode]]) -> Callable[[], Rewards]:
        """All steps end to end: what is not there is neither sent to the device nor computed."""
        ends = [np.cumsum([episode.length for episode in of_seed], dtype=int) for of_seed in episodes]
        n_steps = max((int(end[-1]) for end in ends if len(end)), default=0)
        flat = [_end_to_end(of_seed, -(-n_steps // BLOCK) * BLOCK) for of_seed in episodes if of_seed]
        if len(flat) < len(episodes):  # only where no seed has any
            return lambda: [[] for _ in episodes]
        together = jax.tree.map(lambda *parts: np.stack(parts), *flat)
        found = [
            self._steps_of_seeds(
                states, jax.tree.map(lambda leaf, first=first: leaf[:, first : first + BLOCK], together)
            )
            for first in range(0, n_steps, BLOCK)
        ]

        def arrived() -> Rewards:
            values = np.concatenate([np.asarray(part, np.float64) for part in found], axis=1)
            return [np.split(of_seed[: end[-1]], end[:-1]) for of_seed, end in zip(values, ends, strict=True)]

        return arrived

    def _with_history(self, state: Any, episodes: Sequence[Episode]) -> Callable[[], list[NDArray[np.float64]]]:
        found: list[tuple[Array, Sequence[Episode]]] = []
        for first in range(0, len(episodes), GROUP):
            group = episodes[first : first + GROUP]
            # Two closed shapes: most environments end early at first and fill the horizon later.
            longest = max(episode.length for episode in group)
            n_steps = self._horizon if longest > self._horizon // 8 else max(1, self._horizon // 8)
            found.append((self._rows(state, _padded(group, n_steps)), group))
        return lambda: [
            values[: episode.length, column]
            for values, group in ((np.asarray(part, np.float64), group) for part, group in found)
            for column, episode in enumerate(group)
        ]


def _hidden_reward(item: EvaluationEpisode) -> NDArray[np.float64]:
    return np.zeros(item.episode.length) if item.true_reward is None else item.true_reward.astype(np.float64)


def _steps_of(obs: FloatArray, action: FloatArray, next_obs: FloatArray) -> Steps:
    """Steps of which nothing else is known."""
    shape = np.broadcast_shapes(obs.shape[:-1], action.shape[:-1])
    none = np.zeros(shape, np.float32)
    return Steps(obs, action, next_obs, none.astype(bool), none.astype(np.int32), none.astype(np.int32) + 1, none)


def _end_to_end(episodes: Sequence[Episode], n_steps: int) -> Steps:
    """The steps of some episodes, one after the other, and as many empty ones as make up a number  # [n_steps, …]"""

    def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        whole = np.zeros((n_steps, *parts[0].shape[1:]), parts[0].dtype)
        first = 0
        for part in parts:
            whole[first : first + len(part)] = part
            first += len(part)
        return whole

    lengths = [episode.length for episode in episodes]
    time = [np.arange(length, dtype=np.int32) for length in lengths]
    return Steps(
        obs=joined([episode.obs[:-1] for episode in episodes]),
        action=joined([episode.action for episode in episodes]),
        next_obs=joined([episode.obs[1:] for episode in episodes]),
        terminal=joined([episode.terminated & (t == len(t) - 1) for episode, t in zip(episodes, time, strict=True)]),
        time=joined(time),
        length=joined([np.full(length, length, np.int32) for length in lengths]),
        episode_return=joined([np.full(e.length, e.episode_return, np.float32) for e in episodes]),
    )


def _padded(group: Sequence[Episode], n_steps: int) -> Steps:
    """A few episodes, one in each column  # [n_steps, GROUP, …]"""
    shape = (n_steps, GROUP)
    obs = np.zeros((n_steps + 1, GROUP, group[0].obs.shape[-1]), np.float32)
    action = np.zeros((*shape, group[0].action.shape[-1]), np.float32)
    length, episode_return = np.ones(GROUP, np.int32), np.zeros(GROUP, np.float32)
    terminated = np.zeros(GROUP, bool)
    for column, episode in enumerate(group):
        obs[: episode.length + 1, column] = episode.obs
        action[: episode.length, column] = episode.action
        length[column], episode_return[column] = episode.length, episode.episode_return
        terminated[column] = episode.terminated
    time = np.broadcast_to(np.arange(n_steps, dtype=np.int32)[:, None], shape)
    return Steps(
        obs=obs[:-1],
        action=action,
        next_obs=obs[1:],
        terminal=terminated & (time == length - 1),
        time=time,
        length=np.broadcast_to(length, shape),
        episode_return=np.broadcast_to(episode_return, shape),
    )


def _steps(decomposer: Decomposer, state: Any, steps: Steps) -> Array:
    return decomposer.reward(state, steps) * decomposer.scale(state)


def _rows(decomposer: Decomposer, state: Any, steps: Steps) -> Array:
    assert decomposer.label is not None
    return decomposer.label(state, steps) * decomposer.scale(state)

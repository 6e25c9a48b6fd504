"""The learnt step reward on the host: r̂ of arrays or whole episodes, in the environment's units.

Where a part of each step's reward is known, r̂ is what was made of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

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
BYTES_AHEAD = 256 << 20  # of blocks that wait for the device


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
        """Set out to compute them, before whatever the device is given next; what is returned waits for them.

        A method that shares out a number has NaN for the steps of spans without one.
        """
        if self._decomposer.is_hidden_reward:
            return lambda: [list(map(_hidden_reward, of_seed)) for of_seed in episodes]
        plain = [[item.episode for item in of_seed] for of_seed in episodes]
        if self._decomposer.label is None:
            return self._masked(self._without_history(states, plain), plain)
        of_seeds = [
            self._with_history(jax.tree.map(lambda leaf, position=position: leaf[position], states), of_seed)
            for position, of_seed in enumerate(plain)
        ]
        return self._masked(lambda: [of_seed() for of_seed in of_seeds], plain)

    def _masked(self, found: Callable[[], Rewards], episodes: Sequence[Sequence[Episode]]) -> Callable[[], Rewards]:
        if not self._decomposer.needs_return:
            return found

        def masked(values: NDArray[np.float64], episode: Episode) -> NDArray[np.float64]:
            return np.where(np.isnan(_of_steps(episode).episode_return), np.nan, values)

        return lambda: [
            [masked(values, episode) for values, episode in zip(*of_seed, strict=True)]
            for of_seed in zip(found(), episodes, strict=True)
        ]

    def _without_history(self, states: Any, episodes: Sequence[Sequence[Episode]]) -> Callable[[], Rewards]:
        """All steps end to end, a block at a time: what is not there is neither sent to the device nor computed.

        Images are large: their steps are copied for the blocks that the device works on, and no others.
        """
        ends = [np.cumsum([episode.length for episode in of_seed], dtype=int) for of_seed in episodes]
        n_steps = max((int(end[-1]) for end in ends if len(end)), default=0)
        if not all(episodes):  # only where no seed has any
            return lambda: [[] for _ in episodes]
        found: list[Array] = []
        for first in range(0, n_steps, BLOCK):
            parts = [_block(of_seed, first) for of_seed in episodes]
            block = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
            found.append(self._steps_of_seeds(states, block))
            n_ahead = max(1, BYTES_AHEAD // sum(leaf.nbytes for leaf in jax.tree.leaves(block)))
            if len(found) > n_ahead:
                found[-n_ahead - 1].block_until_ready()

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
    reward = np.zeros(item.episode.length) if item.true_reward is None else item.true_reward.astype(np.float64)
    return reward if item.episode.known_reward is None else reward - item.episode.known_reward


class _OfSteps(NamedTuple):
    """What is known of the span of each step of an episode.  # [L]"""

    time: NDArray[np.int32]
    length: NDArray[np.int32]
    episode_return: NDArray[np.float32]  # NaN where there is none


def _of_steps(episode: Episode) -> _OfSteps:
    spans = episode.to_decompose
    start, length, number = (np.repeat(part, spans.length) for part in (spans.start, spans.length, spans.number))
    return _OfSteps(
        (np.arange(episode.length) - start).astype(np.int32), length.astype(np.int32), number.astype(np.float32)
    )


def _steps_of(obs: FloatArray, action: FloatArray, next_obs: FloatArray) -> Steps:
    """Steps of which nothing else is known."""
    shape = np.broadcast_shapes(obs.shape[:-1], action.shape[:-1])
    none = np.zeros(shape, np.float32)
    return Steps(obs, action, next_obs, none.astype(bool), none.astype(np.int32), none.astype(np.int32) + 1, none)


def _block(episodes: Sequence[Episode], first: int) -> Steps:
    """BLOCK steps of some episodes laid end to end, from step `first` on; empty ones where they have ended."""
    ends = np.cumsum([episode.length for episode in episodes], dtype=int)
    inside = [
        (episode, slice(max(0, first - int(end) + episode.length), first + BLOCK - int(end) + episode.length))
        for episode, end in zip(episodes, ends, strict=True)
        if first < end and end - episode.length < first + BLOCK
    ]

    def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        whole = np.zeros((BLOCK, *parts[0].shape[1:]), parts[0].dtype)
        start = 0
        for part in parts:
            whole[start : start + len(part)] = part
            start += len(part)
        return whole

    if not inside:  # another seed has more
        nothing = episodes[0]
        inside = [(nothing, slice(nothing.length, nothing.length))]
    known = [(_of_steps(episode), steps) for episode, steps in inside]
    return Steps(
        obs=joined([episode.obs[:-1][steps] for episode, steps in inside]),
        action=joined([episode.action[steps] for episode, steps in inside]),
        next_obs=joined([episode.obs[1:][steps] for episode, steps in inside]),
        terminal=joined([(e.terminated & (np.arange(e.length) == e.length - 1))[steps] for e, steps in inside]),
        time=joined([of.time[steps] for of, steps in known]),
        length=joined([of.length[steps] for of, steps in known]),
        episode_return=joined([np.nan_to_num(of.episode_return[steps]) for of, steps in known]),
    )


def _padded(group: Sequence[Episode], n_steps: int) -> Steps:
    """A few episodes, one in each column  # [n_steps, GROUP, …]"""
    shape = (n_steps, GROUP)
    obs = np.zeros((n_steps + 1, GROUP, group[0].obs.shape[-1]), group[0].obs.dtype)
    action = np.zeros((*shape, group[0].action.shape[-1]), np.float32)
    time, length = np.zeros(shape, np.int32), np.ones(shape, np.int32)
    terminal, episode_return = np.zeros(shape, bool), np.zeros(shape, np.float32)
    for column, episode in enumerate(group):
        end, known = episode.length, _of_steps(episode)
        obs[: end + 1, column] = episode.obs
        action[:end, column] = episode.action
        time[:end, column], length[:end, column] = known.time, known.length
        episode_return[:end, column] = np.nan_to_num(known.episode_return)
        terminal[end - 1, column] = episode.terminated
    return Steps(obs[:-1], action, obs[1:], terminal, time, length, episode_return)


def _steps(decomposer: Decomposer, state: Any, steps: Steps) -> Array:
    return decomposer.reward(state, steps) * decomposer.scale(state)


def _rows(decomposer: Decomposer, state: Any, steps: Steps) -> Array:
    assert decomposer.label is not None
    return decomposer.label(state, steps) * decomposer.scale(state)

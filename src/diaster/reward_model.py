"""The learnt step reward on the host: r̂ of arrays or whole episodes, in the environment's units."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.decompose import Decomposer
from diaster.replay import Steps
from diaster.types import Episode, EvaluationEpisode, FloatArray

GROUP = 8  # episodes per call: one compiled shape, whatever the number of episodes


class RewardModel:
    """A decomposer with the state of one seed."""

    def __init__(self, decomposer: Decomposer, horizon: int) -> None:
        self._decomposer, self._horizon = decomposer, horizon
        self._steps = jax.jit(partial(_steps, decomposer))
        self._rows = jax.jit(partial(_rows, decomposer))

    @property
    def has_step_reward(self) -> bool:
        """Whether r̂ of a step depends on nothing but the step: a net was fitted, and it needs no history."""
        return self._decomposer.label is None and self._decomposer.update is not None

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
        if self._decomposer.is_hidden_reward:
            return [
                np.zeros(item.episode.length) if item.true_reward is None else item.true_reward.astype(np.float64)
                for item in episodes
            ]
        rewards: list[NDArray[np.float64]] = []
        for first in range(0, len(episodes), GROUP):
            group = [item.episode for item in episodes[first : first + GROUP]]
            # Two closed shapes: most environments end early at first and fill the horizon later.
            longest = max(episode.length for episode in group)
            n_steps = self._horizon if longest > self._horizon // 8 else max(1, self._horizon // 8)
            values = np.asarray(self._rows(state, _padded(group, n_steps)), np.float64)
            rewards += [values[: episode.length, column] for column, episode in enumerate(group)]
        return rewards


def _steps_of(obs: FloatArray, action: FloatArray, next_obs: FloatArray) -> Steps:
    """Steps of which nothing else is known."""
    shape = np.broadcast_shapes(obs.shape[:-1], action.shape[:-1])
    none = np.zeros(shape, np.float32)
    return Steps(obs, action, next_obs, none.astype(bool), none.astype(np.int32), none.astype(np.int32) + 1, none)


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
    if decomposer.label is None:
        return _steps(decomposer, state, steps)
    return decomposer.label(state, steps) * decomposer.scale(state)

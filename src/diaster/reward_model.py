"""The learnt step reward on the host: r̂ of arrays or whole episodes, in the environment's units."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.decompose import Decomposer
from diaster.types import Episode, FloatArray

GROUP = 8  # episodes per call: one compiled shape, whatever the number of episodes


class RewardModel:
    """A decomposer with the state of one seed."""

    def __init__(self, decomposer: Decomposer, horizon: int) -> None:
        self._decomposer, self._horizon = decomposer, horizon
        self._steps = jax.jit(partial(_steps, decomposer))
        self._rows = jax.jit(partial(_rows, decomposer))

    @property
    def needs_history(self) -> bool:
        """Whether r̂ of a step depends on the steps before it."""
        return self._decomposer.label is not None

    def of_steps(self, state: Any, obs: FloatArray, action: FloatArray) -> NDArray[np.float64]:
        """r̂ of single steps; obs  # [..., D]; action  # [..., A], in [−1, 1]"""
        return np.asarray(self._steps(state, obs, action), np.float64)

    def of_episodes(self, state: Any, episodes: Sequence[Episode]) -> list[NDArray[np.float64]]:
        """r̂ of every step of each episode."""
        rewards: list[NDArray[np.float64]] = []
        for first in range(0, len(episodes), GROUP):
            group = episodes[first : first + GROUP]
            # Two closed shapes: most environments end early at first and fill the horizon later.
            longest = max(episode.length for episode in group)
            n_steps = self._horizon if longest > self._horizon // 8 else max(1, self._horizon // 8)
            obs = np.zeros((n_steps, GROUP, group[0].obs.shape[-1]), np.float32)
            action = np.zeros((n_steps, GROUP, group[0].action.shape[-1]), np.float32)
            for column, episode in enumerate(group):
                obs[: episode.length, column] = episode.obs[:-1]
                action[: episode.length, column] = episode.action
            values = np.asarray(self._rows(state, obs, action), np.float64)
            rewards += [values[: episode.length, column] for column, episode in enumerate(group)]
        return rewards


def _steps(decomposer: Decomposer, state: Any, obs: Array, action: Array) -> Array:
    return decomposer.reward(state, obs, action) * decomposer.scale(state)


def _rows(decomposer: Decomposer, state: Any, obs: Array, action: Array) -> Array:
    if decomposer.label is None:
        return _steps(decomposer, state, obs, action)
    step = jnp.broadcast_to(jnp.arange(obs.shape[0])[:, None], obs.shape[:2])
    return decomposer.label(state, obs, action, step) * decomposer.scale(state)

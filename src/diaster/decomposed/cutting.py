"""The steps of one environment, as they come, cut into episodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.types import Episode, FloatArray


class EpisodeCutter:
    """Holds the unfinished episode of one environment."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._obs: list[FloatArray] = []
        self._action: list[FloatArray] = []
        self._reward: list[float] = []

    def add(
        self,
        obs: FloatArray,
        action: FloatArray,
        reward: float,
        next_obs: FloatArray,
        is_last: bool,
        terminated: bool,
        keep_rewards: bool = False,
    ) -> Episode | None:
        """Take in a step; returns the episode that it ends, if it ends one.

        Where a step does not begin where the one before it has led to, the environment was reset in between: what came
        before is dropped, because nobody has told its return.
        """
        if self._obs and not np.array_equal(self._obs[-1], obs, equal_nan=True):
            self._clear()
        if not self._obs:
            self._obs.append(obs)
        self._obs.append(next_obs)
        self._action.append(action)
        self._reward.append(reward)
        if len(self._action) > self._horizon:
            raise DiasterError(
                f"an episode has more than horizon={self._horizon} steps; give the longest there can be as horizon."
            )
        if not is_last:
            return None
        hidden: NDArray[np.float32] | None = np.array(self._reward, np.float32) if keep_rewards else None
        episode = Episode(np.stack(self._obs), np.stack(self._action), float(np.sum(self._reward)), terminated, hidden)
        self._clear()
        return episode

    def _clear(self) -> None:
        self._obs, self._action, self._reward = [], [], []

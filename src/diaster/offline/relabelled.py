"""Rewards for the steps of a data set, as its writer needs them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Relabelled(NamedTuple):
    """A reward for every step of the episodes that were kept, end to end; r_t belongs to (s_t, a_t)."""

    rewards: NDArray[np.float64]  # [n]
    lengths: NDArray[np.int64]  # [K] of the episodes that were kept
    is_kept: NDArray[np.bool_]  # [E] of all episodes of the data set

    @property
    def is_whole(self) -> bool:
        """Whether no episode is left out."""
        return bool(self.is_kept.all())

    def by_episode(self) -> list[NDArray[np.float64]]:
        """The rewards, episode by episode."""
        return np.split(self.rewards, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []

"""Some episodes as a few arrays, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.types import EnvSpec, Episode

PREFIX = "new."


def packed(episodes: Iterable[Episode], spec: EnvSpec) -> dict[str, NDArray[Any]]:
    """The episodes end to end; without hidden rewards."""
    episodes = list(episodes)
    return {
        f"{PREFIX}length": np.array([episode.length for episode in episodes], np.int64),
        f"{PREFIX}obs": np.concatenate([np.zeros((0, spec.obs_dim), np.float32), *(e.obs for e in episodes)]),
        f"{PREFIX}action": np.concatenate([np.zeros((0, spec.action_dim), np.float32), *(e.action for e in episodes)]),
        f"{PREFIX}return": np.array([episode.episode_return for episode in episodes], np.float64),
        f"{PREFIX}terminated": np.array([episode.terminated for episode in episodes], bool),
    }


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[Episode]:
    """The inverse."""
    length, obs, action, returns, terminated = (
        arrays[PREFIX + name] for name in ("length", "obs", "action", "return", "terminated")
    )
    ends = np.cumsum(length)
    parts = zip(np.split(obs, ends + np.arange(1, len(ends) + 1))[:-1], np.split(action, ends)[:-1], strict=True)
    return [Episode(*part, float(returns[i]), bool(terminated[i])) for i, part in enumerate(parts)]

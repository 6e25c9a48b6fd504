"""Small replays for other learners, of every method, and episodes for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from diaster import DecomposedReplay
from diaster.types import Episode

HORIZON = 6
OBS = spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTIONS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
SEGMENTS = {"batch_episodes": 2, "segments_per_episode": 2, "segment_length": 2}
SMALL: dict[str, dict[str, Any]] = {
    "diaster": {"name": "diaster", "hidden": 4, **SEGMENTS},
    "base": {"name": "diaster", "hidden": 4, **SEGMENTS, "base": "linear"},
    "difference": {"name": "diaster", "hidden": 4, **SEGMENTS, "reward_source": "difference", "relabel_every": 3},
    "exact": {"name": "rrd", "hidden": 4, "subset": 3, "exact_sum": True, "relabel_every": 3},
    "rrd": {"name": "rrd", "hidden": 4, "subset": 3},
    "rd": {"name": "rd", "hidden": 4},
    "rudder": {"name": "rudder", "hidden": 4, "batch_episodes": 2, "relabel_every": 3},
    "ircr": {"name": "ircr", "elite_episodes": 2},
    "uniform": {"name": "uniform"},
    "episodic": {"name": "episodic"},
    "dense": {"name": "dense"},
}


def replay_of(method: str | dict[str, Any] = "diaster", capacity: int = 400, **arguments: Any) -> DecomposedReplay:
    settings = SMALL[method] if isinstance(method, str) else method
    return DecomposedReplay(OBS, ACTIONS, HORIZON, settings, capacity=capacity, device="cpu", **arguments)


def episodes(n: int, seed: int = 0, length: int | None = None) -> Iterator[Episode]:
    random = np.random.default_rng(seed)
    for _ in range(n):
        steps = length or int(random.integers(1, HORIZON + 1))
        obs = random.normal(size=(steps + 1, 3)).astype(np.float32)
        action = random.uniform(-1, 1, (steps, 2)).astype(np.float32)
        hidden = random.normal(size=steps).astype(np.float32)
        yield Episode(obs, action, float(obs[:, 0].sum()), bool(random.integers(2)), hidden)


def filled(replay: DecomposedReplay, n: int = 10, seed: int = 0, length: int | None = None) -> list[Episode]:
    added = list(episodes(n, seed, length))
    for episode in added:
        replay.add_episode(episode)
    return added


def by_obs(added: list[Episode]) -> dict[bytes, tuple[Episode, int]]:
    return {episode.obs[t].tobytes(): (episode, t) for episode in added for t in range(episode.length)}

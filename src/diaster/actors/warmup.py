"""Random actions before learning: uniform ones, or episodes that differ from each other.

Returns of uniformly random episodes hardly differ, so they tell little of what made one better than another. Here the
noise of an episode has a manner of its own, drawn from the episode's number. What else an action depends on is the one
before it, so an episode that is taken up again goes on as it would have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diaster.types import EnvSpec, FloatArray

MOST_PREFERENCE = 2.0  # of discrete actions: deviation of their logits
LONGEST_MEMORY = 100.0  # steps over which coloured noise is alike


class Manner(NamedTuple):
    """How an episode's random actions are."""

    size: float
    """Deviation of the noise, 0 to 1; of discrete actions, how far from equally likely they are."""
    memory: float
    """How much of the noise one step hands to the next, 0 to 1: its colour."""
    bias: FloatArray
    """What the noise goes around  # [A]; of discrete actions, the preference for each"""


def draw_manner(random: np.random.Generator, spec: EnvSpec, is_varied: bool) -> Manner:
    """Of one episode: its size alone, or also its colour and its bias."""
    size, memory = float(random.uniform()), 1.0 - LONGEST_MEMORY ** -random.uniform()
    extent, direction = random.uniform(), random.uniform(-1.0, 1.0, spec.action_dim)
    if spec.discrete:
        direction, extent, is_biased = random.standard_normal(spec.action_dim), MOST_PREFERENCE * size, True
    else:
        is_biased = is_varied
    bias = extent * direction if is_biased else np.zeros(spec.action_dim)
    return Manner(size, memory if is_varied else 0.0, bias.astype(np.float32))


def noise(random: np.random.Generator, n: int, spec: EnvSpec) -> FloatArray:
    """The random numbers of n steps. # [n, A]; for discrete actions # [n, 2]"""
    if spec.discrete:
        return random.random((n, 2), dtype=np.float32)
    return random.standard_normal((n, spec.action_dim), dtype=np.float32)


def act(manner: Manner, last: FloatArray | None, draw: FloatArray, spec: EnvSpec) -> FloatArray:
    """The next action of an episode, after its last one if there was any.  # [A]"""
    action: FloatArray
    if spec.discrete:
        if last is not None and draw[0] < manner.memory:
            return last
        weights = np.cumsum(np.exp(manner.bias))
        number = min(int(np.searchsorted(weights, draw[1] * weights[-1])), spec.action_dim - 1)
        action = np.eye(spec.action_dim, dtype=np.float32)[number]
        return action
    if last is None or manner.memory == 0.0:
        action = manner.bias + manner.size * draw
    else:
        kept = manner.memory * (last - manner.bias)
        action = manner.bias + kept + manner.size * np.sqrt(1.0 - manner.memory**2) * draw
    return np.clip(action, -1.0, 1.0).astype(np.float32)

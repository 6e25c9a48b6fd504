"""Decomposers: from one return per episode to a reward for every step.

A method is a record of pure functions over an explicit state, made from its settings by one factory. Adding
one is a file, a line in `METHODS`, a test file and a docs page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from diaster.replay import EpisodeBlock, EpisodeStore
from diaster.types import EnvSpec

State = Any  # a pytree; its shape is the method's own business
Metrics = dict[str, Array]


class Decomposer(NamedTuple):
    """What training needs of a method. All functions are for one seed; the caller adds `vmap`."""

    init: Callable[[Array, EnvSpec], State]
    ingest: Callable[[State, EpisodeBlock], State]
    """Take in the statistics of new episodes."""
    draw: Callable[[State, EpisodeStore, Array], Any]
    """A fresh batch. It may depend on what `ingest` keeps, not on what `update` changes."""
    update: Callable[[State, Any], tuple[State, Metrics]]
    """One gradient step on a batch."""
    reward: Callable[[State, Array, Array], Array]
    """r̂ of steps (obs, action), in the learner's scale. Not used by learning where `label` is given."""
    scale: Callable[[State], Array]
    """What r̂ is multiplied by to be in the environment's units."""
    label: Callable[[State, Array, Array, Array], Array] | None
    """r̂ that needs the history: (obs [T, W, D], action [T, W, A], step [T, W]) → [T, W] for rows of whole
    episodes laid end to end. None where `reward` says it all."""

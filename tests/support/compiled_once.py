"""Programs of runs with the same settings are compiled once in a process: thousands of small runs are resumed in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

import diaster.run
import diaster.training.loop
from diaster.agents import Agent
from diaster.decomposers import Decomposer

MOST_KEPT = 4  # of each kind; settings may be damaged, and what they make may be large

Kept = dict[str, Any]


def compile_once(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on, loaded and resumed runs share what they compile."""
    for module in (diaster.run, diaster.training.loop):
        for name in ("make_decomposer", "make_agent", "RewardModel"):
            set_attribute(module, name, partial(_kept, getattr(module, name), {}))
    loop = diaster.training.loop
    set_attribute(loop, "make_learner", partial(_renewed, loop.make_learner, {}))


def _kept(make: Callable[..., Any], kept: Kept, *given: Any) -> Any:
    """What was made of the same arguments, if anything was."""
    key = _key(given)
    if key not in kept:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        kept[key] = make(*given), given  # an identity is taken again when its object is gone
    return kept[key][0]


def _renewed(make: Callable[..., Any], kept: Kept, *given: Any) -> Any:
    """A learner as it was when it was new."""

    def make_with_copy() -> Any:
        learner = make(*given)
        stores = jax.device_get(learner.store)
        seeds = range(len(stores.next_step))
        return learner, learner.snapshot(), [jax.tree.map(lambda leaf, n=n: leaf[n], stores) for n in seeds]

    learner, snapshot, stores = _kept(lambda *_: make_with_copy(), kept, *given)
    learner.restore(snapshot, stores)
    return learner


def _key(given: tuple[Any, ...]) -> str:
    """Arguments as text: a record of functions by its identity, which is that of its settings."""
    return repr([id(item) if isinstance(item, Decomposer | Agent) else item for item in given])

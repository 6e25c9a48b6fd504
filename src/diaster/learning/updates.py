"""Loops of numbered updates, for all seeds at once: the random keys, `vmap` over seeds, and how loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from diaster.agents import Metrics
from diaster.types import Stream

AFTER_ROLLBACK = 1 << 20  # far from the numbers of streams
DRAWN_AHEAD = 50  # batches drawn at a time


def key_of_seed(seed: ArrayLike) -> Array:
    """The key that all others of a seed come from; its generator is named, or JAX_DEFAULT_PRNG_IMPL would decide."""
    return jax.random.key(seed, impl="threefry2x32")


def stream_key(seed_key: Array, stream: Stream, index: Array | int) -> Array:
    """The key of one use of randomness; nothing has to be carried."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, int(stream)), index)


def key_after_rollbacks(first_key: Array, rollbacks: Array) -> Array:
    """A seed's key: other random numbers after each rollback."""
    return jnp.where(rollbacks > 0, jax.random.fold_in(first_key, AFTER_ROLLBACK + rollbacks), first_key)


def each_seed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` over the leading axis, the seeds; a single seed is taken out of it and put back.

    On a CPU, gathers with a batch axis of one cost more than all else that drawing does.
    """

    def apply(*arguments: Any) -> Any:
        if jax.tree.leaves(arguments)[0].shape[0] > 1:
            return jax.vmap(function)(*arguments)
        result = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return apply


@cache
def loop_options(platform: str) -> dict[str, bool] | None:
    """How loops of updates are compiled: on a CPU, without copies of nets that a closer look shows to be needless."""
    options = {"xla_cpu_copy_insertion_use_region_analysis": True}
    if platform != "cpu":
        return None
    try:
        jax.jit(jnp.negative, compiler_options=options).lower(np.float32(0.0)).compile()
    except Exception:  # versions of JAX differ in the options they know, and in how they say so
        return None
    return options


def scan_updates(
    draw: Callable[[Array], Any],
    update: Callable[[Any, Any, Any], tuple[Any, Metrics]],
    state: Any,
    first_update: Array,
    n_updates: int,
    ready: Array,
    cycle: int = 1,
) -> tuple[Any, Metrics]:
    """Numbered updates in one loop. A seed that is not ready keeps its state: a branch would run both sides.

    The batches of some updates are drawn at once: on a GPU a draw has as many kernels as an update, and they take as
    long for one batch as for many. With a `cycle` that divides their number, and is no longer than what is drawn at
    once, the first update of each is told from the others when the program is compiled: a branch that a GPU takes has
    to wait for the host.
    """
    if n_updates % cycle or cycle > DRAWN_AHEAD:
        cycle = 1
    n_ahead = next(n for n in range(min(DRAWN_AHEAD, n_updates), 0, -1) if n_updates % n == 0 and n % cycle == 0)

    def update_some(state: Any, indices: Array) -> tuple[Any, Array]:
        def update_one(state: Any, number: Array | int, batch: Any) -> tuple[Any, Array]:
            state, metrics = update(state, number, batch)
            names[:] = sorted(metrics)
            return state, jnp.array([metrics[name] for name in names])  # one array to write, not one for each

        def update_cycle(state: Any, batches: Any) -> tuple[Any, Array]:
            first, others = (jax.tree.map(lambda leaf, part=part: leaf[part], batches) for part in (0, slice(1, None)))
            state, of_first = update_one(state, 0, first)
            state, of_others = jax.lax.scan(lambda state, batch: update_one(state, 1, batch), state, others)
            return state, jnp.concatenate([of_first[None], of_others])

        batches = jax.vmap(draw)(indices)
        if cycle == 1:
            return jax.lax.scan(lambda state, x: update_one(state, *x), state, (indices, batches))
        by_cycle = jax.tree.map(lambda leaf: leaf.reshape(-1, cycle, *leaf.shape[1:]), batches)
        return jax.lax.scan(update_cycle, state, by_cycle)

    names: list[str] = []
    indices = first_update + jnp.arange(n_updates).reshape(-1, n_ahead)
    new, metrics = jax.lax.scan(update_some, state, indices)
    kept = jax.tree.map(lambda after, before: jnp.where(ready, after, before), new, state)
    means = jnp.where(ready, metrics.reshape(n_updates, -1).mean(axis=0), jnp.nan)
    return kept, dict(zip(names, means, strict=True))

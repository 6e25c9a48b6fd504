"""Loops of numbered updates: whole cycles of them are the same updates, told apart when they are compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.learning.updates import DRAWN_AHEAD, scan_updates


class Loop:
    """Updates of two numbers: one adds up batches, the other does so in the first update of every cycle."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.numbers: list[Any] = []  # as they are when JAX traces

    def draw(self, index: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.fold_in(jax.random.key(0), index))

    def update(self, state: Any, number: Any, batch: jax.Array) -> Any:
        self.numbers.append(number)
        fast, slow = state
        is_due = number % self.every == 0
        slow = jnp.where(is_due, slow + fast * batch, slow)
        return (0.9 * fast + batch, slow), {"batch": batch, "due": jnp.float32(is_due)}

    def run(self, first: int, n_updates: int, cycle: int, ready: bool = True) -> Any:
        state = jnp.float32(1.0), jnp.float32(2.0)
        loop = jit(scan_updates, static_argnums=(0, 1, 4, 6))
        return jax.device_get(loop(self.draw, self.update, state, jnp.int32(first), n_updates, ready, cycle))


def is_told_apart(loop: Loop) -> bool:
    plain = [isinstance(number, int) for number in loop.numbers]
    assert len(set(plain)) == 1
    return plain[0]


@pytest.mark.parametrize("n_updates", [3, 12, 60, 150, 201])
def test_whole_cycles_are_the_updates_without_a_cycle(n_updates: int) -> None:
    without, within = Loop(3), Loop(3)
    expected, found = without.run(6, n_updates, 1), within.run(6, n_updates, 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    assert found[1]["due"] == pytest.approx(1.0 / 3.0)
    assert not is_told_apart(without)
    assert is_told_apart(within) and set(within.numbers) == {0, 1}


# The last one has whole cycles, but longer ones than batches are drawn ahead.
@pytest.mark.parametrize(
    ("n_updates", "cycle"), [(1, 3), (50, 3), (200, 3), (7, 2), (4 * DRAWN_AHEAD, 2 * DRAWN_AHEAD)]
)
def test_updates_that_are_no_whole_cycles_are_numbered_one_by_one(n_updates: int, cycle: int) -> None:
    without, within = Loop(cycle), Loop(cycle)
    expected, found = without.run(5, n_updates, 1), within.run(5, n_updates, cycle)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert not is_told_apart(within)


@pytest.mark.parametrize("cycle", [1, 3])
def test_a_seed_that_is_not_ready_keeps_its_state_and_has_no_metrics(cycle: int) -> None:
    (fast, slow), metrics = Loop(3).run(0, 6, cycle, ready=False)
    assert (float(fast), float(slow)) == (1.0, 2.0)
    assert all(np.isnan(value) for value in metrics.values())

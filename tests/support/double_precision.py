"""JAX in double precision, for comparisons with NumPy."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np


def float64() -> contextlib.AbstractContextManager[object]:
    """JAX in double precision, in old and new versions."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64(True)


def to_float64(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), tree)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def assert_same_states(scan, naive, cell, n_steps):
    """A recurrent scan, with resets anywhere, against its equations taken step by step."""
    rng = np.random.default_rng(n_steps)
    inputs = rng.normal(size=(n_steps, 4, cell.input.weight.shape[0])) * 2.0
    start = rng.random((n_steps, 4)) < 0.3
    start[:, 0] = False  # a row without any flag
    start[:, 1] = True  # a row of segments of one step
    with float64():
        exact = to_float64(cell)
        states = np.asarray(scan(exact, jnp.asarray(inputs), jnp.asarray(start)))
    assert states.dtype == np.float64
    np.testing.assert_allclose(states, naive(exact, inputs, start), rtol=0, atol=1e-12)

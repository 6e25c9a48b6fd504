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

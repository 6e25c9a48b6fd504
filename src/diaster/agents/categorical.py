"""Values as distributions over fixed atoms, evenly spaced on [−limit, limit] (Bellemare, Dabney and Munos, 2017)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Projected(NamedTuple):
    """A distribution on the atoms, and how much of it lay beyond them before."""

    mass: Array  # [B, N]
    clipped: Array  # [B]


def atoms_of(limit: float, count: int) -> Array:
    """The values that distributions are over.  # [N]"""
    return jnp.linspace(-limit, limit, count)


def project(mass: Array, values: Array, atoms: Array) -> Projected:
    """Mass at any values, moved to the atoms: to the two next to each value, in proportion to their nearness.

    What lies beyond the atoms goes to the outermost one. mass, values  # [B, N]
    """
    spacing = atoms[1] - atoms[0]
    clipped = jnp.clip(values, atoms[0], atoms[-1])
    # A sum over a triangle around each atom, and no scatter: on a GPU that would add up in another order each time.
    nearness = jnp.maximum(1.0 - jnp.abs(clipped[:, :, None] - atoms) / spacing, 0.0)  # [B, N, N]
    is_beyond = jnp.abs(values) > atoms[-1] + 1e-3 * spacing
    return Projected((mass[:, :, None] * nearness).sum(axis=1), jnp.where(is_beyond, mass, 0.0).sum(axis=1))

"""Values as distributions over fixed atoms, evenly spaced on [−limit, limit] (Bellemare, Dabney and Munos, 2017)."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Projected(NamedTuple):
    """A distribution on the atoms, and how much of it lay beyond them before."""

    mass: Array  # [B, N]
    clipped: Array  # [B]


def atoms_of(limit: float, count: int) -> Array:
    """The values that distributions are over; the middle one is 0.  # [N]"""
    assert count % 2 == 1
    return jnp.linspace(-limit, limit, count)


def certain_zero(count: int) -> Array:
    """The distribution of a value that is 0.  # [N]"""
    return jnp.zeros(count).at[count // 2].set(1.0)


def project(mass: Array, offset: Array, slope: float, limit: float) -> Projected:
    """The distribution of offset + slope · z on the atoms, where z has the given one; slope is at most 1.

    Mass goes to the two atoms next to each value, in proportion to their nearness, and from beyond the atoms to the
    outermost one. mass  # [B, N]; offset  # [B]
    """
    count = mass.shape[1]
    atoms = jnp.arange(count)
    centre, per_unit = count // 2, count // 2 / limit
    # Places are counted in atoms, from the first. A row moves by whole atoms, in one gather. What is left of its way
    # takes mass to near neighbours, the same for all rows. (A scatter on a GPU adds up in another order each time.)
    way_of_row = jnp.clip(offset * per_unit, -2.0 * count, 2.0 * count)  # infinite ones end beyond the atoms as well
    whole = jnp.round(way_of_row)
    near = centre + (way_of_row - whole)[:, None] + slope * (atoms - centre)
    place = near + whole[:, None]
    is_below, is_above = place <= 0, place >= count - 1
    inside = jnp.where(is_below | is_above, 0.0, mass)
    reach = math.ceil((1.0 - slope) * centre) + 1
    pad = reach + 1  # the outermost places stay empty
    moved = jnp.zeros((mass.shape[0], count + 2 * pad))
    for way in range(-reach, reach + 1):
        share = inside * jnp.maximum(1.0 - jnp.abs(near - atoms - way), 0.0)
        moved += jnp.pad(share, ((0, 0), (pad + way, pad - way)))
    source = jnp.clip(pad + atoms - whole[:, None], 0, moved.shape[1] - 1).astype(int)
    projected = jnp.take_along_axis(moved, source, axis=1, mode="promise_in_bounds")
    projected = jnp.where(jnp.isnan(offset)[:, None], jnp.nan, projected)  # no place: what has diverged is to show
    below, above = (jnp.where(is_out, mass, 0.0).sum(axis=1) for is_out in (is_below, is_above))
    is_beyond = (place < -1e-3) | (place > count - 1 + 1e-3)
    return Projected(projected.at[:, 0].add(below).at[:, -1].add(above), jnp.where(is_beyond, mass, 0.0).sum(axis=1))

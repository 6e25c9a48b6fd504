"""Which steps of which episodes an update looks at, and where recurrent segments start.

Two layouts share one form, rows of steps with a flag at every segment start. `pack_episodes` lays whole
episodes end to end into rows; `draw_segments` draws short segments, one per row. All shapes are fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Rows(NamedTuple):
    """Steps of a batch of episodes in rows; [T, W] with time first, as a scan wants it."""

    episode: Array  # [T, W] which episode of the batch
    step: Array  # [T, W] its step
    valid: Array  # [T, W] False in padding
    counted: Array  # [B] which episodes of the batch found a place


def draw_cuts(key: Array, length: Array, n_cuts: int, horizon: int) -> Array:
    """Flags of an episode's segment starts: step 0 and `n_cuts` cut points without replacement from 1 … L−1.

    n_cuts ≥ L−1 cuts everywhere. With one cut the paper also draws c = 0, "no cut", with probability 1/L.
    Returns  # [horizon] bool
    """
    time = jnp.arange(horizon)
    if n_cuts == 0:
        return time == 0
    if n_cuts == 1:
        return (time == 0) | (time == jax.random.randint(key, (), 0, jnp.maximum(length, 1)))
    if n_cuts >= horizon - 1:
        return time < length
    may_cut = (time >= 1) & (time < length)
    score = jnp.where(may_cut, jax.random.uniform(key, (horizon,)), -1.0)
    best, chosen = jax.lax.top_k(score, n_cuts)
    chosen = jnp.where(best >= 0.0, chosen, horizon)  # an episode may have fewer places to cut
    return (time == 0).at[chosen].set(True, mode="drop")


def pack_episodes(length: Array, n_rows: int, row_length: int) -> Rows:
    """Lay episodes end to end, in order; one that does not fit into the rest of a row opens the next row.

    Those that no row can take are not counted. length  # [B]; rows  # [row_length, n_rows]
    """

    def place(carry: tuple[Array, Array], size: Array) -> tuple[tuple[Array, Array], Array]:
        row, offset = carry
        opens = offset + size > row_length
        row = jnp.where(opens, row + 1, row)
        offset = jnp.where(opens, 0, offset)
        return (row, offset + size), row * row_length + offset

    zero = jnp.zeros((), length.dtype)
    _, first = jax.lax.scan(place, (zero, zero), length)  # [B] cell of each episode's first step, increasing
    cell = jnp.arange(n_rows * row_length)
    episode = jnp.searchsorted(first, cell, side="right", method="scan_unrolled") - 1
    step = cell - first[episode]
    rows = Rows(
        episode=episode.reshape(n_rows, row_length).T,
        step=step.reshape(n_rows, row_length).T,
        valid=(step < length[episode]).reshape(n_rows, row_length).T,
        counted=(first + length) <= n_rows * row_length,
    )
    return rows._replace(step=jnp.where(rows.valid, rows.step, 0))


def segment_bounds(length: Array, phase: Array, segment: Array, segment_length: int) -> tuple[Array, Array]:
    """First step and end of a segment of the grid 0, phase, phase + segment_length, …; empty past the episode."""
    end = phase + segment * segment_length
    return jnp.maximum(end - segment_length, 0), jnp.minimum(end, length)


def draw_segments(key: Array, length: Array, segment_length: int, n_segments: int, horizon: int) -> tuple[Array, Array]:
    """Bounds of segments of one episode, drawn without replacement from a grid with a random phase.

    The grid covers the episode without overlap, its ends included (there segments may be shorter), so every
    step is drawn equally often. An episode with fewer segments gives all of them, and empty ones.
    Returns first step and end  # [n_segments] each
    """
    phase_key, choice_key = jax.random.split(key)
    phase = jax.random.randint(phase_key, (), 1, segment_length + 1)
    n_grid = (horizon - 2) // segment_length + 2  # the most segments any phase can give
    first, end = segment_bounds(length, phase, jnp.arange(n_grid), segment_length)
    score = jnp.where(first < end, jax.random.uniform(choice_key, (n_grid,)), -1.0)
    if n_segments > n_grid:
        score = jnp.pad(score, (0, n_segments - n_grid), constant_values=-1.0)
    best, chosen = jax.lax.top_k(score, n_segments)
    first, end = segment_bounds(length, phase, chosen, segment_length)
    return jnp.where(best >= 0.0, first, 0), jnp.where(best >= 0.0, end, 0)


def rows_of_segments(first: Array, end: Array, segment_length: int) -> Rows:
    """One row per segment. first, end  # [B, K]; rows  # [segment_length, B·K]"""
    n_episodes, n_segments = first.shape
    step = first.reshape(-1) + jnp.arange(segment_length)[:, None]
    valid = step < end.reshape(-1)
    episode = jnp.repeat(jnp.arange(n_episodes), n_segments)
    return Rows(
        episode=jnp.broadcast_to(episode, step.shape),
        step=jnp.where(valid, step, 0),
        valid=valid,
        counted=(end > first).any(axis=1),
    )


def sum_by_episode(values: Array, rows: Rows) -> Array:
    """Sums of values over the valid cells of each episode.  # [B]

    A product with a one-hot matrix and not a scatter: on a GPU a scatter adds in no fixed order.
    """
    one_hot = jax.nn.one_hot(rows.episode, rows.counted.shape[0], dtype=values.dtype)
    return jnp.einsum("tw,twb->b", jnp.where(rows.valid, values, 0.0), one_hot)

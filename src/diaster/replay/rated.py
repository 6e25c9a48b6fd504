"""Which spans of a ring have a number, so that draws choose among these alone, each of their steps as likely.

Only a ring that may hold spans without one has this.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from diaster.types import Episode, Spans


class RatedSpans(NamedTuple):
    """Counts along the live spans, the oldest first; they stay as they are past the newest."""

    is_rated: Array  # [E] by place in the table
    steps: Array  # [E] of rated spans up to each one and with it
    spans: Array  # [E] likewise, how many

    @property
    def n_steps(self) -> Array:
        """How many steps of rated spans are stored."""
        return self.steps[-1]

    @property
    def n_spans(self) -> Array:
        """How many rated spans are stored."""
        return self.spans[-1]


def rated_spans(is_rated: Array, length: Array, oldest: Array, newest: Array) -> RatedSpans:
    """The counts of a ring whose spans `oldest` … `newest` − 1 are alive."""
    slots = length.shape[0]
    order = jnp.arange(slots)
    place = (oldest + order) % slots
    counts = is_rated[place] & (order < newest - oldest)
    return RatedSpans(is_rated, jnp.cumsum(jnp.where(counts, length[place], 0)), jnp.cumsum(counts))


def nth(so_far: Array, index: Array) -> Array:
    """Which entry an index falls into where entries have counts; `so_far` are their running sums.  # as index"""
    entry = jnp.searchsorted(so_far, index, side="right", method="scan_unrolled")
    return jnp.minimum(entry, so_far.shape[0] - 1)  # only where there are none at all


def rated_parts(episode: Episode) -> list[Episode]:
    """The stretches of spans that have a number, each as an episode: what a decomposer may see."""
    spans = episode.to_decompose
    edges = np.flatnonzero(np.diff(spans.is_rated, prepend=False, append=False))
    return [_part(episode, spans, int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _part(episode: Episode, spans: Spans, first: int, end: int) -> Episode:
    """Some spans of an episode, from the first to that before the last, less what is known of their rewards."""
    start, stop = spans.start[first], spans.end[end - 1]
    own = Spans(spans.end[first:end] - start, spans.number[first:end])
    is_last = end == len(spans.end)
    return Episode(
        obs=episode.obs[start : stop + 1],
        action=episode.action[start:stop],
        episode_return=float(own.number.sum()),
        terminated=episode.terminated and is_last,
        spans=own,
    )

"""Feedback that arrives when its span has been stored long since.

A span's number, counted from the start of the run, is what it goes by: the first span that was ever inserted has 0, and
the spans of an episode have numbers one after the other.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from diaster.replay.rated import nth, rated_spans
from diaster.replay.store import EpisodeBlock, EpisodeStore


def give_feedback(
    store: EpisodeStore, span: Array, value: Array, n_rows: int
) -> tuple[EpisodeStore, EpisodeBlock, Array]:
    """Spans get their feedback. Of several with one number in a call, each is taken for itself: give it once.

    Returns the store; the spans as a block, which a decomposer's `ingest` has not seen before and is to be given now;
    and which of them were waiting. One that has been overwritten, or has its number already, changes nothing and is not
    in the block, and neither is padding (−1). n_rows has to hold all: a span takes a row more than it has steps.
    span, value  # [F]
    """
    assert store.rated is not None, "a store that may hold spans without a number"
    slots = store.length.shape[0]
    place = jnp.where(span >= 0, span, 0) % slots
    is_stored = (span >= store.oldest) & (span < store.newest)
    was_waiting = is_stored & ~store.rated.is_rated[place] & ~jnp.isnan(value)
    block = _stored_block(store, place, was_waiting, n_rows)
    number = value if store.known is None else value - _sums(block)
    block = block._replace(episode_return=jnp.where(was_waiting, number, 0.0), known=None)
    written = jnp.where(was_waiting, place, slots)  # what points outside of the array is dropped
    is_rated = store.rated.is_rated.at[written].set(True, mode="drop")
    completed = store._replace(
        episode_return=store.episode_return.at[written].set(number, mode="drop"),
        rated=rated_spans(is_rated, store.length, store.oldest, store.newest),
    )
    return completed, block, was_waiting


def _stored_block(store: EpisodeStore, place: Array, wanted: Array, n_rows: int) -> EpisodeBlock:
    """Stored spans as they would have been inserted, each with a last observation of its own; without numbers."""
    capacity = store.obs.shape[0]
    length = jnp.where(wanted, store.length[place], 0)
    end = jnp.cumsum(jnp.where(wanted, length + 1, 0))
    row = jnp.arange(n_rows)
    of_span = nth(end, row)
    is_row = row < end[-1]
    step = jnp.where(is_row, row - (end[of_span] - length[of_span] - 1), 0)
    is_step = is_row & (step < length[of_span])
    stored_row = (store.first_row[place[of_span]] + step) % capacity
    stored_step = (store.first_step[place[of_span]] + step) % capacity
    return EpisodeBlock(
        obs=jnp.where(is_row[:, None], store.obs[stored_row], 0.0),
        action=jnp.where(is_step[:, None], store.action[stored_step], 0.0),
        row_episode=jnp.where(is_row, of_span, -1),
        row_step=step,
        length=length,
        episode_return=jnp.zeros(length.shape),
        terminated=wanted & store.terminated[place],
        known=None if store.known is None else jnp.where(is_step, store.known[stored_step], 0.0),
    )


def _sums(block: EpisodeBlock) -> Array:
    """What is known of the rewards of each span.  # [F]"""
    is_of = jnp.asarray(block.row_episode) == jnp.arange(block.length.shape[0])[:, None]  # [F, R]
    return jnp.where(is_of, jnp.asarray(block.known), 0.0).sum(axis=1)

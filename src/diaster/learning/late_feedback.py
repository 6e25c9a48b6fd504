"""Feedback on stored spans that comes late: the store has it from then on, and the decomposer learns from it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from diaster.decomposers import Decomposer
from diaster.learning.labels import Labels
from diaster.learning.updates import each_seed
from diaster.replay.late import give_feedback
from diaster.replay.store import EpisodeBlock, EpisodeStore


class LateFeedback:
    """Completes spans of all seeds, in stores that may hold spans without a number."""

    def __init__(self, decomposer: Decomposer, horizon: int) -> None:
        self._decomposer, self._horizon = decomposer, horizon
        self._complete = jax.jit(each_seed(self._complete_seed), donate_argnums=(0, 1))

    def give(
        self, states: Any, stores: EpisodeStore, labels: Labels, spans: ArrayLike, values: ArrayLike
    ) -> tuple[Any, EpisodeStore, NDArray[np.bool_], EpisodeBlock]:
        """The states and stores with the feedback; which spans were waiting for it  # [S, F]; and these as blocks.

        Spans go by their numbers, as in `replay/late.py`; −1 is none. Stored rewards are renewed. Waits for the result.
        """
        given = np.asarray(spans, np.int32), np.asarray(values, np.float32)
        states, stores, was_waiting, block, first, end = self._complete(states, stores, *given)
        waited = np.asarray(was_waiting)
        if labels.are_learnt and waited.any():
            labels.renew_from(states, stores, np.asarray(first, np.int64), np.asarray(end, np.int64))
        return states, stores, waited, block

    def _complete_seed(
        self, state: Any, store: EpisodeStore, span: Array, value: Array
    ) -> tuple[Any, EpisodeStore, Array, EpisodeBlock, Array, Array]:
        """And the steps in which there is something new: the first of them, and that after the last."""
        store, block, was_waiting = give_feedback(store, span, value, span.shape[0] * (self._horizon + 1))
        state = self._decomposer.ingest(state, store, block)
        place = jnp.where(was_waiting, span, 0) % store.length.shape[0]
        first = jnp.where(was_waiting, store.first_step[place], store.next_step).min()
        end = jnp.where(was_waiting, store.first_step[place] + store.length[place], first).max()
        return state, store, was_waiting, block, first, end

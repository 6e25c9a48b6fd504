"""Rewards of single steps that are stored: where r̂ or its correction needs the episode, and for the upper reference.

They are numbered as the steps of the store are. Every other method computes rewards when a batch is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.decomposers import Decomposer
from diaster.learning.updates import each_seed
from diaster.replay.store import EpisodeStore, Steps, gather_steps
from diaster.types import Episode

ROWS = (2, 64)  # rows per call that renews labels: of the newest episodes, of all


class Labels:
    """The stored rewards of all seeds; none where the method needs none."""

    def __init__(self, decomposer: Decomposer, horizon: int, n_seeds: int, capacity: int, device: jax.Device) -> None:
        self._decomposer, self._horizon, self._device = decomposer, horizon, device
        self.values: Array | None = None  # [S, N]
        self._label = exact_label(decomposer) if decomposer.exact_sum else decomposer.label
        if self._label is not None or decomposer.is_hidden_reward:
            self.values = jax.device_put(jnp.zeros((n_seeds, capacity)), device)
        self.age = 0  # updates of the decomposer since all were renewed
        self._renew = jax.jit(self._renew_seeds, static_argnums=4, donate_argnums=2)
        self._write_hidden = jax.jit(each_seed(self._write_hidden_of_seed), donate_argnums=1)

    @property
    def are_learnt(self) -> bool:
        """Whether they are made by the method's net, and age as it learns."""
        return self.values is not None and self._label is not None

    def add(
        self,
        states: Any,
        stores: EpisodeStore,
        episodes: Sequence[Sequence[Episode]],
        n_rows: int,
        before: NDArray[np.int64],
        after: NDArray[np.int64],
    ) -> None:
        """Label new episodes, which the stores hold: steps `before` … `after − 1` of every seed, n rows at most."""
        if self.are_learnt:
            self.renew_from(states, stores, before, after)
        elif self.values is not None:
            hidden = np.zeros((len(episodes), n_rows), np.float32)
            for row, of_seed in zip(hidden, episodes, strict=True):
                rewards = [episode.hidden_reward for episode in of_seed if episode.hidden_reward is not None]
                assert len(rewards) == len(of_seed), "the upper reference needs the hidden rewards"
                if rewards:
                    row[: sum(map(len, rewards))] = np.concatenate(rewards)
            count = (after - before).astype(np.int32)
            self.values = self._write_hidden(states, self.values, stores, jax.device_put(hidden, self._device), count)

    def renew_all(self, states: Any, stores: EpisodeStore, n_steps: NDArray[np.int64]) -> None:
        """Label every stored step anew; n steps of each seed have been inserted so far."""
        assert self.values is not None
        self.renew_from(states, stores, np.maximum(n_steps - self.values.shape[1], 0), n_steps)
        self.age = 0

    def renew_seeds(
        self, states: Any, stores: EpisodeStore, n_steps: NDArray[np.int64], positions: NDArray[np.intp]
    ) -> None:
        """The same for some seeds, whose nets are others after a rollback; the other seeds keep their labels."""
        kept, age = np.array(self.values), self.age
        self.renew_all(states, stores, n_steps)
        kept[positions] = np.asarray(self.values)[positions]
        self.values, self.age = jax.device_put(kept, self._device), age

    def renew_from(self, states: Any, stores: EpisodeStore, first: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        """Renew the labels of all episodes that start at a numbered step, `first` … `end − 1` of every seed."""
        n_steps = int((end - first).max())
        n_rows = next((n for n in ROWS if n_steps <= n * self._horizon), ROWS[-1])
        for offset in range(0, n_steps, self._horizon * n_rows):
            start = (first + offset).astype(np.int32)
            self.values = self._renew(states, stores, self.values, start, n_rows)

    def _renew_seeds(self, states: Any, stores: EpisodeStore, labels: Array, starts: Array, n_rows: int) -> Array:
        renew = each_seed(partial(self._renew_seed, n_rows=n_rows))
        renewed: Array = renew(states, stores, labels, starts)
        return renewed

    def _renew_seed(self, state: Any, store: EpisodeStore, labels: Array, start: Array, n_rows: int) -> Array:
        """Renew the labels of the episodes that start within n_rows · horizon steps.

        Each row takes the episodes that start within `horizon` steps, whole: two horizons hold them.
        """
        assert self._label is not None
        horizon, capacity = self._horizon, labels.shape[0]
        begin = jnp.maximum(start + jnp.arange(n_rows) * horizon, store.first_live_step)  # [W]
        end = start + (jnp.arange(n_rows) + 1) * horizon
        there = store.episode[begin % capacity]
        # The first episode that starts here: the one that is there, or the next.
        is_first = store.first_step[there] == begin
        first_step = jnp.where(is_first, begin, store.first_step[there] + store.length[there])
        number = first_step + jnp.arange(2 * horizon)[:, None]  # [T, W]
        is_stored = number < store.next_step
        number = jnp.where(is_stored, number, jnp.maximum(store.next_step - 1, 0))
        episode = store.episode[number % capacity]
        wanted = is_stored & (store.first_step[episode] >= begin) & (store.first_step[episode] < end)
        values = self._label(state, gather_steps(store, episode, number - store.first_step[episode]))
        return labels.at[jnp.where(wanted, number % capacity, capacity)].set(values, mode="drop")

    def _write_hidden_of_seed(
        self, state: Any, labels: Array, store: EpisodeStore, rewards: Array, count: Array
    ) -> Array:
        """Store the hidden rewards of the newest steps."""
        capacity = labels.shape[0]
        index = jnp.arange(rewards.shape[0])
        place = (store.next_step - count + index) % capacity
        if not self._decomposer.is_scaled_when_drawn:
            rewards = rewards / self._decomposer.scale(state)
        return labels.at[jnp.where(index < count, place, capacity)].set(rewards, mode="drop")


def exact_label(decomposer: Decomposer) -> Callable[[Any, Steps], Array]:
    """r̂, and an even share of what an episode's r̂ misses of its return: then they sum to it. Rows as with `label`."""
    plain = decomposer.label or decomposer.reward

    def label(state: Any, steps: Steps) -> Array:
        reward = plain(state, steps)  # [T, W]
        so_far = jnp.cumsum(reward, axis=0)
        first = jnp.arange(reward.shape[0])[:, None] - steps.time  # of the cell's episode
        before, end = (
            jnp.take_along_axis(so_far, jnp.clip(cell, 0, reward.shape[0] - 1), axis=0)
            for cell in (first - 1, first + steps.length - 1)
        )
        total = end - jnp.where(first > 0, before, 0.0)
        missing: Array = (steps.episode_return / decomposer.scale(state) - total) / steps.length
        return reward + missing

    return label

"""EpisodeStore: a ring of whole episodes on the device, and the draws from it.

Every episode takes L+1 rows of observations (each observation is stored once) and L steps of actions. Rows,
steps and episodes are numbered from the start of the run; a number modulo the ring's size is its place. The
stored step has no reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from diaster.config.methods import EpisodeDraw
from diaster.types import Episode, EpisodeNumbers


class EpisodeStore(NamedTuple):
    """The ring. Episodes numbered `oldest` … `newest` − 1 are alive."""

    obs: Array  # [N, D]
    action: Array  # [N, A]
    episode: Array  # [N] place in the table of the episode a step belongs to
    first_row: Array  # [E]
    first_step: Array  # [E]
    length: Array  # [E]
    episode_return: Array  # [E]
    terminated: Array  # [E]
    oldest: Array  # []
    newest: Array  # []
    next_row: Array  # []
    next_step: Array  # []

    @property
    def first_live_step(self) -> Array:
        """The number of the oldest step that is still stored."""
        slots = self.first_step.shape[0]
        return jnp.where(self.newest > self.oldest, self.first_step[self.oldest % slots], self.next_step)

    @property
    def n_steps(self) -> Array:
        """How many steps are stored."""
        return self.next_step - self.first_live_step

    @property
    def n_episodes(self) -> Array:
        """How many episodes are stored."""
        return self.newest - self.oldest


class EpisodeBlock(NamedTuple):
    """Finished episodes laid end to end and padded to a fixed size, ready for one call of `insert`."""

    obs: np.ndarray | Array  # [R, D]
    action: np.ndarray | Array  # [R, A]; the row of an episode's last observation has none
    row_episode: np.ndarray | Array  # [R] which episode of the block; −1 in padding
    row_step: np.ndarray | Array  # [R] which step of that episode
    length: np.ndarray | Array  # [F]; 0 in padding
    episode_return: np.ndarray | Array  # [F]
    terminated: np.ndarray | Array  # [F]


class Steps(NamedTuple):
    """Stored steps, what follows them, and what is known of their episode; no reward.  # any shape […]"""

    obs: Any  # […, D] arrays of JAX, or of NumPy on the host
    action: Any  # […, A]
    next_obs: Any  # […, D]
    terminal: Any  # […] True where nothing follows; False at time limits
    time: Any  # […] which step of its episode
    length: Any  # […] of its episode
    episode_return: Any  # […]


def init_store(capacity: int, obs_dim: int, action_dim: int) -> EpisodeStore:
    """An empty ring for `capacity` observations."""
    slots = capacity // 2 + 1  # the shortest episode takes two rows
    zeros = partial(jnp.zeros, dtype=jnp.int32)  # no array twice: a store may be donated
    return EpisodeStore(
        obs=jnp.zeros((capacity, obs_dim)),
        action=jnp.zeros((capacity, action_dim)),
        episode=zeros((capacity,)),
        first_row=zeros((slots,)),
        first_step=zeros((slots,)),
        length=zeros((slots,)),
        episode_return=jnp.zeros((slots,)),
        terminated=jnp.zeros((slots,), bool),
        oldest=zeros(()),
        newest=zeros(()),
        next_row=zeros(()),
        next_step=zeros(()),
    )


def refill_store(
    capacity: int, obs_dim: int, action_dim: int, first: EpisodeNumbers, episodes: Sequence[Episode]
) -> EpisodeStore:
    """The ring as `insert` has left it, from the episodes that are alive; on the host.

    `first` are the numbers of the first of them. What dead places hold is of no meaning: nothing draws from there.
    """
    empty = jax.eval_shape(partial(init_store, capacity, obs_dim, action_dim))
    store: Any = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), empty)
    slots = store.first_row.shape[0]
    numbers = first
    for episode in episodes:
        rows = numbers.row + np.arange(episode.length + 1)
        steps = numbers.step + np.arange(episode.length)
        place = numbers.episode % slots
        store.obs[rows % capacity] = episode.obs
        store.action[steps % capacity] = episode.action
        store.episode[steps % capacity] = place
        store.first_row[place], store.first_step[place] = numbers.row, numbers.step
        store.length[place], store.episode_return[place] = episode.length, episode.episode_return
        store.terminated[place] = episode.terminated
        numbers = numbers.after(episode.length)
    counts = (first.episode, numbers.episode, numbers.row, numbers.step)
    for count, value in zip((store.oldest, store.newest, store.next_row, store.next_step), counts, strict=True):
        count[...] = value
    refilled: EpisodeStore = store
    return refilled


def store_bytes(capacity: int, obs_dim: int, action_dim: int) -> int:
    """What `init_store` will take, for one seed."""
    return 4 * capacity * (obs_dim + action_dim + 1) + (capacity // 2 + 1) * (4 * 4 + 1)


def make_block(episodes: list[Episode], n_rows: int, n_episodes: int, obs_dim: int, action_dim: int) -> EpisodeBlock:
    """Lay episodes end to end, on the host, in a block of the given size."""
    block = EpisodeBlock(
        obs=np.zeros((n_rows, obs_dim), np.float32),
        action=np.zeros((n_rows, action_dim), np.float32),
        row_episode=np.full((n_rows,), -1, np.int32),
        row_step=np.zeros((n_rows,), np.int32),
        length=np.zeros((n_episodes,), np.int32),
        episode_return=np.zeros((n_episodes,), np.float32),
        terminated=np.zeros((n_episodes,), bool),
    )
    row = 0
    for number, episode in enumerate(episodes):
        length = episode.length
        block.obs[row : row + length + 1] = episode.obs
        block.action[row : row + length] = episode.action
        block.row_episode[row : row + length + 1] = number
        block.row_step[row : row + length + 1] = np.arange(length + 1)
        block.length[number] = length
        block.episode_return[number] = episode.episode_return
        block.terminated[number] = episode.terminated
        row += length + 1
    return block


def insert(store: EpisodeStore, block: EpisodeBlock) -> EpisodeStore:
    """Append a block's episodes; the oldest whole episodes make room."""
    capacity, slots = store.obs.shape[0], store.first_row.shape[0]
    length = jnp.asarray(block.length)
    is_episode = length > 0
    rows = jnp.where(is_episode, length + 1, 0)
    first_row = store.next_row + jnp.cumsum(rows) - rows
    first_step = store.next_step + jnp.cumsum(length) - length
    next_row = store.next_row + rows.sum()

    # The number of the episode in each place of the table, to see which are alive and will be overwritten.
    number = store.oldest + (jnp.arange(slots) - store.oldest) % slots
    dropped = (number < store.newest) & (store.first_row < next_row - capacity)

    place = jnp.where(is_episode, (store.newest + jnp.arange(length.shape[0])) % slots, slots)
    in_block = jnp.asarray(block.row_episode)
    is_row = in_block >= 0
    is_step = is_row & (block.row_step < length[in_block])
    n_rows = in_block.shape[0]
    row_place = jnp.where(is_row, (store.next_row + jnp.arange(n_rows)) % capacity, capacity)
    step_place = jnp.where(is_step, (first_step[in_block] + block.row_step) % capacity, capacity)

    def write(array: Array, index: Array, values: np.ndarray | Array) -> Array:
        return array.at[index].set(values, mode="drop")  # padding points outside the array

    return EpisodeStore(
        obs=write(store.obs, row_place, block.obs),
        action=write(store.action, step_place, block.action),
        episode=write(store.episode, step_place, place[in_block]),
        first_row=write(store.first_row, place, first_row),
        first_step=write(store.first_step, place, first_step),
        length=write(store.length, place, length),
        episode_return=write(store.episode_return, place, block.episode_return),
        terminated=write(store.terminated, place, block.terminated),
        oldest=store.oldest + dropped.sum(),
        newest=store.newest + is_episode.sum(),
        next_row=next_row,
        next_step=store.next_step + length.sum(),
    )


def draw_steps(store: EpisodeStore, key: Array, n: int) -> Array:
    """Numbers of n stored steps, drawn uniformly with replacement.  # [n]"""
    return jax.random.randint(key, (n,), store.first_live_step, store.next_step)


def draw_stretches(store: EpisodeStore, key: Array, length: int, n: int) -> Array:
    """Numbers of steps that follow one another, n stretches from places drawn uniformly.  # [length, n]

    After the newest step comes the oldest: both are at the edge of an episode.
    """
    offset = draw_steps(store, key, n) - store.first_live_step + jnp.arange(length)[:, None]
    return store.first_live_step + offset % jnp.maximum(store.next_step - store.first_live_step, 1)


def draw_episodes(store: EpisodeStore, key: Array, n: int, draw: EpisodeDraw) -> Array:
    """Places in the table of n stored episodes, in proportion to their length or uniformly.  # [n]"""
    if draw == "length":
        return store.episode[draw_steps(store, key, n) % store.obs.shape[0]]
    numbers = jax.random.randint(key, (n,), store.oldest, store.newest)
    return numbers % store.first_row.shape[0]


def gather_steps(store: EpisodeStore, episode: Array, time: Array) -> Steps:
    """Steps named by their episode's place in the table and their time in it.

    Inside a compiled program what is not used of the result is not gathered.
    """
    capacity = store.obs.shape[0]
    row = store.first_row[episode] + time
    length = store.length[episode]
    return Steps(
        obs=store.obs[row % capacity],
        action=store.action[(store.first_step[episode] + time) % capacity],
        next_obs=store.obs[(row + 1) % capacity],
        terminal=store.terminated[episode] & (time == length - 1),
        time=time,
        length=length,
        episode_return=store.episode_return[episode],
    )


def gather_numbered(store: EpisodeStore, steps: Array) -> Steps:
    """Steps by their number in the run.  # [B]"""
    episode = store.episode[steps % store.obs.shape[0]]
    return gather_steps(store, episode, steps - store.first_step[episode])

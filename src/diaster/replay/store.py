"""EpisodeStore: a ring of whole episodes on the device, and the draws from it.

Every episode takes L+1 rows of observations (each observation is stored once) and L steps of actions. Rows,
steps and episodes are numbered from the start of the run; a number modulo the ring's size is its place. The
stored step has no reward, unless a part of it is known to everyone.

Where feedback comes in pieces, an entry of the table is a span: a part of an episode with a number of its own. All that
is said of an episode here, and all that is drawn and gathered, is then of a span. The last observation of a span is the
first one of the next, and whole episodes make room, so which steps are stored does not depend on how feedback comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from diaster.config.fitted import EpisodeDraw
from diaster.nn.encoder import Encoder, encode
from diaster.replay.rated import RatedSpans, nth, rated_spans
from diaster.types import EPISODIC, Episode, EpisodeNumbers, Feedback

LEAST_RATED = 2  # spans with a number, to learn from: one alone says nothing of what made it good or bad


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
    rated: RatedSpans | None = None  # where some may have no number; it is 0 in the table
    known: Array | None = None  # [N] part of a step's reward, where a part is known
    encoder: Encoder | None = None  # where observations are images, and those who gather steps are to see features

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

    @property
    def n_numbers(self) -> Array:
        """How many numbers there have been; where some are missing, how many are stored."""
        return self.newest if self.rated is None else self.rated.n_spans

    def is_enough(self, is_ready: Array) -> Array:
        """Whether a seed that is ready can learn from what is stored."""
        return is_ready if self.rated is None else is_ready & (self.rated.n_spans >= LEAST_RATED)


class EpisodeBlock(NamedTuple):
    """Finished episodes laid end to end and padded to a fixed size, ready for one call of `insert`."""

    obs: np.ndarray | Array  # [R, D]
    action: np.ndarray | Array  # [R, A]; the row of an episode's last observation has none
    row_episode: np.ndarray | Array  # [R] which episode of the block; −1 in padding
    row_step: np.ndarray | Array  # [R] which step of that episode
    length: np.ndarray | Array  # [F]; 0 in padding
    episode_return: np.ndarray | Array  # [F]; NaN of a span without a number
    terminated: np.ndarray | Array  # [F]
    goes_on: np.ndarray | Array | None = None  # [F] whether the next span is of the same episode; None: none is
    known: np.ndarray | Array | None = None  # [R] part of the step's reward, where a part is known


class Steps(NamedTuple):
    """Stored steps, what follows them, and what is known of their episode; no reward.  # any shape […]"""

    obs: Any  # […, D] arrays of JAX, or of NumPy on the host
    action: Any  # […, A]
    next_obs: Any  # […, D]
    terminal: Any  # […] True where nothing follows; False at time limits
    time: Any  # […] which step of its episode
    length: Any  # […] of its episode
    episode_return: Any  # […]


def n_slots(capacity: int, feedback: Feedback) -> int:
    """How many episodes or spans a ring can hold at most: the shortest episode takes two rows, a span may take one."""
    return capacity if feedback.has_gaps or feedback.every == 1 else capacity // 2 + 1


def init_store(
    capacity: int, obs_dim: int, action_dim: int, feedback: Feedback = EPISODIC, obs_dtype: Any = np.float32
) -> EpisodeStore:
    """An empty ring for `capacity` observations."""
    slots = n_slots(capacity, feedback)
    zeros = partial(jnp.zeros, dtype=jnp.int32)  # no array twice: a store may be donated
    return EpisodeStore(
        obs=jnp.zeros((capacity, obs_dim), obs_dtype),
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
        rated=RatedSpans(jnp.zeros((slots,), bool), zeros((slots,)), zeros((slots,))) if feedback.has_gaps else None,
        known=jnp.zeros((capacity,)) if feedback.has_known else None,
    )


def refill_store(
    capacity: int,
    obs_dim: int,
    action_dim: int,
    first: EpisodeNumbers,
    episodes: Sequence[Episode],
    feedback: Feedback = EPISODIC,
    obs_dtype: Any = np.float32,
) -> EpisodeStore:
    """The ring as `insert` has left it, from the episodes that are alive; on the host.

    `first` are the numbers of the first of them. What dead places hold is of no meaning: nothing draws from there.
    """
    empty = jax.eval_shape(partial(init_store, capacity, obs_dim, action_dim, feedback, obs_dtype))
    store: Any = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), empty)
    slots = store.first_row.shape[0]
    numbers = first
    for episode in episodes:
        spans = episode.to_decompose
        rows = numbers.row + np.arange(episode.length + 1)
        steps = numbers.step + np.arange(episode.length)
        places = (numbers.span + np.arange(len(spans.end))) % slots
        store.obs[rows % capacity] = episode.obs
        store.action[steps % capacity] = episode.action
        store.episode[steps % capacity] = np.repeat(places, spans.length)
        store.first_row[places], store.first_step[places] = numbers.row + spans.start, numbers.step + spans.start
        store.length[places], store.episode_return[places] = spans.length, np.nan_to_num(spans.number)
        store.terminated[places] = episode.terminated & (spans.end == episode.length)
        if store.rated is not None:
            store.rated.is_rated[places] = spans.is_rated
        if store.known is not None:
            store.known[steps % capacity] = episode.known_reward
        numbers = numbers.after(episode)
    counts = (first.span, numbers.span, numbers.row, numbers.step)
    for count, value in zip((store.oldest, store.newest, store.next_row, store.next_step), counts, strict=True):
        count[...] = value
    refilled: EpisodeStore = store
    if refilled.rated is None:
        return refilled
    rated = rated_spans(jnp.asarray(refilled.rated.is_rated), *map(jnp.asarray, (store.length, *counts[:2])))
    return refilled._replace(rated=jax.tree.map(np.asarray, rated))


def store_bytes(
    capacity: int, obs_dim: int, action_dim: int, feedback: Feedback = EPISODIC, obs_dtype: Any = np.float32
) -> int:
    """What `init_store` will take, for one seed."""
    of_row: int = obs_dim * np.dtype(obs_dtype).itemsize + 4 * (action_dim + 1 + feedback.has_known)
    of_slot = 4 * 4 + 1 + feedback.has_gaps * (2 * 4 + 1)
    return capacity * of_row + n_slots(capacity, feedback) * of_slot


def make_block(
    episodes: list[Episode],
    n_rows: int,
    n_episodes: int,
    obs_dim: int,
    action_dim: int,
    feedback: Feedback = EPISODIC,
    obs_dtype: Any = np.float32,
) -> EpisodeBlock:
    """Lay episodes end to end, on the host, in a block of the given size: so many rows, so many episodes or spans."""
    block = EpisodeBlock(
        obs=np.zeros((n_rows, obs_dim), obs_dtype),
        action=np.zeros((n_rows, action_dim), np.float32),
        row_episode=np.full((n_rows,), -1, np.int32),
        row_step=np.zeros((n_rows,), np.int32),
        length=np.zeros((n_episodes,), np.int32),
        episode_return=np.zeros((n_episodes,), np.float32),
        terminated=np.zeros((n_episodes,), bool),
        goes_on=np.zeros((n_episodes,), bool) if feedback.has_spans else None,
        known=np.zeros((n_rows,), np.float32) if feedback.has_known else None,
    )
    row = number = 0
    for episode in episodes:
        length, spans = episode.length, episode.to_decompose
        last, end = number + len(spans.end) - 1, row + length
        assert spans.is_rated.all() or feedback.has_gaps, "a span without a number"
        block.obs[row : end + 1] = episode.obs
        block.action[row:end] = episode.action
        block.row_episode[row : end + 1] = np.append(np.repeat(np.arange(number, last + 1), spans.length), last)
        block.row_step[row : end + 1] = np.arange(length + 1) - spans.start[block.row_episode[row : end + 1] - number]
        block.length[number : last + 1] = spans.length
        block.episode_return[number : last + 1] = spans.number
        block.terminated[last] = episode.terminated
        if last > number:
            assert block.goes_on is not None, "an episode of several spans"
            block.goes_on[number:last] = True
        if block.known is not None:
            block.known[row:end] = episode.known_reward
        row, number = end + 1, last + 1
    return block


def rows_of(block: EpisodeBlock) -> Array:
    """How many rows each of a block's episodes takes, up to the next one.  # [F]"""
    length = jnp.asarray(block.length)
    rows = jnp.where(length > 0, length + 1, 0)
    return rows if block.goes_on is None else rows - block.goes_on


def insert(store: EpisodeStore, block: EpisodeBlock) -> EpisodeStore:
    """Append a block's episodes; the oldest whole episodes make room."""
    capacity, slots = store.obs.shape[0], store.first_row.shape[0]
    length = jnp.asarray(block.length)
    is_episode = length > 0
    rows = rows_of(block)
    first_row = store.next_row + jnp.cumsum(rows) - rows
    first_step = store.next_step + jnp.cumsum(length) - length
    next_row = store.next_row + rows.sum()

    # The number of the episode in each place of the table, to see which are alive and will be overwritten.
    number = store.oldest + (jnp.arange(slots) - store.oldest) % slots
    dropped = (number < store.newest) & (store.first_row < next_row - capacity)
    if block.goes_on is not None:  # with a span all of its episode is dropped
        episode = store.first_row - store.first_step  # rows run ahead of steps by one for every episode
        dropped = (number < store.newest) & (episode <= jnp.where(dropped, episode, -1).max())

    place = jnp.where(is_episode, (store.newest + jnp.arange(length.shape[0])) % slots, slots)
    in_block = jnp.asarray(block.row_episode)
    is_row = in_block >= 0
    is_step = is_row & (block.row_step < length[in_block])
    n_rows = in_block.shape[0]
    row_place = jnp.where(is_row, (store.next_row + jnp.arange(n_rows)) % capacity, capacity)
    step_place = jnp.where(is_step, (first_step[in_block] + block.row_step) % capacity, capacity)

    def write(array: Array, index: Array, values: np.ndarray | Array) -> Array:
        return array.at[index].set(values, mode="drop")  # padding points outside the array

    inserted = EpisodeStore(
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
        known=None if store.known is None else write(store.known, step_place, jnp.asarray(block.known)),
    )
    if store.rated is None:
        return inserted
    is_rated = write(store.rated.is_rated, place, ~jnp.isnan(block.episode_return))
    return inserted._replace(
        episode_return=write(store.episode_return, place, jnp.nan_to_num(block.episode_return)),
        rated=rated_spans(is_rated, inserted.length, inserted.oldest, inserted.newest),
    )


def draw_steps(store: EpisodeStore, key: Array, n: int) -> Array:
    """Numbers of n stored steps, drawn uniformly with replacement.  # [n]"""
    return jax.random.randint(key, (n,), store.first_live_step, store.next_step)


def draw_rated_steps(store: EpisodeStore, key: Array, n: int) -> Array:
    """The same of those whose span has a number.  # [n]"""
    if store.rated is None:
        return draw_steps(store, key, n)
    return rated_steps(store, store.rated, jax.random.randint(key, (n,), 0, jnp.maximum(store.rated.n_steps, 1)))


def rated_steps(store: EpisodeStore, rated: RatedSpans, index: Array) -> Array:
    """Numbers of steps by their index among those whose span has a number, the oldest first.  # as index"""
    order = nth(rated.steps, index)
    place = (store.oldest + order) % store.length.shape[0]
    return store.first_step[place] + store.length[place] - (rated.steps[order] - index)


def draw_stretches(store: EpisodeStore, key: Array, length: int, n: int, only_rated: bool = False) -> Array:
    """Numbers of steps that follow one another, n stretches from places drawn uniformly.  # [length, n]

    After the newest step comes the oldest: both are at the edge of an episode. Spans without a number can be left out.
    """
    if only_rated and store.rated is not None:
        n_steps = jnp.maximum(store.rated.n_steps, 1)
        index = jax.random.randint(key, (n,), 0, n_steps) + jnp.arange(length)[:, None]
        return rated_steps(store, store.rated, index % n_steps)
    offset = draw_steps(store, key, n) - store.first_live_step + jnp.arange(length)[:, None]
    return store.first_live_step + offset % jnp.maximum(store.next_step - store.first_live_step, 1)


def draw_episodes(store: EpisodeStore, key: Array, n: int, draw: EpisodeDraw) -> Array:
    """Places in the table of n stored episodes with a number, in proportion to their length or uniformly.  # [n]"""
    if draw == "length":
        return store.episode[draw_rated_steps(store, key, n) % store.obs.shape[0]]
    if store.rated is None:
        numbers = jax.random.randint(key, (n,), store.oldest, store.newest)
    else:
        index = jax.random.randint(key, (n,), 0, jnp.maximum(store.rated.n_spans, 1))
        numbers = store.oldest + nth(store.rated.spans, index)
    return numbers % store.first_row.shape[0]


def first_places(store: EpisodeStore, place: Array) -> Array:
    """For places in the table, those of the first spans of the same episodes.  # as place"""
    slots = store.first_row.shape[0]
    number = store.oldest + (place - store.oldest) % slots
    # Rows are ahead of steps by one for every episode before, so by as much for all spans of one, and these lie
    # together: a search by halves finds the first.
    ahead = store.first_row - store.first_step
    low, high = jnp.broadcast_to(store.oldest, number.shape), number
    for _ in range(slots.bit_length()):
        middle = (low + high) // 2
        is_same = ahead[middle % slots] == ahead[place]
        low, high = jnp.where(is_same, low, middle + 1), jnp.where(is_same, middle, high)
    return high % slots


def are_last(store: EpisodeStore, steps: Array, only_rated: bool = False) -> Array:
    """Whether the next of the steps of a stretch is none of the same episode. Steps by their number.  # as steps"""
    slots, following = store.obs.shape[0], jnp.minimum(steps + 1, store.next_step - 1)
    here, there = (store.episode[number % slots] for number in (steps, following))
    ahead = store.first_row - store.first_step  # of steps: by one for every episode
    is_last = (steps + 1 >= store.next_step) | (ahead[here] != ahead[there])
    return is_last | ~store.rated.is_rated[there] if only_rated and store.rated is not None else is_last


def gather_steps(store: EpisodeStore, episode: Array, time: Array) -> Steps:
    """Steps named by their episode's place in the table and their time in it.

    Inside a compiled program what is not used of the result is not gathered.
    """
    capacity = store.obs.shape[0]
    row = store.first_row[episode] + time
    length = store.length[episode]
    obs, next_obs = store.obs[row % capacity], store.obs[(row + 1) % capacity]
    if store.encoder is not None:
        obs, next_obs = encode(store.encoder, obs), encode(store.encoder, next_obs)
    return Steps(
        obs=obs,
        action=store.action[(store.first_step[episode] + time) % capacity],
        next_obs=next_obs,
        terminal=store.terminated[episode] & (time == length - 1),
        time=time,
        length=length,
        episode_return=store.episode_return[episode],
    )


def gather_numbered(store: EpisodeStore, steps: Array) -> Steps:
    """Steps by their number in the run.  # [B]"""
    episode = store.episode[steps % store.obs.shape[0]]
    return gather_steps(store, episode, steps - store.first_step[episode])

"""The ring of whole episodes against a plain Python list of them.

Every observation carries the number of its row and every action the number of its step, counted from the
start of the run, so a wrong gather shows as a wrong number.
"""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.replay import store as replay
from diaster.types import Episode, Feedback

OBS, ACTIONS = 2, 1
CAPACITY, BLOCK_ROWS, BLOCK_EPISODES = 50, 40, 12

insert = jit(replay.insert)
gather_numbered = jit(replay.gather_numbered)
gather_steps = jit(replay.gather_steps)
draw_steps = jit(replay.draw_steps, static_argnums=2)
draw_stretches = jit(replay.draw_stretches, static_argnums=(2, 3))
draw_episodes = jit(replay.draw_episodes, static_argnums=(2, 3))


class Ledger:
    """What the ring has to hold: numbers its episodes' rows and steps, drops the oldest that no longer fit."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity, self.row, self.step, self.number = capacity, 0, 0, 0
        self.live: deque[tuple[int, int, int, Episode]] = deque()  # number, first row, first step, episode

    def add(self, length: int, terminated: bool) -> Episode:
        rows, steps = self.row + np.arange(length + 1), self.step + np.arange(length)
        episode = Episode(
            obs=np.stack([rows, -rows], axis=-1).astype(np.float32),
            action=steps[:, None].astype(np.float32),
            episode_return=1000.0 + self.number,
            terminated=terminated,
        )
        self.live.append((self.number, self.row, self.step, episode))
        self.row, self.step, self.number = self.row + length + 1, self.step + length, self.number + 1
        while sum(item[3].length + 1 for item in self.live) > self.capacity:
            self.live.popleft()
        return episode

    @property
    def n_steps(self) -> int:
        return sum(item[3].length for item in self.live)


def block_of(episodes: list[Episode], n_rows: int = BLOCK_ROWS, n_episodes: int = BLOCK_EPISODES):
    return replay.make_block(episodes, n_rows, n_episodes, OBS, ACTIONS)


def random_block(ledger: Ledger, rng: np.random.Generator, longest: int) -> replay.EpisodeBlock:
    """A few finished episodes of one chunk, sometimes none."""
    episodes, rows = [], 0
    for _ in range(rng.integers(0, 6)):
        length = int(rng.integers(1, longest + 1))
        if rows + length + 1 > BLOCK_ROWS:
            break
        episodes.append(ledger.add(length, bool(rng.random() < 0.5)))
        rows += length + 1
    return block_of(episodes)


def filled(lengths: list[int], terminated: list[bool] | None = None) -> tuple[replay.EpisodeStore, Ledger]:
    """A ring into which episodes went one by one."""
    store, ledger = replay.init_store(CAPACITY, OBS, ACTIONS), Ledger()
    for number, length in enumerate(lengths):
        store = insert(store, block_of([ledger.add(length, terminated[number] if terminated else False)]))
    return store, ledger


def assert_holds(store: replay.EpisodeStore, ledger: Ledger) -> None:
    """Every number the ring can give, for every live step, in a fixed shape."""
    assert int(store.n_episodes) == len(ledger.live)
    assert int(store.n_steps) == ledger.n_steps
    assert int(store.newest) == ledger.number and int(store.oldest) == ledger.number - len(ledger.live)
    assert int(store.next_row) == ledger.row and int(store.next_step) == ledger.step
    if not ledger.live:
        return
    slots = store.length.shape[0]
    expected, places = [], []
    for number, first_row, first_step, episode in ledger.live:
        place = number % slots
        assert int(store.length[place]) == episode.length
        assert float(store.episode_return[place]) == episode.episode_return
        assert bool(store.terminated[place]) == episode.terminated
        for t in range(episode.length):
            row, terminal = first_row + t, episode.terminated and t == episode.length - 1
            expected.append((row, first_step + t, row + 1, terminal, t, episode.length, episode.episode_return))
            places.append(place)
    assert int(store.first_live_step) == expected[0][1]
    columns = (np.resize(np.array(column), CAPACITY) for column in zip(*expected, strict=True))
    row, step, next_row, terminal, time, length, episode_return = columns
    by_number = gather_numbered(store, step.astype(np.int32))
    by_place = gather_steps(store, np.resize(places, CAPACITY), time)
    for drawn in (jax.device_get(by_number), jax.device_get(by_place)):
        np.testing.assert_array_equal(drawn.obs, np.stack([row, -row], axis=-1))
        np.testing.assert_array_equal(drawn.action[:, 0], step)
        np.testing.assert_array_equal(drawn.next_obs, np.stack([next_row, -next_row], axis=-1))
        np.testing.assert_array_equal(drawn.terminal, terminal)
        np.testing.assert_array_equal(drawn.time, time)
        np.testing.assert_array_equal(drawn.length, length)
        np.testing.assert_array_equal(drawn.episode_return, episode_return)


def one_at_a_time(store: replay.EpisodeStore) -> replay.EpisodeStore:
    """On the host, so that the many small look-ups cost nothing."""
    return jax.tree.map(np.asarray, store)


@pytest.mark.parametrize(("seed", "longest"), [(0, 1), (1, 6), (2, 20), (3, 39)])
def test_the_ring_holds_exactly_the_newest_whole_episodes_that_fit(seed, longest):
    rng = np.random.default_rng(seed)
    store, ledger = replay.init_store(CAPACITY, OBS, ACTIONS), Ledger()
    for _ in range(60):
        store = insert(store, random_block(ledger, rng, longest))
        assert_holds(one_at_a_time(store), ledger)
    assert ledger.row > 4 * CAPACITY  # it has wrapped several times
    assert ledger.number > store.length.shape[0] or longest > 6  # so has the table of episodes


def test_an_empty_ring_holds_nothing():
    store = replay.init_store(CAPACITY, OBS, ACTIONS)
    assert int(store.n_steps) == 0 and int(store.n_episodes) == 0
    assert_holds(insert(store, block_of([])), Ledger())


def test_every_observation_is_stored_once():
    lengths = [3, 7, 1, 12]
    store, ledger = filled(lengths)
    n_rows = sum(length + 1 for length in lengths)
    assert int(store.next_row) == n_rows == ledger.row
    np.testing.assert_array_equal(store.obs[:n_rows, 0], np.arange(n_rows))
    np.testing.assert_array_equal(store.obs[n_rows:], 0.0)
    np.testing.assert_array_equal(store.action[: sum(lengths), 0], np.arange(sum(lengths)))
    np.testing.assert_array_equal(store.action[sum(lengths) :], 0.0)


def test_the_row_of_a_last_observation_stores_no_action():
    ledger = Ledger()
    block = block_of([ledger.add(3, False), ledger.add(1, True)])
    block.action[[3, 5]] = 999.0  # rows 0 to 3 and 4 to 5: what stands here is nobody's action
    store = insert(replay.init_store(CAPACITY, OBS, ACTIONS), block)
    assert not (np.asarray(store.action) == 999.0).any()
    assert_holds(one_at_a_time(store), ledger)


def test_an_episode_as_large_as_the_ring_is_kept_and_the_next_one_replaces_it():
    store, ledger = replay.init_store(CAPACITY, OBS, ACTIONS), Ledger()
    store = insert(store, block_of([ledger.add(4, False)], CAPACITY))
    store = insert(store, block_of([ledger.add(CAPACITY - 1, True)], CAPACITY))
    assert int(store.n_episodes) == 1 and int(store.n_steps) == CAPACITY - 1
    assert_holds(one_at_a_time(store), ledger)
    store = insert(store, block_of([ledger.add(1, False)], CAPACITY))
    assert int(store.n_episodes) == 1 and int(store.n_steps) == 1
    assert_holds(one_at_a_time(store), ledger)


def test_an_episode_lives_until_the_very_row_it_begins_with_is_needed():
    store, ledger = filled([23, 24])  # 24 + 25 rows of 50
    assert int(store.n_episodes) == 2
    store = insert(store, block_of([ledger.add(1, False)]))
    assert int(store.oldest) == 1 and int(store.newest) == 3  # two rows for one free: the first had to go
    full, _ = filled([23, 25])  # 24 + 26 rows of 50: full, and nothing is lost
    assert int(full.oldest) == 0 and int(full.newest) == 2


def test_episodes_of_one_block_and_of_many_blocks_make_the_same_ring():
    lengths = [5, 1, 9, 2, 11]
    one_by_one, _ = filled(lengths)
    ledger = Ledger()
    at_once = insert(
        replay.init_store(CAPACITY, OBS, ACTIONS), block_of([ledger.add(length, False) for length in lengths])
    )
    jax.tree.map(np.testing.assert_array_equal, at_once, one_by_one)


def test_the_padding_of_a_block_changes_nothing():
    store, ledger = filled([20, 20, 6])  # the next insertion wraps
    episodes = [ledger.add(4, True), ledger.add(2, False)]
    tight, wide = insert(store, block_of(episodes, 8, 2)), insert(store, block_of(episodes, 300, 150))
    jax.tree.map(np.testing.assert_array_equal, tight, wide)
    assert_holds(one_at_a_time(wide), ledger)


def test_a_step_is_terminal_only_where_its_episode_truly_ended():
    store, _ = filled([3, 3, 1, 1], [True, False, True, False])
    drawn = gather_numbered(store, jnp.arange(8))
    np.testing.assert_array_equal(drawn.terminal, [False, False, True, False, False, False, True, False])


def test_the_last_step_of_a_time_limit_is_followed_by_its_own_last_observation():
    store, _ = filled([3, 3])
    drawn = gather_numbered(store, jnp.array([2, 3]))
    np.testing.assert_array_equal(drawn.next_obs[:, 0], [3.0, 5.0])  # row 4 begins the second episode
    np.testing.assert_array_equal(drawn.obs[:, 0], [2.0, 4.0])


def test_steps_are_gathered_in_the_shape_they_are_named_in_with_all_that_is_known_of_their_episode():
    store, _ = filled([3, 2], [True, False])  # rows 0 to 3 and 4 to 6
    drawn = gather_steps(store, np.array([[0, 0], [1, 1], [1, 0]]), np.array([[0, 2], [0, 1], [1, 1]]))
    np.testing.assert_array_equal(drawn.obs[..., 0], [[0, 2], [4, 5], [5, 1]])
    np.testing.assert_array_equal(drawn.next_obs[..., 0], [[1, 3], [5, 6], [6, 2]])
    np.testing.assert_array_equal(drawn.action[..., 0], [[0, 2], [3, 4], [4, 1]])
    np.testing.assert_array_equal(drawn.terminal, [[False, True], [False, False], [False, False]])
    np.testing.assert_array_equal(drawn.time, [[0, 2], [0, 1], [1, 1]])
    np.testing.assert_array_equal(drawn.length, [[3, 3], [2, 2], [2, 3]])
    np.testing.assert_array_equal(drawn.episode_return, [[1000.0, 1000.0], [1001.0, 1001.0], [1001.0, 1000.0]])


def chi_square(counts, expected) -> float:
    return float((((counts - expected) ** 2) / expected).sum())


def is_drawn_from(counts, expected) -> bool:
    """Pearson's statistic lies within five deviations of its mean, for one distribution and no other near it."""
    degrees = len(counts) - 1
    return chi_square(counts, expected) < degrees + 5.0 * np.sqrt(2.0 * degrees) + 5.0


@pytest.fixture(scope="module")
def wrapped():
    """A ring that has wrapped, with episodes of unequal lengths: 1, 20, 3, 9 and 6 steps are alive."""
    return filled([30, 30, 12, 1, 20, 3, 9, 6])


def test_steps_are_drawn_uniformly_from_the_live_ones(wrapped):
    store, ledger = wrapped
    assert [item[3].length for item in ledger.live] == [1, 20, 3, 9, 6]
    drawn = np.asarray(draw_steps(store, jax.random.key(0), 20_000))
    live = np.arange(ledger.live[0][2], ledger.step)
    counts = np.array([(drawn == step).sum() for step in live])
    assert counts.sum() == 20_000
    assert is_drawn_from(counts, np.full(len(live), 20_000 / len(live)))


def test_stretches_are_steps_one_after_the_other_from_places_drawn_uniformly(wrapped):
    store, ledger = wrapped
    live = np.arange(ledger.live[0][2], ledger.step)
    drawn = np.asarray(draw_stretches(store, jax.random.key(2), 60, 20_000))  # more than the 39 that are stored
    assert drawn.shape == (60, 20_000)
    # After the newest comes the oldest.
    np.testing.assert_array_equal(drawn[1:], live[0] + (drawn[:-1] + 1 - live[0]) % len(live))
    counts = np.array([(drawn[0] == step).sum() for step in live])
    assert counts.sum() == 20_000
    assert is_drawn_from(counts, np.full(len(live), 20_000 / len(live)))


def test_in_a_stretch_the_last_step_of_an_episode_is_followed_by_the_first_of_the_next(wrapped):
    store, ledger = wrapped
    drawn = jax.device_get(gather_numbered(store, draw_stretches(store, jax.random.key(3), 60, 3)))
    is_last = drawn.time == drawn.length - 1
    assert is_last[:-1].any(axis=0).all()
    np.testing.assert_array_equal(drawn.time[1:], np.where(is_last[:-1], 0, drawn.time[:-1] + 1))
    number = (drawn.episode_return - 1000.0).astype(int)
    oldest, newest = ledger.live[0][0], ledger.number - 1
    following = np.where(number[:-1] == newest, oldest, number[:-1] + 1)
    np.testing.assert_array_equal(number[1:], np.where(is_last[:-1], following, number[:-1]))


def test_a_stretch_of_an_empty_ring_or_of_one_step_is_finite():
    empty = replay.init_store(CAPACITY, OBS, ACTIONS)
    assert draw_stretches(empty, jax.random.key(0), 5, 2).shape == (5, 2)
    single, _ = filled([1])
    np.testing.assert_array_equal(draw_stretches(single, jax.random.key(0), 5, 2), 0)


@pytest.mark.parametrize("draw", ["length", "uniform"])
def test_episodes_are_drawn_in_proportion_to_their_length_or_uniformly(wrapped, draw):
    store, ledger = wrapped
    places = np.asarray(draw_episodes(store, jax.random.key(1), 20_000, draw))
    live = [item[0] % store.length.shape[0] for item in ledger.live]
    counts = np.array([(places == place).sum() for place in live])
    assert counts.sum() == 20_000
    lengths = np.array([item[3].length for item in ledger.live])
    by_length, uniform = 20_000 * lengths / lengths.sum(), np.full(len(live), 20_000 / len(live))
    expected, other = (by_length, uniform) if draw == "length" else (uniform, by_length)
    assert is_drawn_from(counts, expected)
    assert not is_drawn_from(counts, other)


def test_insertion_may_be_given_the_old_ring_to_write_into():
    donating = jit(replay.insert, donate_argnums=0)
    rng = np.random.default_rng(5)
    store, kept, ledger = (
        replay.init_store(CAPACITY, OBS, ACTIONS),
        replay.init_store(CAPACITY, OBS, ACTIONS),
        Ledger(),
    )
    # Donated buffers have to be distinct; the scalars and tables of a fresh ring may share one.
    store = jax.tree.map(jnp.copy, store)
    for _ in range(15):
        block, old = random_block(ledger, rng, 15), store
        store, kept = donating(store, block), insert(kept, block)
        assert old.obs.is_deleted()
        jax.tree.map(np.testing.assert_array_equal, store, kept)
    assert_holds(one_at_a_time(store), ledger)


def test_seeds_side_by_side_keep_their_own_episodes():
    rng = np.random.default_rng(6)
    ledgers = [Ledger() for _ in range(3)]
    stores = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), replay.init_store(CAPACITY, OBS, ACTIONS))
    all_insert = jit(jax.vmap(replay.insert), donate_argnums=0)
    for _ in range(15):
        blocks = [random_block(ledger, rng, longest) for ledger, longest in zip(ledgers, (2, 10, 30), strict=True)]
        stores = all_insert(stores, jax.tree.map(lambda *parts: np.stack(parts), *blocks))
    assert len({ledger.row for ledger in ledgers}) == 3
    for position, ledger in enumerate(ledgers):
        assert_holds(jax.tree.map(lambda leaf, position=position: np.asarray(leaf[position]), stores), ledger)

    def draw(store, key):
        steps = replay.draw_steps(store, key, 64)
        return steps, replay.gather_numbered(store, steps)

    steps, drawn = jit(jax.vmap(draw))(stores, jax.random.split(jax.random.key(0), 3))
    np.testing.assert_array_equal(drawn.action[..., 0], steps)
    for position, ledger in enumerate(ledgers):
        assert ledger.live[0][2] <= int(steps[position].min()) <= int(steps[position].max()) < ledger.step


@pytest.mark.parametrize("every", ["episode", 1, 2, "environment"])
@pytest.mark.parametrize("has_known", [False, True])
def test_the_bytes_foretold_are_the_bytes_taken(every: int | str, has_known: bool):
    feedback = Feedback(every, has_known)
    leaves = jax.tree.leaves(replay.init_store(1001, 7, 3, feedback))
    scalars = sum(leaf.nbytes for leaf in leaves if leaf.ndim == 0)
    assert replay.store_bytes(1001, 7, 3, feedback) == sum(leaf.nbytes for leaf in leaves) - scalars


def test_the_shortest_episodes_fill_the_ring_and_not_its_table():
    store, ledger = filled([1] * (3 * CAPACITY))
    assert int(store.n_episodes) == CAPACITY // 2 < store.length.shape[0]
    assert_holds(one_at_a_time(store), ledger)


def test_the_stored_step_has_no_reward():
    assert not [name for name in replay.EpisodeStore._fields if "reward" in name]
    assert not [name for name in replay.Steps._fields if "reward" in name]


# A ring that is filled again


@pytest.mark.parametrize("blocks", [1, 4, 30], ids=["not full", "wrapped", "wrapped often"])
def test_a_ring_that_is_filled_again_with_its_live_episodes_holds_the_same_and_goes_on_alike(blocks: int) -> None:
    chance, ledger = np.random.default_rng(blocks), Ledger()
    store = replay.init_store(CAPACITY, OBS, ACTIONS)
    for _ in range(blocks):
        lengths = chance.integers(1, 12, size=chance.integers(1, 4))
        store = insert(store, block_of([ledger.add(int(length), bool(length % 2)) for length in lengths]))
    number, row, step, _ = ledger.live[0]
    first = replay.EpisodeNumbers(number, row, step)
    again = replay.refill_store(CAPACITY, OBS, ACTIONS, first, [item[3] for item in ledger.live])
    for _ in range(3):
        for name in ("oldest", "newest", "next_row", "next_step"):
            assert int(getattr(again, name)) == int(getattr(store, name))
        steps = np.arange(int(store.first_live_step), int(store.next_step))
        for mine, theirs in zip(gather_numbered(again, steps), gather_numbered(store, steps), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        new = block_of([ledger.add(7, True), ledger.add(3, False)])
        store, again = insert(store, new), insert(again, new)


def test_an_empty_ring_is_filled_again_with_nothing() -> None:
    for feedback in (Feedback(), Feedback("environment", has_known=True)):
        again = replay.refill_store(CAPACITY, OBS, ACTIONS, replay.EpisodeNumbers(), [], feedback)
        fresh = replay.init_store(CAPACITY, OBS, ACTIONS, feedback)
        assert jax.tree.structure(again) == jax.tree.structure(fresh)
        for mine, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(fresh), strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_array_equal(mine, theirs)

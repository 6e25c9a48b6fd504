"""The ring of spans against a plain Python list of episodes and their cuts.

Every observation carries the number of its row and every action the number of its step, counted from the start of the
run; the number of a span is 1000 and its own, so a wrong gather shows as a wrong number.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax import jit

from diaster.replay import store as replay
from diaster.replay.late import give_feedback
from diaster.replay.rated import rated_parts
from diaster.types import Episode, EpisodeNumbers, Feedback, Spans

OBS, ACTIONS = 2, 1
CAPACITY, ROWS = 50, 40
CUT, MARKED = Feedback(2), Feedback("environment")
NONE = float("nan")

insert = jit(replay.insert)
gather_numbered = jit(replay.gather_numbered)
draw_rated_steps = jit(replay.draw_rated_steps, static_argnums=2)
draw_stretches = jit(replay.draw_stretches, static_argnums=(2, 3, 4))
draw_episodes = jit(replay.draw_episodes, static_argnums=(2, 3))
are_last = jit(replay.are_last, static_argnums=2)
complete = jit(give_feedback, static_argnums=3)


class Known(NamedTuple):
    """All that is known of a stored step."""

    row: int
    step: int
    terminal: bool
    time: int
    length: int
    number: float
    span: int
    ends_episode: bool


class Ledger:
    """What the ring has to hold, step by step; the oldest whole episodes go first."""

    def __init__(self) -> None:
        self.row = self.step = self.span = 0
        self.live: list[tuple[EpisodeNumbers, Episode, list[Known]]] = []
        self.numbers = EpisodeNumbers()

    def add(self, ends: list[int], numbers: list[float] | None = None, terminated: bool = False) -> Episode:
        """An episode whose spans end there."""
        length = ends[-1]
        given = numbers or [1000.0 + self.span + n for n in range(len(ends))]
        rows, steps = self.row + np.arange(length + 1), self.step + np.arange(length)
        episode = Episode(
            obs=np.stack([rows, -rows], axis=-1).astype(np.float32),
            action=steps[:, None].astype(np.float32),
            episode_return=float(np.nansum(given)),
            terminated=terminated,
            spans=Spans(np.array(ends), np.array(given, np.float64)),
        )
        known = []
        for n, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            for t in range(start, end):
                is_last = t == length - 1
                facts = (terminated and is_last, t - start, end - start, given[n], self.span + n, is_last)
                known.append(Known(self.row + t, self.step + t, *facts))
        self.live.append((self.numbers, episode, known))
        self.numbers = self.numbers.after(episode)
        self.row, self.step, self.span = self.row + length + 1, self.step + length, self.span + len(ends)
        while sum(item[1].length + 1 for item in self.live) > CAPACITY:
            self.live.pop(0)
        return episode

    @property
    def steps(self) -> list[Known]:
        return [step for _, _, steps in self.live for step in steps]


def block_of(episodes: list[Episode], feedback: Feedback = CUT, n_rows: int = ROWS) -> replay.EpisodeBlock:
    return replay.make_block(episodes, n_rows, n_rows, OBS, ACTIONS, feedback)


def empty(feedback: Feedback = CUT) -> replay.EpisodeStore:
    return replay.init_store(CAPACITY, OBS, ACTIONS, feedback)


def on_host(store: replay.EpisodeStore) -> replay.EpisodeStore:
    return jax.tree.map(np.asarray, store)


def assert_holds(store: replay.EpisodeStore, ledger: Ledger) -> None:
    steps = ledger.steps
    assert int(store.n_steps) == len(steps)
    assert int(store.next_row) == ledger.row and int(store.next_step) == ledger.step
    assert int(store.newest) == ledger.span and int(store.first_live_step) == steps[0].step
    assert int(store.n_episodes) == len({step.span for step in steps})
    column = {name: np.array([getattr(step, name) for step in steps]) for name in Known._fields}
    padded = np.resize(column["step"], CAPACITY).astype(np.int32)
    drawn = jax.tree.map(lambda leaf: leaf[: len(steps)], jax.device_get(gather_numbered(store, padded)))
    np.testing.assert_array_equal(drawn.obs, np.stack([column["row"], -column["row"]], axis=-1))
    np.testing.assert_array_equal(drawn.next_obs - drawn.obs, np.tile([1.0, -1.0], (len(steps), 1)))
    np.testing.assert_array_equal(drawn.action[:, 0], column["step"])
    for name in ("terminal", "time", "length"):
        np.testing.assert_array_equal(getattr(drawn, name), column[name])
    np.testing.assert_array_equal(drawn.episode_return, np.nan_to_num(column["number"]))
    np.testing.assert_array_equal(are_last(store, padded)[: len(steps)], column["ends_episode"])


def test_spans_lie_in_the_ring_as_computed_by_hand() -> None:
    ledger = Ledger()
    first, second = ledger.add([2, 5], [7.0, 8.0], terminated=True), ledger.add([3], [9.0])
    store = on_host(insert(empty(), block_of([first, second])))
    # Rows 0 to 5 and 6 to 9, steps 0 to 4 and 5 to 7: the second span begins with the row that ends the first.
    np.testing.assert_array_equal(store.first_row[:4], [0, 2, 6, 0])
    np.testing.assert_array_equal(store.first_step[:4], [0, 2, 5, 0])
    np.testing.assert_array_equal(store.length[:4], [2, 3, 3, 0])
    np.testing.assert_array_equal(store.episode_return[:4], [7.0, 8.0, 9.0, 0.0])
    np.testing.assert_array_equal(store.terminated[:4], [False, True, False, False])
    np.testing.assert_array_equal(store.episode[:8], [0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(store.obs[:10, 0], np.arange(10))
    np.testing.assert_array_equal(store.action[:8, 0], np.arange(8))
    assert (int(store.newest), int(store.next_row), int(store.next_step)) == (3, 10, 8)
    drawn = gather_numbered(store, np.array([1, 4, 7]))
    np.testing.assert_array_equal(drawn.next_obs[:, 0], [2.0, 5.0, 9.0])
    np.testing.assert_array_equal(drawn.terminal, [False, True, False])
    np.testing.assert_array_equal(drawn.time, [1, 2, 2])


def random_ends(rng: np.random.Generator, length: int, chance: float) -> list[int]:
    return [t for t in range(1, length) if rng.random() < chance] + [length]


@pytest.mark.parametrize(("seed", "longest", "chance"), [(0, 6, 0.5), (1, 20, 0.2), (2, 39, 1.0), (3, 1, 0.5)])
def test_the_ring_holds_exactly_the_newest_whole_episodes_whatever_their_spans(
    seed: int, longest: int, chance: float
) -> None:
    rng = np.random.default_rng(seed)
    feedback = Feedback(1)  # as many spans as steps
    store, plain, ledger = empty(feedback), empty(Feedback()), Ledger()
    for _ in range(60):
        episodes, rows = [], 0
        while rows + longest + 1 <= ROWS and rng.random() < 0.7:
            length = int(rng.integers(1, longest + 1))
            episodes.append(ledger.add(random_ends(rng, length, chance), terminated=bool(rng.random() < 0.5)))
            rows += length + 1
        store = insert(store, block_of(episodes, feedback))
        uncut = [episode._replace(spans=None) for episode in episodes]
        plain = insert(plain, replay.make_block(uncut, ROWS, ROWS // 2, OBS, ACTIONS))
        if ledger.live:
            assert_holds(on_host(store), ledger)
        # Which steps are stored, and so which are drawn, does not depend on the cuts.
        for name in ("obs", "action", "next_row", "next_step", "first_live_step"):
            np.testing.assert_array_equal(getattr(store, name), getattr(plain, name))
    assert ledger.row > 4 * CAPACITY
    assert ledger.span > store.length.shape[0] or chance < 1.0


def test_a_span_for_every_step_fills_the_ring_and_not_its_table() -> None:
    store, ledger = empty(Feedback(1)), Ledger()
    for _ in range(5):
        store = insert(store, block_of([ledger.add(list(range(1, 40)))], Feedback(1)))
    assert int(store.n_episodes) == 39
    store = insert(store, block_of([ledger.add([1])], Feedback(1)))
    assert int(store.n_episodes) == 40
    assert_holds(on_host(store), ledger)


def test_spans_of_two_steps_need_no_larger_table_than_episodes() -> None:
    assert replay.n_slots(CAPACITY, CUT) == replay.n_slots(CAPACITY, Feedback()) < replay.n_slots(CAPACITY, Feedback(1))
    store, ledger = empty(CUT), Ledger()
    for _ in range(30):
        store = insert(store, block_of([ledger.add([2, 3]), ledger.add([1]), ledger.add([2, 4, 5])]))
        assert_holds(on_host(store), ledger)


@pytest.mark.parametrize("blocks", [1, 4, 30], ids=["not full", "wrapped", "wrapped often"])
@pytest.mark.parametrize("feedback", [CUT, MARKED], ids=["cut", "with gaps"])
def test_a_ring_of_spans_that_is_filled_again_holds_the_same_and_goes_on_alike(blocks: int, feedback: Feedback) -> None:
    rng, ledger = np.random.default_rng(blocks), Ledger()

    def some() -> replay.EpisodeBlock:
        episodes = []
        for length in rng.integers(1, 12, size=2):
            ends = random_ends(rng, int(length), 0.4)
            numbers = [NONE if feedback.has_gaps and rng.random() < 0.5 else float(end) for end in ends]
            episodes.append(ledger.add(ends, numbers, bool(length % 2)))
        return block_of(episodes, feedback)

    store = empty(feedback)
    for _ in range(blocks):
        store = insert(store, some())
    first = ledger.live[0][0]
    episodes = [item[1] for item in ledger.live]
    again = replay.refill_store(CAPACITY, OBS, ACTIONS, first, episodes, feedback)
    for _ in range(3):
        for name in ("oldest", "newest", "next_row", "next_step"):
            assert int(getattr(again, name)) == int(getattr(store, name))
        assert_holds(on_host(again), ledger)
        for draw in ("length", "uniform"):
            mine, theirs = (draw_episodes(one, jax.random.key(3), 50, draw) for one in (again, store))
            np.testing.assert_array_equal(mine, theirs)
        if store.rated is not None and again.rated is not None:
            np.testing.assert_array_equal(again.rated.steps, store.rated.steps)
            np.testing.assert_array_equal(again.rated.spans, store.rated.spans)
        new = some()
        store, again = insert(store, new), insert(again, new)


# Spans without a number


def gappy(blocks: int = 12) -> tuple[replay.EpisodeStore, Ledger]:
    """A ring that has wrapped, of episodes in which every second span has a number."""
    store, ledger = empty(MARKED), Ledger()
    for n in range(blocks):
        numbers = [NONE, 10.0 * n, NONE, 10.0 * n + 1.0]
        store = insert(store, block_of([ledger.add([1, 4, 6, 11], numbers), ledger.add([2], [NONE])], MARKED))
    assert ledger.row > 2 * CAPACITY
    assert_holds(on_host(store), ledger)
    return store, ledger


def is_even(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's statistic lies within five deviations of its mean."""
    degrees = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic < degrees + 5.0 * np.sqrt(2.0 * degrees) + 5.0


def test_draws_choose_among_the_steps_of_rated_spans_alone_each_as_likely() -> None:
    store, ledger = gappy()
    rated = [step.step for step in ledger.steps if not np.isnan(step.number)]
    drawn = np.asarray(draw_rated_steps(store, jax.random.key(0), 20_000))
    counts = np.array([(drawn == step).sum() for step in rated])
    assert counts.sum() == 20_000
    assert is_even(counts, np.full(len(rated), 20_000 / len(rated)))


@pytest.mark.parametrize("draw", ["length", "uniform"])
def test_spans_are_drawn_among_the_rated_by_their_length_or_uniformly(draw: str) -> None:
    store, ledger = gappy()
    lengths = {step.span: step.length for step in ledger.steps if not np.isnan(step.number)}
    places = np.asarray(draw_episodes(store, jax.random.key(1), 20_000, draw))
    counts = np.array([(places == span % store.length.shape[0]).sum() for span in lengths])
    assert counts.sum() == 20_000
    weights = np.array(list(lengths.values()), float) if draw == "length" else np.ones(len(lengths))
    assert is_even(counts, 20_000 * weights / weights.sum())


def test_where_every_span_has_a_number_draws_are_those_of_a_ring_that_knows_no_gaps() -> None:
    marked, plain = empty(MARKED), empty(CUT)
    mine, theirs = Ledger(), Ledger()
    for _ in range(8):
        marked = insert(marked, block_of([mine.add([2, 3, 9])], MARKED))
        plain = insert(plain, block_of([theirs.add([2, 3, 9])], CUT))
    for seed in range(3):
        key = jax.random.key(seed)
        one, other = (draw_rated_steps(store, key, 100) for store in (marked, plain))
        np.testing.assert_array_equal(one, other)
        for only_rated in (True, False):
            one, other = (draw_stretches(store, key, 30, 4, only_rated) for store in (marked, plain))
            np.testing.assert_array_equal(one, other)
        for draw in ("length", "uniform"):
            one, other = (store.first_step[draw_episodes(store, key, 100, draw)] for store in (marked, plain))
            np.testing.assert_array_equal(one, other)


def test_a_stretch_of_rated_steps_leaves_out_the_others_and_breaks_off_before_them() -> None:
    store, ledger = gappy()
    steps = {step.step: step for step in ledger.steps}
    rated = np.array([step.step for step in ledger.steps if not np.isnan(step.number)])
    drawn = np.asarray(draw_stretches(store, jax.random.key(2), 60, 5, True))
    index = np.searchsorted(rated, drawn)
    np.testing.assert_array_equal(rated[index], drawn)
    np.testing.assert_array_equal(index[1:], (index[:-1] + 1) % len(rated))
    expected = [steps[step].ends_episode or np.isnan(steps[step + 1].number) for step in drawn.ravel().tolist()]
    np.testing.assert_array_equal(np.asarray(are_last(store, drawn, True)).ravel(), expected)
    assert 0.0 < np.mean(expected) < 1.0


def test_without_any_number_there_is_nothing_to_learn_from_and_draws_are_of_the_ring() -> None:
    store, ledger = empty(MARKED), Ledger()
    assert not bool(store.is_enough(np.array(True)))
    store = insert(store, block_of([ledger.add([3], [NONE]), ledger.add([2], [5.0])], MARKED))
    assert not bool(store.is_enough(np.array(True))) and int(store.n_numbers) == 1
    store = insert(store, block_of([ledger.add([3, 4], [NONE, 1.0])], MARKED))
    assert bool(store.is_enough(np.array(True))) and not bool(store.is_enough(np.array(False)))
    draw_rated_steps(empty(MARKED), jax.random.key(0), 5)


def test_the_rated_parts_of_an_episode_are_its_stretches_of_rated_spans() -> None:
    whole = Ledger().add([2, 3, 5, 9, 10], [1.0, NONE, 2.0, 3.0, NONE], terminated=True)
    first, second = rated_parts(whole)
    assert [part.to_decompose.end.tolist() for part in (first, second)] == [[2], [2, 6]]
    assert [part.to_decompose.number.tolist() for part in (first, second)] == [[1.0], [2.0, 3.0]]
    np.testing.assert_array_equal(first.obs, whole.obs[:3])
    np.testing.assert_array_equal(second.obs, whole.obs[3:10])
    np.testing.assert_array_equal(second.action, whole.action[3:9])
    assert not first.terminated and not second.terminated
    assert rated_parts(Ledger().add([2, 3], [NONE, 1.0], terminated=True))[0].terminated
    assert rated_parts(Ledger().add([2], [NONE])) == []
    [all_of_it] = rated_parts(whole._replace(spans=None, episode_return=4.0))
    assert all_of_it.length == 10 and all_of_it.to_decompose.number.tolist() == [4.0]


# Known rewards


def with_known(episode: Episode) -> Episode:
    """Known is a hundredth of the number of each step."""
    return episode._replace(known_reward=(0.01 * episode.action[:, 0]).astype(np.float32))


def test_what_is_known_of_a_spans_rewards_is_taken_off_its_number_and_stored_with_its_steps() -> None:
    feedback = Feedback(2, has_known=True)
    store, ledger = empty(feedback), Ledger()
    for _ in range(9):  # the ring wraps
        store = insert(store, block_of([with_known(ledger.add([2, 3, 7]))], feedback))
    assert store.known is not None
    for step in ledger.steps:
        place = step.span % store.length.shape[0]
        known = [other.step / 100.0 for other in ledger.steps if other.span == step.span]
        np.testing.assert_allclose(store.episode_return[place], step.number - sum(known), rtol=1e-6)
        np.testing.assert_allclose(store.known[step.step % CAPACITY], step.step / 100.0, rtol=1e-6)
    episodes = [with_known(item[1]) for item in ledger.live]
    again = replay.refill_store(CAPACITY, OBS, ACTIONS, ledger.live[0][0], episodes, feedback)
    live = np.array([step.step for step in ledger.steps]) % CAPACITY
    np.testing.assert_array_equal(again.known[live], store.known[live])  # type: ignore[index]
    spans = np.array([step.span for step in ledger.steps]) % store.length.shape[0]
    np.testing.assert_array_equal(again.episode_return[spans], store.episode_return[spans])


# Feedback that arrives late


def two_rings(feedback: Feedback = MARKED) -> tuple[replay.EpisodeStore, replay.EpisodeStore, Ledger]:
    """One in which the spans 3, 5 and 6 still lack a number, and one that had them from the start."""
    late, prompt = empty(feedback), empty(feedback)
    mine, theirs = Ledger(), Ledger()
    for ends, numbers, missing in (
        ([4, 9], [1.0, 2.0], []),
        ([3, 5, 9], [3.0, 4.0, 5.0], [1]),
        ([6, 8, 9], [6.0, 7.0, 8.0], [0, 1]),
    ):
        incomplete = [NONE if n in missing else number for n, number in enumerate(numbers)]
        episodes = [ledger.add(ends, given) for ledger, given in ((mine, incomplete), (theirs, numbers))]
        if feedback.has_known:
            episodes = list(map(with_known, episodes))
        late, prompt = (
            insert(store, block_of([episode], feedback))
            for store, episode in zip((late, prompt), episodes, strict=True)
        )
    return late, prompt, theirs


MISSING = np.array([3, 5, 6])
GIVEN = np.array([4.0, 6.0, 7.0], np.float32)


def test_a_ring_that_is_given_its_missing_numbers_is_the_one_that_had_them_from_the_start() -> None:
    for feedback in (MARKED, Feedback("environment", has_known=True)):
        late, prompt, _ = two_rings(feedback)
        completed, _, was_waiting = complete(late, MISSING, GIVEN, ROWS)
        assert was_waiting.tolist() == [True] * 3
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), completed, prompt)


def test_the_completed_spans_come_back_as_they_would_have_been_inserted() -> None:
    for feedback in (MARKED, Feedback("environment", has_known=True)):
        late, _, ledger = two_rings(feedback)
        _, found, _ = complete(late, MISSING, GIVEN, ROWS)
        wanted = []
        for number, episode, _ in ledger.live:
            for n in range(len(episode.to_decompose.end)):
                if number.span + n in MISSING:
                    one = np.full(len(episode.to_decompose.end), NONE)
                    one[n] = episode.to_decompose.number[n]
                    own = with_known(episode) if feedback.has_known else episode
                    wanted += rated_parts(own._replace(spans=Spans(episode.to_decompose.end, one)))
        expected = replay.make_block(wanted, ROWS, len(MISSING), OBS, ACTIONS, MARKED)
        for name in replay.EpisodeBlock._fields[:-2]:
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)
        assert found.known is None and found.goes_on is None
        assert expected.goes_on is not None and not np.any(expected.goes_on)


def test_a_span_that_was_overwritten_or_has_a_number_or_never_was_changes_nothing_and_says_so() -> None:
    store, ledger = gappy()
    live = sorted({step.span for step in ledger.steps})
    waiting = [step.span for step in ledger.steps if np.isnan(step.number)]
    rated = [step.span for step in ledger.steps if not np.isnan(step.number)]
    given = np.array([live[0] - 1, rated[0], ledger.span, -1])
    same, block, was_waiting = complete(store, given, np.full(4, 5.0, np.float32), ROWS)
    assert was_waiting.tolist() == [False] * 4
    jax.tree.map(np.testing.assert_array_equal, same, store)
    assert not np.any(block.length) and np.all(np.asarray(block.row_episode) == -1)
    both = np.array([rated[0], waiting[0]])
    changed, block, was_waiting = complete(store, both, np.full(2, 5.0, np.float32), ROWS)
    assert was_waiting.tolist() == [False, True]
    assert np.asarray(block.length).tolist() == [0, store.length[waiting[0] % store.length.shape[0]]]
    again, _, was_waiting = complete(changed, both, np.full(2, 6.0, np.float32), ROWS)
    assert was_waiting.tolist() == [False, False]
    jax.tree.map(np.testing.assert_array_equal, again, changed)


def test_a_span_that_was_completed_is_drawn_from_then_on() -> None:
    late, _, ledger = two_rings()
    of_five = [step.step for step in ledger.steps if step.span == 5]
    before = np.asarray(draw_rated_steps(late, jax.random.key(0), 500))
    late, _, _ = complete(late, np.array([5]), np.array([6.0], np.float32), ROWS)
    after = np.asarray(draw_rated_steps(late, jax.random.key(0), 500))
    assert not np.isin(of_five, before).any() and np.isin(of_five, after).all()

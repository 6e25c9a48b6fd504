"""Cuts, packed rows and sampled segments: exact by enumeration, uniform by counting."""

from __future__ import annotations

from functools import cache, partial
from itertools import combinations, pairwise
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.replay import rows as packing

N_SEEDS = 20_000

pack_episodes = jit(packing.pack_episodes, static_argnums=(1, 2))


def seeds(n: int):
    return np.arange(n, dtype=np.uint32)


def over_lengths_and_seeds(draw):
    """One program for episodes of several lengths, each with several seeds.  # [lengths, seeds, …]"""
    of_seed = jax.vmap(lambda seed, length: draw(jax.random.key(seed), length), (0, None))
    return jit(jax.vmap(of_seed, (None, 0)))


@cache
def cut_program(n_cuts: int, horizon: int):
    draw = partial(packing.draw_cuts, n_cuts=n_cuts, horizon=horizon)
    return over_lengths_and_seeds(draw)


@cache
def segment_program(segment_length: int, n_segments: int, horizon: int):
    draw = partial(packing.draw_segments, segment_length=segment_length, n_segments=n_segments, horizon=horizon)
    return over_lengths_and_seeds(draw)


def cuts_of(n_seeds: int, lengths, n_cuts: int, horizon: int):
    """Flags.  # [lengths, seeds, horizon]"""
    return np.asarray(cut_program(n_cuts, horizon)(seeds(n_seeds), np.asarray(lengths)))


def segments_of(n_seeds: int, lengths, segment_length: int, n_segments: int, horizon: int):
    """First steps and ends.  # [lengths, seeds, n_segments] each"""
    first, end = segment_program(segment_length, n_segments, horizon)(seeds(n_seeds), np.asarray(lengths))
    return np.asarray(first), np.asarray(end)


def is_uniform(counts) -> bool:
    """Pearson's statistic against equal counts lies within five deviations of its mean."""
    counts = np.asarray(counts, float)
    expected, degrees = counts.mean(), len(counts) - 1
    return ((counts - expected) ** 2 / expected).sum() < degrees + 5.0 * np.sqrt(2.0 * degrees) + 5.0


# --- cuts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_cuts", [0, 2, 5, 11])
def test_an_episode_has_exactly_the_cuts_asked_for_or_as_many_as_it_can_have(n_cuts):
    horizon = 12
    flags = cuts_of(50, range(1, horizon + 1), n_cuts, horizon)
    assert flags.dtype == bool
    for length in range(1, horizon + 1):
        of_length = flags[length - 1]
        assert of_length[:, 0].all()
        assert not of_length[:, length:].any()
        np.testing.assert_array_equal(of_length[:, 1:].sum(axis=1), min(n_cuts, length - 1))


def test_every_set_of_cut_points_is_equally_likely():
    (flags,) = cuts_of(N_SEEDS, [9], 3, 12)
    drawn = [tuple(np.flatnonzero(row)[1:]) for row in flags]
    counts = dict.fromkeys(combinations(range(1, 9), 3), 0)
    for cuts in drawn:
        counts[cuts] += 1
    assert is_uniform(list(counts.values()))


@pytest.mark.parametrize(("length", "horizon"), [(7, 10), (2, 10), (10, 10)])
def test_a_single_cut_is_uniform_over_all_steps_and_the_first_step_means_no_cut(length, horizon):
    (flags,) = cuts_of(N_SEEDS, [length], 1, horizon)
    assert flags[:, 0].all() and not flags[:, length:].any()
    n_cuts = flags[:, 1:].sum(axis=1)
    assert set(n_cuts) == {0, 1}
    counts = [(n_cuts == 0).sum(), *flags[:, 1:length].sum(axis=0)]
    assert sum(counts) == N_SEEDS
    assert is_uniform(counts)  # "no cut" has probability 1/L, like each of the L − 1 others


def test_a_single_cut_leaves_an_episode_of_one_step_whole():
    np.testing.assert_array_equal(cuts_of(N_SEEDS, [1], 1, 10).sum(axis=-1), 1)


def test_as_many_cuts_as_places_cut_everywhere():
    for n_cuts, longest in ((5, 6), (11, 12)):
        flags = cuts_of(50, range(1, 13), n_cuts, 12)
        for length in range(1, longest + 1):
            np.testing.assert_array_equal(flags[length - 1], np.tile(np.arange(12) < length, (50, 1)))


def test_cuts_of_different_keys_differ():
    assert len({row.tobytes() for row in cuts_of(50, range(1, 13), 5, 12)[-1]}) > 40


# --- whole episodes in rows -----------------------------------------------------------------------------------


def next_fit(lengths, n_rows: int, row_length: int):
    """Row and offset of each episode, None for those without a place."""
    places, row, offset = [], 0, 0
    for length in lengths:
        if offset + length > row_length:
            row, offset = row + 1, 0
        places.append((row, offset) if row < n_rows else None)
        offset += length
    return places


@pytest.mark.parametrize("seed", range(12))
def test_every_counted_episode_lies_whole_in_one_row_and_nothing_else_is_valid(seed):
    rng = np.random.default_rng(seed)
    n_rows, row_length = 4, 15
    lengths = rng.integers(1, (3, 8, 15)[seed % 3] + 1, size=16)
    rows = jax.device_get(pack_episodes(jnp.asarray(lengths), n_rows, row_length))
    assert rows.valid.shape == rows.episode.shape == rows.step.shape == (row_length, n_rows)
    cells = set()
    places = next_fit(lengths, n_rows, row_length)
    for number, (length, place) in enumerate(zip(lengths, places, strict=True)):
        time, row = np.nonzero(rows.valid & (rows.episode == number))
        assert bool(rows.counted[number]) == (place is not None)
        if place is None:
            assert len(time) == 0
            continue
        assert set(row) == {place[0]}
        np.testing.assert_array_equal(time, place[1] + np.arange(length))
        np.testing.assert_array_equal(rows.step[time, row], np.arange(length))
        cells |= set(zip(time, row, strict=True))
    assert rows.valid.sum() == lengths[rows.counted].sum() == len(cells)  # no overlap, and padding is invalid
    np.testing.assert_array_equal(rows.step[~rows.valid], 0)  # padding points to a step that exists
    assert ((rows.episode >= 0) & (rows.episode < len(lengths))).all()


def test_the_random_batches_above_include_full_and_overfull_ones():
    counted = []
    for seed in range(12):
        lengths = np.random.default_rng(seed).integers(1, (3, 8, 15)[seed % 3] + 1, size=16)
        counted.append(sum(place is not None for place in next_fit(lengths, 4, 15)))
    assert min(counted) < 16 and max(counted) == 16


def test_rows_that_are_filled_to_the_last_cell_have_no_padding():
    rows = jax.device_get(pack_episodes(jnp.array([3, 3, 1, 5, 6]), 3, 6))
    assert rows.valid.all() and rows.counted.all()
    np.testing.assert_array_equal(rows.episode.T, [[0, 0, 0, 1, 1, 1], [2, 3, 3, 3, 3, 3], [4, 4, 4, 4, 4, 4]])
    np.testing.assert_array_equal(rows.step.T, [[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])


def test_an_episode_that_finds_no_place_is_not_counted_nor_cut_short():
    rows = jax.device_get(pack_episodes(jnp.array([4, 3, 4, 2]), 2, 6))
    # Row 0: 4 steps, and 2 are too few for the next; row 1: 3 steps, and 3 are too few.
    np.testing.assert_array_equal(rows.counted, [True, True, False, False])
    np.testing.assert_array_equal(rows.valid.T, [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(rows.episode.T[rows.valid.T], [0, 0, 0, 0, 1, 1, 1])


# --- sampled segments -----------------------------------------------------------------------------------------


def grid(length: int, phase: int, segment_length: int) -> list[tuple[int, int]]:
    """The non-empty segments of one phase, by walking along the episode."""
    bounds = [0, *range(phase, length, segment_length), length]
    return [(a, b) for a, b in pairwise(bounds) if a < b]


@pytest.mark.parametrize("segment_length", [1, 2, 3, 4, 7])
def test_the_segments_of_every_grid_tile_the_episode_from_end_to_end(segment_length):
    segment = np.arange(40)
    for length in range(1, 20):
        for phase in range(1, segment_length + 1):
            first, end = (np.asarray(x) for x in packing.segment_bounds(length, phase, segment, segment_length))
            steps = [t for a, b in zip(first, end, strict=True) for t in range(a, b)]
            assert steps == list(range(length))
            kept = [(int(a), int(b)) for a, b in zip(first, end, strict=True) if a < b]
            assert kept == grid(length, phase, segment_length)
            assert max(b - a for a, b in kept) <= segment_length


@pytest.mark.parametrize(("horizon", "segment_length"), [(1, 4), (3, 4), (5, 1), (9, 4)])
def test_an_episode_with_fewer_segments_than_asked_for_gives_all_of_its_steps_once(horizon, segment_length):
    # Episodes of every length up to the horizon itself, where the grid needs the most segments.
    first, end = segments_of(100, range(1, horizon + 1), segment_length, horizon + 3, horizon)
    for length, of_length in enumerate(zip(first, end, strict=True), start=1):
        grids = set()
        for a, b in zip(*of_length, strict=True):
            drawn = sorted((int(x), int(y)) for x, y in zip(a, b, strict=True) if x < y)
            assert [t for x, y in drawn for t in range(x, y)] == list(range(length))
            assert ((a < b) | ((a == 0) & (b == 0))).all()  # what is not drawn is empty
            grids.add(tuple(drawn))
        assert grids == {tuple(grid(length, phase, segment_length)) for phase in range(1, segment_length + 1)}


@pytest.mark.parametrize("n_segments", [1, 2])
def test_every_choice_of_segments_is_equally_likely_given_the_phase(n_segments):
    length, segment_length, horizon = 10, 4, 13
    (first,), (end,) = segments_of(N_SEEDS, [length], segment_length, n_segments, horizon)
    counts = {}
    for phase in range(1, segment_length + 1):
        for chosen in combinations(grid(length, phase, segment_length), n_segments):
            counts[chosen] = (phase, 0)
    for a, b in zip(first, end, strict=True):
        drawn = tuple(sorted(zip(a.tolist(), b.tolist(), strict=True)))
        phase, count = counts[drawn]  # a segment shows its phase, and is no part of another grid
        counts[drawn] = (phase, count + 1)
    per_phase = [[count for p, count in counts.values() if p == phase] for phase in range(1, segment_length + 1)]
    assert is_uniform([sum(group) for group in per_phase])
    for phase, group in enumerate(per_phase, start=1):
        assert len(group) == comb(len(grid(length, phase, segment_length)), n_segments)
        assert is_uniform(group)


@pytest.mark.parametrize(("length", "n_segments"), [(10, 2), (13, 1), (5, 1), (9, 2)])
def test_every_step_is_drawn_equally_often(length, n_segments):
    segment_length, horizon = 4, 13
    (first,), (end,) = segments_of(N_SEEDS, [length], segment_length, n_segments, horizon)
    step = np.arange(length)
    drawn = ((step >= first[..., None]) & (step < end[..., None])).sum(axis=1)  # [seeds, length]
    assert drawn.max() == 1  # never twice
    sizes = [len(grid(length, phase, segment_length)) for phase in range(1, segment_length + 1)]
    chance = np.mean([min(1.0, n_segments / size) for size in sizes])
    deviation = np.sqrt(chance * (1.0 - chance) / N_SEEDS)
    np.testing.assert_allclose(drawn.mean(axis=0), chance, atol=5.0 * deviation)


def test_segments_of_one_step_are_steps_drawn_without_replacement():
    (first,), (end,) = segments_of(N_SEEDS, [6], 1, 2, 8)
    np.testing.assert_array_equal(end, first + 1)
    counts = dict.fromkeys(combinations(range(6), 2), 0)
    for pair in first:
        counts[tuple(sorted(pair.tolist()))] += 1
    assert is_uniform(list(counts.values()))


def test_an_episode_of_one_step_gives_one_segment_of_that_step():
    first, end = segments_of(100, range(1, 10), 4, 12, 9)
    np.testing.assert_array_equal(np.sort(end[0] - first[0], axis=1), np.tile([0] * 11 + [1], (100, 1)))
    np.testing.assert_array_equal(first[0], 0)


def test_rows_of_segments_name_every_step_of_every_segment_and_leave_the_rest_invalid():
    first = jnp.array([[2, 0], [0, 0], [7, 5]])
    end = jnp.array([[5, 2], [0, 0], [8, 8]])
    rows = jax.device_get(packing.rows_of_segments(first, end, 3))
    np.testing.assert_array_equal(rows.episode, np.tile([0, 0, 1, 1, 2, 2], (3, 1)))
    np.testing.assert_array_equal(rows.valid.T, [[1, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(rows.step.T, [[2, 3, 4], [0, 1, 0], [0, 0, 0], [0, 0, 0], [7, 0, 0], [5, 6, 7]])
    np.testing.assert_array_equal(rows.counted, [True, False, True])

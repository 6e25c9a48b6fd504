"""What decomposers keep of all episodes so far, against NumPy on all of them at once."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import jit

from diaster.decomposers import statistics
from diaster.replay import store as replay
from diaster.types import Episode

OBS, ACTIONS = 2, 1
add_rows, add_returns = jit(statistics.add_rows), jit(statistics.add_returns)
normalize = jit(statistics.normalize)


def random_episodes(seed: int, n: int, offset=(3.0, -100.0), spread=(0.01, 5.0)) -> list[Episode]:
    rng = np.random.default_rng(seed)
    episodes = []
    for length in rng.integers(1, 6, size=n):
        obs = offset + spread * rng.normal(size=(length + 1, OBS))
        action = np.zeros((length, ACTIONS), np.float32)
        episodes.append(Episode(obs.astype(np.float32), action, float(rng.normal() * 20.0), False))
    return episodes


def block_of(episodes: list[Episode], n_rows: int = 128, n_episodes: int = 64) -> replay.EpisodeBlock:
    return replay.make_block(episodes, n_rows, n_episodes, OBS, ACTIONS)


def blocks_of(episodes: list[Episode], sizes: tuple[int, ...]) -> list[replay.EpisodeBlock]:
    """The episodes in order, a number of them in each block."""
    ends = np.cumsum(sizes)
    return [block_of(episodes[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def moments_after(episodes: list[Episode], sizes: tuple[int, ...]) -> statistics.Moments:
    moments = statistics.init_moments(OBS)
    for block in blocks_of(episodes, sizes):
        moments = add_rows(moments, block)
    return moments


def rate_after(episodes: list[Episode], sizes: tuple[int, ...]) -> statistics.Rate:
    rate = statistics.init_rate()
    for block in blocks_of(episodes, sizes):
        rate = add_returns(rate, block)
    return rate


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (5, 0, 4, 3), (0, 11, 1)])
def test_running_moments_are_those_of_all_observations_whatever_the_blocks(sizes):
    episodes = random_episodes(0, 12)
    moments = moments_after(episodes, sizes)
    rows = np.concatenate([episode.obs for episode in episodes]).astype(np.float64)
    assert int(moments.rows) == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-6)
    # The first dimension is small and far from zero: the textbook formula E[x²] − E[x]² would lose it.
    np.testing.assert_allclose(moments.deviation / len(rows), rows.var(axis=0), rtol=1e-3)


@pytest.mark.parametrize("sizes", [(12,), (1,) * 12, (5, 0, 4, 3)])
def test_the_automatic_scale_is_five_root_mean_squares_of_the_return_per_step_weighted_by_length(sizes):
    episodes = random_episodes(1, 12)
    rate = rate_after(episodes, sizes)
    lengths = np.array([episode.length for episode in episodes])
    rates = np.array([episode.episode_return for episode in episodes]) / lengths
    assert int(rate.steps) == lengths.sum()
    expected = 5.0 * np.sqrt(np.average(rates**2, weights=lengths))
    assert float(statistics.return_scale("auto", rate)) == pytest.approx(expected, rel=1e-5)
    assert float(statistics.return_scale(7.0, rate)) == 7.0


def test_a_scale_that_has_seen_enough_steps_stays_as_it_is():
    episodes = random_episodes(1, 12)
    scales, rate, steps = [], statistics.init_rate(), 0
    for block in blocks_of(episodes, (3, 3, 3, 3)):
        enough = steps >= 12
        rate = jit(statistics.add_returns, static_argnums=2)(rate, block, 12)
        scales.append(float(statistics.return_scale("auto", rate)))
        if enough:
            assert scales[-1] == scales[-2]
        else:
            steps += int(np.sum(block.length))
            # Until then, and with the block that makes them enough, it is that of all returns so far.
            expected = rate_after(episodes, (3,) * len(scales))
            assert scales[-1] == float(statistics.return_scale("auto", expected))
    assert 12 <= steps < sum(episode.length for episode in episodes) and int(rate.steps) == steps


def test_the_scale_is_one_before_any_return_and_where_all_returns_are_zero():
    silent = [episode._replace(episode_return=0.0) for episode in random_episodes(2, 5)]
    assert float(statistics.return_scale("auto", statistics.init_rate())) == 1.0
    assert float(statistics.return_scale("auto", rate_after(silent, (5,)))) == 1.0
    assert float(statistics.return_scale(0.5, rate_after(silent, (5,)))) == 0.5


def test_the_padding_of_a_block_counts_for_nothing():
    episodes = random_episodes(3, 4)
    tight, wide = block_of(episodes, sum(episode.length + 1 for episode in episodes), 4), block_of(episodes)
    wide.obs[wide.row_episode < 0] = 1e6
    wide.episode_return[wide.length == 0] = 1e6
    for add, nothing in ((add_rows, statistics.init_moments(OBS)), (add_returns, statistics.init_rate())):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), add(nothing, tight), add(nothing, wide))


def test_normalised_observations_have_mean_zero_and_deviation_one_over_all_that_were_seen():
    episodes = random_episodes(4, 30)
    rows = np.concatenate([episode.obs for episode in episodes])
    seen = np.asarray(normalize(moments_after(episodes, (10, 20)), rows), np.float64)
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(seen.std(axis=0), 1.0, rtol=1e-3)


def test_normalised_observations_are_bounded_also_where_nothing_ever_varied():
    moments = moments_after(random_episodes(5, 10), (10,))
    np.testing.assert_array_equal(normalize(moments, np.array([[1e6, -1e6]], np.float32)), [[10.0, -10.0]])
    constant = [episode._replace(obs=np.full_like(episode.obs, 4.0)) for episode in random_episodes(5, 10)]
    same = moments_after(constant, (10,))
    # The mean is rounded in its seventh digit, and 1e-4 is the least deviation.
    np.testing.assert_allclose(normalize(same, np.full((1, OBS), 4.0, np.float32)), 0.0, atol=0.05)
    np.testing.assert_array_equal(normalize(same, np.full((1, OBS), 5.0, np.float32)), 10.0)


def test_before_anything_was_seen_normalised_observations_are_numbers():
    assert np.isfinite(normalize(statistics.init_moments(OBS), np.array([[3.0, -1e5]], np.float32))).all()

"""RRD: which steps are drawn, the loss by hand, and how it stands to RD, to the whole episode and to Diaster."""

from __future__ import annotations

from functools import partial
from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_precision import float64
from jax import jit

from diaster.config import DiasterConfig
from diaster.decomposers import rd, rrd, step_reward, sub_trajectory
from diaster.nn import nets
from diaster.replay import rows as packing

N_DRAWS = 20_000


def subsets(length: int, n: int, n_draws: int = N_DRAWS) -> np.ndarray:
    """Independent draws of n steps from an episode.  # [n_draws, n]"""
    keys = jax.random.split(jax.random.key(100 * length + n), n_draws)
    draw = jit(jax.vmap(lambda key: rrd.draw_subset(key, np.int32(length), n)))
    return np.asarray(draw(keys))


# --- drawn steps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "n"), [(1, 1), (5, 5), (6, 5), (9, 3), (40, 33), (1000, 64), (10_000, 64)])
def test_no_step_is_drawn_twice_where_the_episode_has_enough(length, n):
    drawn = subsets(length, n, 300)
    assert drawn.min() >= 0 and drawn.max() < length
    assert all(len(set(steps)) == n for steps in drawn.tolist())


@pytest.mark.parametrize(("length", "n"), [(7, 1), (9, 4), (12, 11), (3, 8), (1, 4)])
def test_every_step_is_drawn_equally_often(length, n):
    counts = np.bincount(subsets(length, n).ravel(), minlength=length)
    share = 1.0 / length if length < n else n / length
    n_trials = N_DRAWS * n if length < n else N_DRAWS
    # With five standard errors, one of the few dozen steps looked at here is off once in some ten thousand versions.
    error = 5.0 * np.sqrt(n_trials * share * (1.0 - share))
    assert np.abs(counts - n_trials * share).max() <= error


def test_every_subset_is_drawn_equally_often():
    names = {subset: number for number, subset in enumerate(combinations(range(7), 4))}
    counts = np.bincount([names[tuple(sorted(steps))] for steps in subsets(7, 4).tolist()], minlength=len(names))
    expected = N_DRAWS / len(names)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(names) - 1
    assert abs(chi_square - freedom) < 5.0 * np.sqrt(2.0 * freedom)


def test_an_episode_that_is_too_short_is_drawn_from_with_replacement():
    drawn = subsets(3, 4, 5000)
    assert drawn.shape == (5000, 4) and set(drawn.ravel()) == {0, 1, 2}
    # Each of the 3⁴ sequences is equally likely: draws do not know of each other.
    counts = np.bincount(drawn @ np.array([27, 9, 3, 1]), minlength=81)
    assert abs(((counts - 5000 / 81) ** 2 / (5000 / 81)).sum() - 80) < 5.0 * np.sqrt(160.0)


# --- the loss by hand -----------------------------------------------------------------------------------------

# r̂ of the drawn steps, R, L; the squared error; what the unbiased variant takes off: c · Var / K
BY_HAND = {
    "L > K": ([1.0, 3.0], 24.0, 8, 1.0, 0.75 * 2.0 / 2),  # 2 against 3; c = 1 − 2/8; Var = (1 + 1)/1
    "L = K": ([1.0, 3.0], 6.0, 2, 1.0, 0.0),
    "L < K": ([1.0, 3.0, 3.0, 1.0], 6.0, 2, 1.0, 4.0 / 3.0 / 4),  # c = 1; Var = (1 + 1 + 1 + 1)/3
    "L = 1": (
        [1.0, 5.0, 3.0, 3.0],
        2.0,
        1,
        1.0,
        0.0,
    ),  # such rewards cannot be: a step has one. c = 0 whatever they are
    "L = K = 1": ([4.0], 2.0, 1, 4.0, None),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_the_loss_of_an_episode_is_that_computed_by_hand(case):
    values, episode_return, length, squared_error, correction = BY_HAND[case]
    loss = partial(rrd.episode_loss, np.array(values, np.float32), np.float32(episode_return), np.int32(length))
    assert float(loss(unbiased=False)) == pytest.approx(squared_error, rel=1e-6)
    if correction is not None:
        assert float(loss(unbiased=True)) == pytest.approx(squared_error - correction, rel=1e-6)


def test_the_loss_of_a_batch_is_the_mean_over_its_episodes():
    identity = (nets.Linear(np.ones((1, 1), np.float32), np.zeros(1, np.float32)),)
    values, returns, lengths = np.array([[1.0, 3.0], [1.0, 3.0]]), np.array([24.0, 6.0]), np.array([8, 2])
    batch = step_reward.Batch(values[..., None].astype(np.float32), returns.astype(np.float32), lengths)
    for unbiased, expected in ((False, (1.0 + 1.0) / 2), (True, (0.25 + 1.0) / 2)):
        loss = step_reward.batch_loss(identity, batch, partial(rrd.episode_loss, unbiased=unbiased))
        assert float(loss) == pytest.approx(expected, rel=1e-6)


# --- how it stands to the whole episode -------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "n"), [(10, 4), (30, 29), (3, 4)])
def test_the_unbiased_loss_is_that_of_the_whole_episode_in_expectation(length, n):
    rng = np.random.default_rng(length)
    rewards, episode_return = 2.0 * rng.normal(size=length), 5.0
    drawn = rewards[subsets(length, n)]  # [N_DRAWS, K]
    whole = (rewards.mean() - episode_return / length) ** 2
    far_off = {}
    with float64():
        for unbiased in (True, False):
            loss = partial(rrd.episode_loss, unbiased=unbiased)
            losses = np.asarray(jit(jax.vmap(loss, (0, None, None)))(drawn, episode_return, length))
            assert losses.dtype == np.float64
            far_off[unbiased] = abs(losses.mean() - whole) / (losses.std(ddof=1) / np.sqrt(N_DRAWS))
    assert far_off[True] < 3.0
    assert far_off[False] > 10.0  # the draws are enough to tell a bias


def random_mlp(sizes: tuple[int, ...], seed: int) -> nets.MLP:
    """A perceptron with float64 parameters, on the host."""
    rng = np.random.default_rng(seed)
    return tuple(nets.Linear(rng.normal(size=(n_in, n_out)), rng.normal(size=n_out)) for n_in, n_out in pairwise(sizes))


@pytest.mark.parametrize(("length", "unbiased"), [(1, False), (2, False), (7, False), (7, True)])
def test_with_all_steps_drawn_it_is_return_decomposition_over_the_square_of_the_length(length, unbiased):
    n_inputs, n_episodes, horizon = 3, 5, 9
    rng, net = np.random.default_rng(length), random_mlp((n_inputs, 6, 6, 1), seed=1)
    steps, returns = rng.normal(size=(n_episodes, length, n_inputs)), rng.normal(size=n_episodes) * 4.0
    lengths = np.full(n_episodes, length)

    def randomized(net: nets.MLP):
        keys = jax.random.split(jax.random.key(0), n_episodes)
        drawn = jax.vmap(partial(rrd.draw_subset, n=length))(keys, lengths)
        batch = step_reward.Batch(jnp.take_along_axis(steps, drawn[..., None], axis=1), returns, lengths)
        return step_reward.batch_loss(net, batch, partial(rrd.episode_loss, unbiased=unbiased))

    def whole(net: nets.MLP):
        seen = jax.vmap(partial(rd.all_steps, horizon=horizon))(lengths)
        batch = step_reward.Batch(jnp.take_along_axis(steps, seen[..., None], axis=1), returns, lengths)
        return step_reward.batch_loss(net, batch, rd.episode_loss)

    with float64():
        value, gradient = jax.device_get(jit(jax.value_and_grad(randomized))(net))
        of_whole, gradient_of_whole = jax.device_get(jit(jax.value_and_grad(whole))(net))
    assert value.dtype == np.float64 and of_whole > 0.1
    assert value == pytest.approx(of_whole / length**2, rel=1e-12)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient_of_whole), strict=True):
        np.testing.assert_allclose(ours, theirs / length**2, rtol=1e-10, atol=1e-12)
        assert np.abs(theirs).max() > 0.01


# --- how it stands to Diaster -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 20])
def test_diaster_on_segments_of_one_step_without_a_penalty_has_this_loss_on_the_same_steps(length):
    n_drawn, n_inputs, hidden, horizon = 6, 3, 4, 20
    episode, episode_return = np.random.default_rng(length).normal(size=(length, n_inputs)), 50.0
    layers = random_mlp((n_inputs, 3 * hidden), 2) + random_mlp((hidden, 3 * hidden), 3) + random_mlp((hidden, 1), 4)
    net = sub_trajectory.SubReward(nets.GRU(layers[0], layers[1]), layers[2])
    config = DiasterConfig(hidden=hidden, segment_length=1, segments_per_episode=n_drawn, variance_penalty=0.0)
    start = np.ones((1, n_drawn), bool)

    def both(net: sub_trajectory.SubReward):
        first, end = packing.draw_segments(jax.random.key(7), jnp.array(length), 1, n_drawn, horizon)
        rows = packing.rows_of_segments(first[None], end[None], 1)
        inputs = jnp.asarray(episode)[rows.step]
        batch = sub_trajectory.Batch(inputs, rows, start, jnp.array([episode_return]), jnp.array([length]))
        theirs, _ = sub_trajectory.sub_trajectory_loss(net, config, batch)
        values = sub_trajectory.reward_differences(net, config.head, inputs, start)
        ours = rrd.episode_loss(values[0], jnp.array(episode_return), jnp.array(length), unbiased=False)
        return jnp.stack([theirs, ours]), (first, values)

    with float64():
        losses, (first, values) = jax.device_get(jit(both)(net))
        gradients = jax.device_get(jit(jax.jacrev(lambda net: both(net)[0]))(net))
        alone = np.asarray(sub_trajectory.reward_differences(net, config.head, episode[first][None], start))
    assert len(set(first)) == n_drawn and losses.dtype == np.float64 and losses[0] > 0.1
    np.testing.assert_allclose(values, alone, rtol=1e-12)  # what Diaster says of a step it sees by itself
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for gradient in jax.tree.leaves(gradients):
        np.testing.assert_allclose(gradient[0], gradient[1], rtol=1e-10, atol=1e-12)

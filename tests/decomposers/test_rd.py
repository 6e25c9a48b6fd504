"""RD: least squares on whole episodes, whatever the padding."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.decomposers import rd, step_reward
from diaster.nn import nets


def test_every_step_is_looked_at_once_and_the_padding_repeats_the_last_one():
    np.testing.assert_array_equal(rd.all_steps(np.int32(3), 5), [0, 1, 2, 2, 2])
    np.testing.assert_array_equal(rd.all_steps(np.int32(5), 5), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(rd.all_steps(np.int32(1), 2), [0, 0])


# r̂ of the steps and of the padding, R, L, and (R − Σ_t r̂)² of the first L
BY_HAND = {
    "a full episode": ([1.0, 2.0, 4.0], 10.0, 3, 9.0),
    "a short one": ([1.0, 2.0, 400.0], 10.0, 2, 49.0),
    "a single step": ([1.0, 200.0, 400.0], 10.0, 1, 81.0),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_the_loss_of_an_episode_is_that_computed_by_hand(case):
    values, episode_return, length, expected = BY_HAND[case]
    loss = rd.episode_loss(jnp.array(values), jnp.array(episode_return), jnp.array(length))
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_padding_changes_neither_the_loss_of_a_batch_nor_its_gradient():
    rng, n_inputs, lengths = np.random.default_rng(0), 3, np.array([1, 4, 2])
    net = jit(nets.mlp_init, static_argnums=1)(jax.random.key(0), (n_inputs, 5, 5, 1))
    steps = rng.normal(size=(lengths.sum(), n_inputs)).astype(np.float32)
    episodes = np.split(steps, np.cumsum(lengths)[:-1])
    returns = rng.normal(size=3).astype(np.float32)
    loss_and_gradient = jit(jax.value_and_grad(step_reward.batch_loss), static_argnums=2)

    def padded(horizon: int, padding: float):
        inputs = np.full((3, horizon, n_inputs), padding, np.float32)
        for row, episode in zip(inputs, episodes, strict=True):
            row[: len(episode)] = episode
        return loss_and_gradient(net, step_reward.Batch(inputs, returns, lengths), rd.episode_loss)

    def end_to_end(net: nets.MLP):
        """Without padding, and without a batch of the kind under test."""
        belongs = np.repeat(np.eye(3, dtype=np.float32), lengths, axis=0)  # [steps, B]
        return ((returns - nets.mlp(net, steps)[:, 0] @ belongs) ** 2).mean()

    expected = jit(jax.value_and_grad(end_to_end))(net)
    assert float(expected[0]) > 0.01
    for horizon, padding in ((4, 0.0), (4, 1e3), (9, -7.0)):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), padded(horizon, padding), expected)

"""Nets against step-by-step NumPy and against numerical integration."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_precision import assert_same_states, float64, sigmoid
from jax import jit

from diaster.actors import acting
from diaster.agents.tanh_gaussian import tanh_gaussian as tanh_gaussian_policy
from diaster.nn import nets

HIDDEN, INPUTS = 5, 3

# Compiled whole: op by op, the tests would spend their time on compiling each operation by itself.
gru_init = jit(nets.gru_init, static_argnums=(1, 2))
mlp_init = jit(nets.mlp_init, static_argnums=1)
tanh_gaussian = jit(tanh_gaussian_policy)


def test_a_perceptron_on_two_batches_together_is_itself_and_its_gradient_is_of_the_first():
    layers = mlp_init(jax.random.key(0), (3, 6, 5, 2))
    x, other = (jax.random.normal(jax.random.key(seed), (n, 3)) for seed, n in ((1, 7), (2, 4)))

    def alone(layers, x):
        y = nets.mlp(layers, x)
        return (y**2).sum(), (y, nets.mlp(layers, other))

    def together(layers, x):
        y, others = nets.mlp_two_batches(layers, x, other)
        return (y**2).sum() + others.sum(), (y, others)

    found, expected = (
        jit(jax.grad(function, argnums=(0, 1), has_aux=True))(layers, x) for function in (together, alone)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


def test_a_perceptron_has_relu_between_its_layers_and_none_after_the_last():
    layers = (
        nets.Linear(jnp.array([[1.0, -1.0]]), jnp.array([0.5, 0.0])),
        nets.Linear(jnp.array([[2.0], [3.0]]), jnp.array([-10.0])),
    )
    # x = 1: hidden (1.5, 0) → 3 − 10; x = −2: hidden (0, 2) → 6 − 10
    np.testing.assert_allclose(nets.mlp(layers, jnp.array([[1.0], [-2.0]])), [[-7.0], [-4.0]])


def test_initial_layers_fill_the_interval_of_one_over_root_fan_in():
    layers = mlp_init(jax.random.key(0), (16, 400, 50))
    assert [layer.weight.shape for layer in layers] == [(16, 400), (400, 50)]
    assert [layer.bias.shape for layer in layers] == [(400,), (50,)]
    for layer, fan_in in zip(layers, (16, 400), strict=True):
        bound = fan_in**-0.5
        for values in layer:
            largest = np.abs(np.asarray(values)).max()
            assert 0.9 * bound < largest <= bound
            assert abs(np.asarray(values).mean()) < 0.2 * bound  # both signs


def test_initial_cells_fill_the_interval_of_one_over_root_hidden_whatever_their_inputs():
    cell = gru_init(jax.random.key(0), 4, 64)
    assert cell.input.weight.shape == (4, 192) and cell.hidden.weight.shape == (64, 192)
    for layer in cell:
        for values in layer:
            largest = np.abs(np.asarray(values)).max()
            assert 0.9 * 64**-0.5 < largest <= 64**-0.5
            assert abs(np.asarray(values).mean()) < 0.2 * 64**-0.5


def test_initial_layers_of_different_keys_and_places_differ():
    one, other = (mlp_init(jax.random.key(seed), (4, 4, 4)) for seed in (0, 1))
    assert not np.array_equal(one[0].weight, other[0].weight)
    assert not np.array_equal(one[0].weight, one[1].weight)
    cell = gru_init(jax.random.key(0), HIDDEN, HIDDEN)
    assert not np.array_equal(cell.input.weight, cell.hidden.weight)


def same_outputs(n, mean, log_std):
    """The outputs of a policy that gives the same distribution for every one of n observations."""
    outputs = jnp.concatenate([jnp.asarray(mean), jnp.asarray(log_std)])
    return jnp.broadcast_to(outputs, (n, len(outputs)))


def test_the_log_probability_obeys_the_change_of_variables():
    rng = np.random.default_rng(0)
    mean, log_std = rng.normal(size=3), rng.normal(size=3) * 0.5
    noise = rng.normal(size=(200, 3))
    with float64():
        action, log_prob = tanh_gaussian(same_outputs(200, mean, log_std), jnp.asarray(noise))
    action, log_prob = np.asarray(action), np.asarray(log_prob)
    std = np.exp(log_std)
    raw = np.arctanh(action)
    np.testing.assert_allclose(raw, mean + std * noise, atol=1e-7)
    density = np.exp(-0.5 * ((raw - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi)) / (1.0 - action**2)
    np.testing.assert_allclose(log_prob, np.log(density).sum(axis=-1), atol=1e-6)


def test_the_density_of_actions_integrates_to_one():
    with float64():
        # Equal steps of the noise are unequal steps of the action: the trapezium rule over those.
        noise = jnp.linspace(-9.0, 9.0, 4001)[:, None]
        action, log_prob = tanh_gaussian(same_outputs(4001, np.array([0.4]), np.array([-0.7])), noise)
    action, density = np.asarray(action)[:, 0], np.exp(np.asarray(log_prob))
    assert np.all(np.diff(action) > 0.0)
    mass = np.sum(np.diff(action) * 0.5 * (density[1:] + density[:-1]))
    assert mass == pytest.approx(1.0, abs=1e-5)


def test_the_log_probability_and_its_gradient_stay_finite_far_out():
    def log_prob(mean):
        return tanh_gaussian_policy(same_outputs(1, mean, jnp.array([0.0, 0.0])), jnp.ones((1, 2)))[1][0]

    value, gradient = jit(jax.value_and_grad(log_prob))(jnp.array([80.0, -80.0]))
    # raw = 81 and −79: −½ − ½ log 2π − 2 (log 2 − |raw|) each
    expected = 2 * (-0.5 - 0.5 * np.log(2 * np.pi)) - 2 * (2 * np.log(2) - 81.0 - 79.0)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradient, [2.0, -2.0], atol=1e-5)


def test_the_deviation_of_the_policy_is_clipped_at_both_ends():
    for log_std, clipped in ((-1000.0, acting.LOG_STD_MIN), (1000.0, acting.LOG_STD_MAX), (0.5, 0.5)):
        outputs = same_outputs(1, jnp.array([0.0]), jnp.array([log_std]))
        action, log_prob = tanh_gaussian(outputs, jnp.full((1, 1), 0.1))
        raw = np.exp(clipped) * 0.1
        assert float(action[0, 0]) == pytest.approx(np.tanh(raw), rel=1e-5)
        squash = 2.0 * (np.log(2.0) - raw - np.log1p(np.exp(-2.0 * raw)))
        expected = -0.005 - clipped - 0.5 * np.log(2 * np.pi) - squash
        assert float(log_prob[0]) == pytest.approx(expected, rel=1e-4)


# The LSTM

lstm_scan = jit(nets.lstm_scan)
lstm_init = jit(nets.lstm_init, static_argnums=(1, 2))


def naive_lstm(cell: nets.LSTM, inputs, start):
    """PyTorch's equations, one row and one step at a time."""
    w_in, b_in, w_hidden, b_hidden = (np.asarray(leaf) for layer in cell for leaf in layer)
    n_hidden = w_hidden.shape[0]
    states = np.zeros((*inputs.shape[:2], n_hidden))
    for row in range(inputs.shape[1]):
        h = c = np.zeros(n_hidden)
        for t in range(inputs.shape[0]):
            if start[t, row]:
                h = c = np.zeros(n_hidden)
            i, f, g, o = np.split(inputs[t, row] @ w_in + b_in + h @ w_hidden + b_hidden, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states[t, row] = h
    return states


@pytest.mark.parametrize("n_steps", [1, 12])
def test_the_lstm_scan_equals_the_equations_step_by_step_with_resets_anywhere(n_steps):
    cell = lstm_init(jax.random.key(0), INPUTS, HIDDEN)
    assert_same_states(lstm_scan, naive_lstm, cell, n_steps)


def test_nothing_crosses_a_reset_of_the_lstm_neither_state_nor_memory():
    cell = lstm_init(jax.random.key(1), INPUTS, HIDDEN)
    inputs = jax.random.normal(jax.random.key(2), (8, 1, INPUTS))
    start = jnp.zeros((8, 1), bool).at[5].set(True)
    changed = lstm_scan(cell, inputs.at[:5].add(1.0), start)
    original = lstm_scan(cell, inputs, start)
    np.testing.assert_array_equal(changed[5:], original[5:])
    assert np.abs(np.asarray(changed[:5] - original[:5])).min() > 0.0


def test_initial_lstm_cells_fill_the_interval_of_one_over_root_hidden_with_two_different_layers():
    cell = lstm_init(jax.random.key(0), 64, 64)
    assert cell.input.weight.shape == cell.hidden.weight.shape == (64, 256)
    assert cell.input.bias.shape == (256,)
    for layer in cell:
        for values in layer:
            largest = np.abs(np.asarray(values)).max()
            assert 0.9 * 64**-0.5 < largest <= 64**-0.5
            assert abs(np.asarray(values).mean()) < 0.2 * 64**-0.5
    assert not np.array_equal(cell.input.weight, cell.hidden.weight)

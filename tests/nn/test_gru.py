"""The GRU's scan against step-by-step NumPy, and its gradient against small changes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_precision import assert_same_states, float64, sigmoid, to_float64
from jax import jit
from jax.test_util import check_grads

from diaster.nn import gru, nets

HIDDEN, INPUTS = 5, 3

# Compiled whole: op by op, the tests would spend their time on compiling each operation by itself.
gru_scan = jit(gru.gru_scan)
gru_init = jit(nets.gru_init, static_argnums=(1, 2))


def naive_gru(cell: nets.GRU, inputs, start):
    """PyTorch's equations, one row and one step at a time."""
    w_in, b_in, w_hidden, b_hidden = (np.asarray(leaf) for layer in cell for leaf in layer)
    n_hidden = w_hidden.shape[0]
    part = [slice(i * n_hidden, (i + 1) * n_hidden) for i in range(3)]
    states = np.zeros((*inputs.shape[:2], n_hidden))
    for row in range(inputs.shape[1]):
        h = np.zeros(n_hidden)
        for t in range(inputs.shape[0]):
            if start[t, row]:
                h = np.zeros(n_hidden)
            x = inputs[t, row]
            r = sigmoid(x @ w_in[:, part[0]] + b_in[part[0]] + h @ w_hidden[:, part[0]] + b_hidden[part[0]])
            z = sigmoid(x @ w_in[:, part[1]] + b_in[part[1]] + h @ w_hidden[:, part[1]] + b_hidden[part[1]])
            n = np.tanh(x @ w_in[:, part[2]] + b_in[part[2]] + r * (h @ w_hidden[:, part[2]] + b_hidden[part[2]]))
            h = (1.0 - z) * n + z * h
            states[t, row] = h
    return states


@pytest.mark.parametrize("n_steps", [1, 12])
def test_the_gru_scan_equals_the_equations_step_by_step_with_resets_anywhere(n_steps):
    cell = gru_init(jax.random.key(0), INPUTS, HIDDEN)
    assert_same_states(gru_scan, naive_gru, cell, n_steps)


@pytest.mark.parametrize("n_steps", [1, 2, 12])
def test_the_gru_scans_own_gradient_is_that_of_small_changes(n_steps):
    rng = np.random.default_rng(n_steps)
    start = jnp.asarray(rng.random((n_steps, 3)) < 0.3)
    weight = rng.normal(size=(n_steps, 3, HIDDEN))
    with float64():
        cell = to_float64(gru_init(jax.random.key(0), INPUTS, HIDDEN))
        inputs = jnp.asarray(rng.normal(size=(n_steps, 3, INPUTS)))
        total = jit(lambda *x: (gru.gru_scan(*x, start) * weight).sum())
        check_grads(total, (cell, inputs), order=1, modes=["rev"])


@pytest.mark.parametrize("n_steps", [3, 12])
def test_rows_cut_in_two_ways_together_are_those_cut_in_each_way_and_the_gradient_is_the_firsts(n_steps):
    rng = np.random.default_rng(n_steps)
    start, other = (jnp.asarray(rng.random((n_steps, 3)) < 0.3) for _ in range(2))
    inputs = jnp.asarray(rng.normal(size=(n_steps, 3, INPUTS)), jnp.float32)
    cell = gru_init(jax.random.key(0), INPUTS, HIDDEN)

    def alone(cell, inputs):
        states = gru.gru_scan(cell, inputs, start)
        return (states**2).sum(), (states, gru.gru_scan(cell, inputs, other))

    def together(cell, inputs):
        states, others = gru.gru_scan_two_ways(cell, inputs, start, other)
        return (states**2).sum() + others.sum(), (states, others)

    found, expected = (
        jit(jax.grad(function, argnums=(0, 1), has_aux=True))(cell, inputs) for function in (together, alone)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    assert np.abs(expected[1][0] - expected[1][1]).max() > 0.01


def test_a_row_begins_with_a_zero_state_whether_or_not_its_first_step_is_flagged():
    cell = gru_init(jax.random.key(1), INPUTS, HIDDEN)
    inputs = jax.random.normal(jax.random.key(2), (8, 1, INPUTS))
    start = jnp.zeros((8, 1), bool)
    np.testing.assert_array_equal(gru_scan(cell, inputs, start), gru_scan(cell, inputs, start.at[0].set(True)))


def test_nothing_crosses_a_reset():
    cell = gru_init(jax.random.key(1), INPUTS, HIDDEN)
    inputs = jax.random.normal(jax.random.key(2), (8, 1, INPUTS))
    start = jnp.zeros((8, 1), bool).at[5].set(True)
    changed = gru_scan(cell, inputs.at[:5].add(1.0), start)
    original = gru_scan(cell, inputs, start)
    np.testing.assert_array_equal(changed[5:], original[5:])
    assert np.abs(np.asarray(changed[:5] - original[:5])).min() > 0.0

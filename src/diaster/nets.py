"""Small nets as plain records of arrays: perceptron, recurrent scan with resets, tanh-Gaussian policy.

They are records and functions rather than modules so that a recurrent cell's input products can be taken out of
its scan, and so that the host can act with the very same arrays in NumPy (`acting.py`). Initialisation is
PyTorch's: uniform in ±1/√fan_in for layers, ±1/√hidden for recurrent cells.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.acting import LOG_STD_MAX, LOG_STD_MIN


class Linear(NamedTuple):
    """x @ weight + bias."""

    weight: Array  # [I, O]
    bias: Array  # [O]


MLP = tuple[Linear, ...]


class GRU(NamedTuple):
    """A gated recurrent unit; gates in the order reset, update, candidate."""

    input: Linear  # [I, 3H]
    hidden: Linear  # [H, 3H]


class LSTM(NamedTuple):
    """A long short-term memory; gates in the order input, forget, candidate, output."""

    input: Linear  # [I, 4H]
    hidden: Linear  # [H, 4H]


def linear_init(key: Array, n_in: int, n_out: int, bound: float) -> Linear:
    """A layer with weight and bias uniform in ±bound."""
    weight_key, bias_key = jax.random.split(key)
    return Linear(
        jax.random.uniform(weight_key, (n_in, n_out), minval=-bound, maxval=bound),
        jax.random.uniform(bias_key, (n_out,), minval=-bound, maxval=bound),
    )


def mlp_init(key: Array, sizes: tuple[int, ...]) -> MLP:
    """A perceptron with the given layer sizes, input and output included."""
    keys = jax.random.split(key, len(sizes) - 1)
    return tuple(linear_init(k, i, o, i**-0.5) for k, (i, o) in zip(keys, pairwise(sizes), strict=True))


def linear(layer: Linear, x: Array) -> Array:
    """Apply one layer."""
    return x @ layer.weight + layer.bias


def mlp(layers: MLP, x: Array) -> Array:
    """ReLU between the layers, none after the last."""
    for layer in layers[:-1]:
        x = jax.nn.relu(linear(layer, x))
    return linear(layers[-1], x)


def gru_init(key: Array, n_in: int, n_hidden: int) -> GRU:
    """A cell with PyTorch's initialisation."""
    input_key, hidden_key = jax.random.split(key)
    bound = n_hidden**-0.5
    return GRU(
        linear_init(input_key, n_in, 3 * n_hidden, bound),
        linear_init(hidden_key, n_hidden, 3 * n_hidden, bound),
    )


def gru_scan(cell: GRU, inputs: Array, start: Array) -> Array:
    """States after each step of rows of steps, reset wherever a segment starts.

    A cut of an episode is nothing but such a reset, so one scan serves any number of cuts and of episodes
    packed end to end. inputs  # [T, B, I]; start  # [T, B] bool; returns  # [T, B, H]
    """
    n_hidden = cell.hidden.weight.shape[0]
    projected = linear(cell.input, inputs)  # [T, B, 3H]: one large product instead of T small ones

    def advance(state: Array, gates_in: Array, gates_hidden: Array) -> Array:
        reset_in, update_in, new_in = jnp.split(gates_in, 3, axis=-1)
        reset_hidden, update_hidden, new_hidden = jnp.split(gates_hidden, 3, axis=-1)
        reset = jax.nn.sigmoid(reset_in + reset_hidden)
        update = jax.nn.sigmoid(update_in + update_hidden)
        candidate = jnp.tanh(new_in + reset * new_hidden)
        return (1.0 - update) * candidate + update * state

    def step(state: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        gates_in, is_start = x
        state = jnp.where(is_start[:, None], 0.0, state)
        state = advance(state, gates_in, linear(cell.hidden, state))
        return state, state

    # Every row begins with a zero state, whose product is the bias: for rows of four steps a quarter of the work.
    zero = jnp.zeros((inputs.shape[1], n_hidden), projected.dtype)
    first = advance(zero, projected[0], jnp.broadcast_to(cell.hidden.bias, projected[0].shape))
    # Short rows are unrolled whole: the loop's overhead would exceed its arithmetic.
    unroll = min(max(inputs.shape[0] - 1, 1), 8)
    _, states = jax.lax.scan(step, first, (projected[1:], start[1:]), unroll=unroll)
    return jnp.concatenate([first[None], states])


def lstm_init(key: Array, n_in: int, n_hidden: int) -> LSTM:
    """A cell with PyTorch's initialisation."""
    input_key, hidden_key = jax.random.split(key)
    bound = n_hidden**-0.5
    return LSTM(
        linear_init(input_key, n_in, 4 * n_hidden, bound),
        linear_init(hidden_key, n_hidden, 4 * n_hidden, bound),
    )


def lstm_scan(cell: LSTM, inputs: Array, start: Array) -> Array:
    """Outputs after each step of rows of steps; state and memory are reset wherever a segment starts.

    inputs  # [T, B, I]; start  # [T, B] bool; returns  # [T, B, H]
    """
    n_hidden = cell.hidden.weight.shape[0]
    projected = linear(cell.input, inputs)  # [T, B, 4H]: one large product instead of T small ones

    def step(carry: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        gates_in, is_start = x
        state, memory = (jnp.where(is_start[:, None], 0.0, part) for part in carry)
        admit, keep, candidate, show = jnp.split(gates_in + linear(cell.hidden, state), 4, axis=-1)
        memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(admit) * jnp.tanh(candidate)
        state = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return (state, memory), state

    zero = jnp.zeros((inputs.shape[1], n_hidden), projected.dtype)
    _, states = jax.lax.scan(step, (zero, zero), (projected, start), unroll=min(inputs.shape[0], 8))
    return states


def tanh_gaussian(layers: MLP, obs: Array, noise: Array) -> tuple[Array, Array]:
    """SAC's policy: a squashed sample and its log-probability. obs  # [B, D]; noise  # [B, A]"""
    mean, log_std = jnp.split(mlp(layers, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
    raw = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    # log(1 − tanh²(x)), written so that it stays finite for large |x|
    squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(gaussian - squash, axis=-1)

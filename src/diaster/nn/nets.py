"""Small nets as plain records of arrays: perceptron and recurrent cells.

They are records and functions rather than modules so that a recurrent cell's input products can be taken out of
its scan, and so that the host can act with the very same arrays in NumPy (`actors/acting.py`). Initialisation is
PyTorch's: uniform in ±1/√fan_in for layers, ±1/√hidden for recurrent cells.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


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


@jax.custom_vjp
def mlp_two_batches(layers: MLP, x: Array, other: Array) -> tuple[Array, Array]:
    """`mlp` of two batches in one pass; no gradient flows through the second."""
    return _two_batches_forward(layers, x, other)[0]


def _two_batches_forward(layers: MLP, x: Array, other: Array) -> tuple[tuple[Array, Array], Any]:
    n_own = x.shape[0]
    both, seen = jnp.concatenate([x, other]), [x]
    for layer in layers[:-1]:
        both = jax.nn.relu(linear(layer, both))
        seen.append(both[:n_own])
    both = linear(layers[-1], both)
    return (both[:n_own], both[n_own:]), (layers, tuple(seen))


def _two_batches_backward(saved: Any, gradient: tuple[Array, Array]) -> tuple[MLP, Array, None]:
    layers, seen = saved
    d_output, _ = gradient
    d_layers: list[Linear] = []
    for layer, x in zip(reversed(layers), reversed(seen), strict=True):
        d_layers.insert(0, Linear(x.T @ d_output, d_output.sum(axis=0)))
        d_input = d_output @ layer.weight.T
        d_output = jnp.where(x > 0.0, d_input, 0.0)  # if it came out of a ReLU
    return tuple(d_layers), d_input, None


mlp_two_batches.defvjp(_two_batches_forward, _two_batches_backward)


def gru_init(key: Array, n_in: int, n_hidden: int) -> GRU:
    """A cell with PyTorch's initialisation."""
    input_key, hidden_key = jax.random.split(key)
    bound = n_hidden**-0.5
    return GRU(
        linear_init(input_key, n_in, 3 * n_hidden, bound),
        linear_init(hidden_key, n_hidden, 3 * n_hidden, bound),
    )


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

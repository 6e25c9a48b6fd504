"""Small nets as plain records of arrays: perceptron, recurrent scan with resets, tanh-Gaussian policy.

They are records and functions rather than modules so that a recurrent cell's input products can be taken out of
its scan, and so that the host can act with the very same arrays in NumPy (`acting.py`). Initialisation is
PyTorch's: uniform in ±1/√fan_in for layers, ±1/√hidden for recurrent cells.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.acting import LOG_STD_MAX, LOG_STD_MIN

SHORT_ROW = 8


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
def mlp_beside(layers: MLP, x: Array, beside: Array) -> tuple[Array, Array]:
    """`mlp` of two batches in one pass; no gradient flows through the second."""
    return _mlp_beside_forward(layers, x, beside)[0]


def _mlp_beside_forward(layers: MLP, x: Array, beside: Array) -> tuple[tuple[Array, Array], Any]:
    n_own = x.shape[0]
    both, seen = jnp.concatenate([x, beside]), [x]
    for layer in layers[:-1]:
        both = jax.nn.relu(linear(layer, both))
        seen.append(both[:n_own])
    both = linear(layers[-1], both)
    return (both[:n_own], both[n_own:]), (layers, tuple(seen))


def _mlp_beside_backward(saved: Any, gradient: tuple[Array, Array]) -> tuple[MLP, Array, None]:
    layers, seen = saved
    d_output, _ = gradient
    d_layers: list[Linear] = []
    for layer, x in zip(reversed(layers), reversed(seen), strict=True):
        d_layers.insert(0, Linear(x.T @ d_output, d_output.sum(axis=0)))
        d_input = d_output @ layer.weight.T
        d_output = jnp.where(x > 0.0, d_input, 0.0)  # if it came out of a ReLU
    return tuple(d_layers), d_input, None


mlp_beside.defvjp(_mlp_beside_forward, _mlp_beside_backward)


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
    return _gru_states(cell, inputs, start[:, None])[:, 0]


def gru_scan_beside(cell: GRU, inputs: Array, start: Array, beside: Array) -> tuple[Array, Array]:
    """`gru_scan` for two ways of cutting the same rows, step by step together; no gradient flows through the second."""
    states = _gru_states(cell, inputs, jnp.stack([start, beside], axis=1))
    return states[:, 0], states[:, 1]


@jax.custom_vjp
def _gru_states(cell: GRU, inputs: Array, start: Array) -> Array:
    """States of rows that are cut in several ways; the gradient is that of the first.

    start  # [T, V, B]; returns  # [T, V, B, H]
    The gradient is written by hand for the sake of what it leaves out of its loop: how each step's state follows from
    its gates is known when the gates are, and the weights' gradients do not wait for anything but the whole.
    """
    return _gru_walk(cell, inputs, start, lambda *_: ())[0]


def _gru_walk(cell: GRU, inputs: Array, start: Array, keep: Any) -> tuple[Array, Any]:
    """The states, and what is to be kept of the first way of cutting at every step."""
    # One large product instead of T small ones, and the same for every way of cutting  # [T, B, 3H]
    projected = linear(cell.input, inputs)
    zero = jnp.zeros((*start.shape[1:], cell.hidden.weight.shape[0]), projected.dtype)

    def step(state: Array, x: tuple[Array, Array], is_first: bool = False) -> tuple[Array, Any]:
        gates_in, is_start = x
        if is_first:  # the product of a zero state is the bias: for rows of four steps a quarter of the work
            before, gates_hidden = zero, jnp.broadcast_to(cell.hidden.bias, (*zero.shape[:-1], gates_in.shape[-1]))
        else:
            before = jnp.where(is_start[..., None], 0.0, state)
            gates_hidden = linear(cell.hidden, before)
        reset_in, update_in, new_in = jnp.split(gates_in, 3, axis=-1)
        reset_hidden, update_hidden, new_hidden = jnp.split(gates_hidden, 3, axis=-1)
        reset, update = jax.nn.sigmoid(reset_in + reset_hidden), jax.nn.sigmoid(update_in + update_hidden)
        candidate = jnp.tanh(new_in + reset * new_hidden)
        state = candidate + update * (before - candidate)
        return state, (state, keep(*(part[0] for part in (before, reset, update, candidate, new_hidden))))

    _, (states, kept) = _walk(step, zero, (projected, start))
    return states, kept


def _gru_forward(cell: GRU, inputs: Array, start: Array) -> tuple[Array, Any]:
    def keep(before: Array, reset: Array, update: Array, candidate: Array, new_hidden: Array) -> Any:
        by_new = (1.0 - update) * (1.0 - candidate**2)
        by_reset, by_update = (
            by_new * new_hidden * reset * (1.0 - reset),
            (before - candidate) * update * (1.0 - update),
        )
        return before, update, jnp.stack([by_reset, by_update, by_new * reset, by_new], axis=-2)

    states, kept = _gru_walk(cell, inputs, start, keep)
    return states, (cell, inputs, start[:, 0], kept)


def _gru_backward(saved: Any, d_all_states: Array) -> tuple[GRU, Array, None]:
    # How a state follows its reset gate, its update gate and its candidate's two sums  # [T, B, 4, H]
    cell, inputs, start, (before, update, by_gate) = saved
    zero = jnp.zeros_like(before[0])

    def step(d_after: Array, x: tuple[Array, ...], is_first: bool = False) -> tuple[Array, Array]:
        d_own, update, by_gate, is_start = x
        d_state = d_after + d_own
        if is_first:  # a row has none before it
            return zero, d_state
        d_hidden = (d_state[:, None] * by_gate[:, :3]).reshape(len(d_state), -1)
        d_before = d_state * update + d_hidden @ cell.hidden.weight.T
        return jnp.where(is_start[:, None], 0.0, d_before), d_state

    _, d_states = _walk(step, zero, (d_all_states[:, 0], update, by_gate, start), reverse=True)
    d_gates = d_states[..., None, :] * by_gate
    d_hidden = d_gates[:, :, :3].reshape(*d_states.shape[:2], -1)
    d_input = jnp.concatenate([d_gates[:, :, :2], d_gates[:, :, 3:]], axis=2).reshape(d_hidden.shape)
    d_cell = GRU(_linear_gradient(inputs, d_input), _linear_gradient(before, d_hidden))
    return d_cell, d_input @ cell.input.weight.T, None


_gru_states.defvjp(_gru_forward, _gru_backward)


def _linear_gradient(inputs: Array, d_outputs: Array) -> Linear:
    return Linear(jnp.einsum("tbi,tbo->io", inputs, d_outputs), d_outputs.sum(axis=(0, 1)))


def _walk(step: Any, state: Any, steps: Any, reverse: bool = False) -> tuple[Any, Any]:
    """`scan` along rows. Short rows are laid out whole: a loop's overhead would exceed its arithmetic."""
    n_steps = jax.tree.leaves(steps)[0].shape[0]
    if n_steps > SHORT_ROW:
        return jax.lax.scan(step, state, steps, reverse=reverse, unroll=SHORT_ROW)
    outputs = []
    for t in reversed(range(n_steps)) if reverse else range(n_steps):
        state, output = step(state, jax.tree.map(lambda leaf, t=t: leaf[t], steps), is_first=t == 0)
        outputs.append(output)
    return state, jax.tree.map(lambda *parts: jnp.stack(parts), *(outputs[::-1] if reverse else outputs))


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


def tanh_gaussian(outputs: Array, noise: Array) -> tuple[Array, Array]:
    """SAC's policy, from its net's outputs: a squashed sample and its log-probability.

    outputs  # [B, 2A]; noise  # [B, A]
    """
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    log_std = jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
    raw = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    # log(1 − tanh²(x)), written so that it stays finite for large |x|
    squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(gaussian - squash, axis=-1)

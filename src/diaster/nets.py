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
    # One large product instead of T small ones  # [T, B, 3H]
    return _gru_states(cell.hidden, linear(cell.input, inputs), start)


@jax.custom_vjp
def _gru_states(hidden: Linear, projected: Array, start: Array) -> Array:
    """The recurrence of `gru_scan`, from the products of its inputs.

    Its gradient is written by hand for the sake of what it leaves out of the loop: all that does not wait for the next
    step, above all the weight's gradient, is computed for all steps at once.
    """
    return _gru_forward(hidden, projected, start)[0]


def _gru_forward(hidden: Linear, projected: Array, start: Array) -> tuple[Array, Array]:
    """States  # [T, B, H], and the products of the states before them  # [T, B, 3H]"""

    def advance(state: Array, gates_in: Array, gates_hidden: Array) -> Array:
        _, update, candidate, _ = _gru_gates(gates_in, gates_hidden)
        return candidate + update * (state - candidate)

    def step(state: Array, x: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        gates_in, is_start = x
        state = jnp.where(is_start[:, None], 0.0, state)
        gates_hidden = linear(hidden, state)
        state = advance(state, gates_in, gates_hidden)
        return state, (state, gates_hidden)

    # Every row begins with a zero state, whose product is the bias: for rows of four steps a quarter of the work.
    zero = jnp.zeros((*projected.shape[1:-1], hidden.weight.shape[0]), projected.dtype)
    first_hidden = jnp.broadcast_to(hidden.bias, projected[0].shape)
    first = advance(zero, projected[0], first_hidden)
    _, (states, gates_hidden) = jax.lax.scan(step, first, (projected[1:], start[1:]), unroll=_unrolled(projected))
    return jnp.concatenate([first[None], states]), jnp.concatenate([first_hidden[None], gates_hidden])


def _gru_gates(gates_in: Array, gates_hidden: Array) -> tuple[Array, Array, Array, Array]:
    """Reset, update and candidate, and what the reset gate multiplies."""
    reset_in, update_in, new_in = jnp.split(gates_in, 3, axis=-1)
    reset_hidden, update_hidden, new_hidden = jnp.split(gates_hidden, 3, axis=-1)
    reset = jax.nn.sigmoid(reset_in + reset_hidden)
    update = jax.nn.sigmoid(update_in + update_hidden)
    return reset, update, jnp.tanh(new_in + reset * new_hidden), new_hidden


def _unrolled(rows: Array) -> int:
    """Short rows are unrolled whole: the loop's overhead would exceed its arithmetic."""
    return min(max(rows.shape[0] - 1, 1), 8)


def _gru_forward_for_gradient(hidden: Linear, projected: Array, start: Array) -> tuple[Array, Any]:
    states, gates_hidden = _gru_forward(hidden, projected, start)
    return states, (hidden, projected, start, states, gates_hidden)


def _gru_backward(saved: Any, d_states: Array) -> tuple[Linear, Array, None]:
    hidden, projected, start, states, gates_hidden = saved
    is_start = jnp.asarray(start).at[0].set(True)[..., None]
    before = jnp.where(is_start, 0.0, jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]]))
    reset, update, candidate, new_hidden = _gru_gates(projected, gates_hidden)
    # How each step's state follows its gates; the loop below only has to multiply.
    by_new = (1.0 - update) * (1.0 - candidate**2)
    by_update = (before - candidate) * update * (1.0 - update)
    by_reset = by_new * new_hidden * reset * (1.0 - reset)
    by_hidden = jnp.stack([by_reset, by_update, by_new * reset], axis=-2)  # [T, B, 3, H]
    is_kept = ~is_start

    def step(d_state: Array, x: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        d_own, update, by_hidden, is_kept = x
        d_state = d_state + d_own
        d_gates = (d_state[..., None, :] * by_hidden).reshape(*d_state.shape[:-1], -1)
        d_before = d_state * update + d_gates @ hidden.weight.T
        return jnp.where(is_kept, d_before, 0.0), d_state

    # The first step of a row has none before it.
    zero = jnp.zeros_like(d_states[0])
    rest = (d_states[1:], update[1:], by_hidden[1:], is_kept[1:])
    d_first, d_rest = jax.lax.scan(step, zero, rest, reverse=True, unroll=_unrolled(projected))
    d_total = jnp.concatenate([(d_first + d_states[0])[None], d_rest])  # [T, B, H]
    d_hidden = (d_total[..., None, :] * by_hidden).reshape(projected.shape)
    d_projected = jnp.concatenate([d_hidden[..., : -d_total.shape[-1]], d_total * by_new], axis=-1)
    d_weight = jnp.einsum("tbh,tbg->hg", before[1:], d_hidden[1:])
    return Linear(d_weight, d_hidden.sum(axis=(0, 1))), d_projected, None


_gru_states.defvjp(_gru_forward_for_gradient, _gru_backward)


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

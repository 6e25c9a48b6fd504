"""The GRU over rows of steps, cut anywhere: states after each step, and a gradient of its own.

Precision "float32" is the compiler's own loop, on every device. With "bfloat16" long rows are walked by `gru_kernels`,
which round more and exist for NVIDIA GPUs alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from diaster.nn.gru_kernels import gru_states, kernels_for
from diaster.nn.nets import GRU, Linear, linear

SHORT_ROW = 8


def gru_scan(cell: GRU, inputs: Array, start: Array, precision: str = "float32") -> Array:
    """States after each step of rows of steps, reset wherever a segment starts.

    A cut of an episode is nothing but such a reset, so one scan serves any number of cuts and of episodes
    packed end to end. inputs  # [T, B, I]; start  # [T, B] bool; returns  # [T, B, H]
    """
    [states] = _states_of_ways(cell, inputs, start[:, None], precision)
    return states


def gru_scan_two_ways(
    cell: GRU, inputs: Array, start: Array, other: Array, precision: str = "float32"
) -> tuple[Array, Array]:
    """`gru_scan` for two ways of cutting the same rows, step by step together; no gradient flows through the second."""
    states, others = _states_of_ways(cell, inputs, jnp.stack([start, other], axis=1), precision)
    return states, others


def _states_of_ways(cell: GRU, inputs: Array, start: Array, precision: str) -> tuple[Array, ...]:
    """States of rows, for each way of cutting them; start  # [T, V, B]; returns V of  # [T, B, H]"""
    n_steps, n_ways, _ = start.shape
    if precision == "bfloat16" and n_steps > SHORT_ROW:
        return gru_states(cell, inputs, start, kernels_for(cell, start))
    states = _gru_states(cell, inputs, start)
    return tuple(states[:, way] for way in range(n_ways))


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

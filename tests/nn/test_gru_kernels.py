"""The kernels, interpreted on the CPU, against the compiler's own loop; and what a GPU would be given."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_programs import lower_for_a_gpu
from jax import jit

from diaster.errors import DiasterError
from diaster.nn import gru, gru_kernels, nets
from diaster.nn.gru_kernels import Blocks, Kernels

STEPS, WAYS, ROWS, HIDDEN, INPUTS = 12, 2, 32, 32, 5  # two blocks of rows and of hidden units, two products in each sum
BLOCKS = Blocks(rows=16, columns=16, depth=16)
# A loop of five times two steps, one before and one after it.
COARSE = Kernels(BLOCKS, BLOCKS, operand="bfloat16", kept="bfloat16", unroll=2, interpret=True)
EXACT = COARSE._replace(operand="float32", kept="float32")


def compilers_own(cell, inputs, start):
    return gru.gru_scan_two_ways(cell, inputs, start[:, 0], start[:, 1])


def kernels(how):
    return lambda *args: gru_kernels.gru_states(*args, how)


def with_gradients(states_of):
    """Gradients of a cell and of inputs, and the states; the second way of cutting adds to the loss, not to those."""

    def loss(cell, inputs, start, weight):
        states = states_of(cell, inputs, start)
        return (states[0] * weight).sum() + (states[1] ** 2).sum(), states

    return jax.grad(loss, argnums=(0, 1), has_aux=True)


def example(seed, update_bias=0.0):
    rng = np.random.default_rng(seed)
    cell = nets.gru_init(jax.random.key(seed), INPUTS, HIDDEN)
    bias = cell.hidden.bias.at[HIDDEN : 2 * HIDDEN].add(update_bias)
    start = rng.random((STEPS, WAYS, ROWS)) < 0.3
    start[:, :, 0] = False  # a row without any flag
    start[:, :, 1] = True  # a row of segments of one step
    arrays = rng.normal(size=(STEPS, ROWS, INPUTS)), start, rng.normal(size=(STEPS, ROWS, HIDDEN))
    return (cell._replace(hidden=cell.hidden._replace(bias=bias)), *(jnp.asarray(x, jnp.float32) for x in arrays))


@cache
def compiled(how):
    return jit(with_gradients(kernels(how)))


def run(how, cell, inputs, start, weight):
    return compiled(how)(cell, inputs, start > 0, weight)


def test_states_and_gradients_are_those_of_the_compilers_own_loop_for_each_of_several_seeds():
    cell, inputs, start, weight = jax.tree.map(lambda *parts: jnp.stack(parts), example(0), example(1))
    found, expected = (
        jit(jax.vmap(with_gradients(function)))(cell, inputs, start > 0, weight)
        for function in (kernels(EXACT), compilers_own)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)
    states = found[1]
    assert np.abs(states[0] - states[1]).max() > 0.01  # the ways of cutting differ
    assert np.abs(states[0][0] - states[0][1]).max() > 0.01  # and so do the seeds


def test_without_a_gradient_to_take_the_states_are_the_same_and_nothing_is_kept():
    cell, inputs, start, weight = example(0)
    states = jit(kernels(EXACT))(cell, inputs, start > 0)
    expected = run(EXACT, cell, inputs, start, weight)[1]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), states, expected)
    found, kept = jax.eval_shape(
        partial(gru_kernels.forward_walk, how=EXACT), cell, inputs @ cell.input.weight, start > 0
    )
    assert [part.shape for part in found] == [(STEPS, ROWS, HIDDEN)] * WAYS and not kept


def test_bfloat16_comes_close():
    args = example(0)
    (found, states), (expected, exact) = run(COARSE, *args), run(EXACT, *args)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=0.02), states, exact)
    assert np.abs(states[0] - exact[0]).max() > 0.0
    for coarse, fine in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(coarse - fine) < 0.01 * np.linalg.norm(fine)


def test_in_bfloat16_a_memory_that_hardly_fades_still_does():
    cell, inputs, start, weight = example(0, update_bias=7.0)  # 0.999 of a state is kept at every step
    args = cell, inputs, jnp.zeros_like(start), weight.at[:-1].set(0.0)
    coarse, fine = (run(how, *args)[0][1][0] for how in (COARSE, EXACT))  # what the last states owe to the first inputs
    assert np.vdot(coarse, fine) / np.vdot(fine, fine) == pytest.approx(1.0, abs=0.003)


def test_they_can_be_lowered_for_a_gpu_where_there_is_none():
    args = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), example(0))
    function = jax.vmap(with_gradients(kernels(COARSE._replace(interpret=False))))
    traced = jit(lambda cell, inputs, start, weight: function(cell, inputs, start > 0, weight)).trace(*args)
    lower_for_a_gpu(traced)


# Where they are used


class Gpu:
    platform = "gpu"

    def __str__(self):
        return "a GPU"


def forms(hidden: int = HIDDEN, rows: int = ROWS, n_steps: int = STEPS):
    """A cell and rows that are cut in two ways, as far as their shapes go."""
    cell = jax.eval_shape(partial(nets.gru_init, n_in=INPUTS, n_hidden=hidden), jax.random.key(0))
    return cell, jax.ShapeDtypeStruct((n_steps, WAYS, rows), bool)


def refusal(*given):
    with pytest.raises(
        DiasterError, match=r"precision=bfloat16 cannot be had here .* use --method.precision float32"
    ) as caught:
        gru_kernels.kernels_for(*given)
    return str(caught.value)


def test_a_device_that_cannot_have_them_is_refused_with_a_sentence(monkeypatch):
    assert "learning runs on the cpu" in refusal(*forms(256, 64))
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    assert "Only interpret mode" in refusal(*forms(256, 64))  # this "GPU" can compile what is interpreted, and no more
    monkeypatch.setattr(gru_kernels, "Kernels", lambda: COARSE)
    assert gru_kernels.kernels_for(*forms()) == COARSE
    assert "no whole blocks" in refusal(*forms(rows=ROWS + 8))


def test_long_rows_are_walked_by_them_where_bfloat16_is_asked_for_and_short_ones_never(monkeypatch):
    walked = []

    def states_by_kernels(cell, inputs, start, how):
        walked.append((how, start.shape))
        return tuple(jnp.zeros((*inputs.shape[:2], HIDDEN)) for _ in range(start.shape[1]))

    monkeypatch.setattr(gru, "gru_states", states_by_kernels)
    monkeypatch.setattr(gru, "kernels_for", lambda cell, start: COARSE)
    for precision in ("float32", "bfloat16"):
        for n_steps in (gru.SHORT_ROW, gru.SHORT_ROW + 1):
            cell, start = forms(n_steps=n_steps)
            inputs = jax.ShapeDtypeStruct((n_steps, ROWS, INPUTS), jnp.float32)
            scan = partial(gru.gru_scan, precision=precision)
            jax.eval_shape(lambda *args, scan=scan: scan(args[0], args[1], args[2][:, 0]), cell, inputs, start)
    assert walked == [(COARSE, (gru.SHORT_ROW + 1, 1, ROWS))]


@pytest.mark.parametrize(
    ("rows", "hidden", "blocks", "fits"),
    [
        (32, 32, BLOCKS, True),
        (64, 96, BLOCKS, True),
        (24, 32, BLOCKS, False),  # rows are no whole blocks
        (32, 48, BLOCKS._replace(columns=32), False),  # hidden units are none
        (32, 48, BLOCKS._replace(depth=32), False),
        (32, 32, BLOCKS._replace(depth=8), False),  # too small for tensor cores
        (48, 48, BLOCKS._replace(rows=48), False),  # no power of two
    ],
)
def test_they_fit_whole_blocks_of_sizes_that_tensor_cores_take(rows, hidden, blocks, fits):
    cell, start = forms(hidden, rows)
    assert gru_kernels.fits(cell, start, Kernels(BLOCKS, blocks)) is fits
    assert gru_kernels.fits(cell, start, Kernels(blocks, BLOCKS)) is fits

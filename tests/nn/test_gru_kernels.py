"""The kernels, interpreted on the CPU, against the compiler's own loop; and what a GPU would be given."""

from __future__ import annotations

import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.nn import gru, gru_kernels, nets
from diaster.nn.gru_kernels import Blocks, Kernels

STEPS, WAYS, ROWS, HIDDEN, INPUTS = 12, 2, 32, 32, 5  # two blocks of rows and of hidden units, two products in each sum
BLOCKS = Blocks(rows=16, columns=16, depth=16)
# A loop of five times two steps, one before and one after it.
COARSE = Kernels(BLOCKS, BLOCKS, operand="bfloat16", kept="bfloat16", unroll=2, interpret=True)
EXACT = COARSE._replace(operand="float32", kept="float32")


def compilers_own(cell, inputs, start):
    states = gru._gru_states(cell, inputs, start)
    return tuple(states[:, way] for way in range(WAYS))


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


def equations(jaxpr):
    """All equations of a program but for those inside kernels, each with the names of the loops around it."""
    for equation in jaxpr.eqns:
        yield (), equation
        if equation.primitive.name == "pallas_call":
            continue
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                is_loop = equation.primitive.name in ("scan", "while")
                for around, found in equations(inner):
                    yield ((equation.primitive.name,) if is_loop else ()) + around, found


def test_a_loops_steps_are_one_kernel_each_that_writes_in_place_and_nothing_else_touches_what_is_as_long_as_a_row():
    args = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), example(0))
    function = jax.vmap(with_gradients(kernels(EXACT)))
    program = jax.make_jaxpr(lambda cell, inputs, start, weight: function(cell, inputs, start > 0, weight))(*args)
    inside = [equation for around, equation in equations(getattr(program, "jaxpr", program)) if around]
    steps = [equation for equation in inside if equation.primitive.name == "pallas_call"]
    assert len(steps) == 2 * EXACT.unroll  # of the way forward and of the way back
    for step in steps:
        n_inputs, n_outputs = len(step.invars), len(step.outvars)
        in_place = tuple((n_inputs - n_outputs + i, i) for i in range(n_outputs))
        assert tuple(step.params["input_output_aliases"]) == in_place
        for i, o in in_place:
            assert step.invars[i].aval.shape == step.outvars[o].aval.shape
    others = [equation for equation in inside if equation.primitive.name not in ("pallas_call", "jit", "pjit")]
    assert all(output.aval.size == 1 for equation in others for output in equation.outvars)


def test_for_a_gpu_they_become_triton_kernels_that_return_the_buffers_they_were_given():
    args = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), example(0))
    how = COARSE._replace(interpret=False)
    function = jax.vmap(with_gradients(kernels(how)))
    traced = jax.jit(lambda cell, inputs, start, weight: function(cell, inputs, start > 0, weight)).trace(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of JAX 0.11: Triton's place in Pallas is to end some day
        try:
            program = traced.lower(lowering_platforms=("cuda",)).as_text()
        except RuntimeError as error:
            pytest.skip(f"this JAX does not compile for a GPU without one: {error}")
    calls = [line for line in program.splitlines() if "custom_call" in line and "triton" in line]
    # The first forward step makes its buffers; the first one back makes the smaller of its two.
    assert sorted({line.count("stablehlo.output_operand_alias<") for line in calls}) == [0, 1, 2, 4]


class Gpu:
    platform = "gpu"


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("is_known", [True, False])
def test_they_are_used_for_long_rows_on_a_gpu_that_can_compile_them(platform, is_known, monkeypatch):
    def trace(n_steps):
        cell = nets.gru_init(jax.random.key(0), INPUTS, 256)
        inputs, start = jnp.zeros((n_steps, 64, INPUTS)), jnp.zeros((n_steps, 64), bool)
        text = str(jax.make_jaxpr(lambda *args: gru.gru_scan_beside(*args, start))(cell, inputs, start))
        return "pallas_call" in text

    asked = []

    def can_be_compiled(cell, ways_and_rows, how, device):
        assert device.platform == "gpu"
        asked.append((cell.hidden.weight.shape, ways_and_rows))
        return is_known

    monkeypatch.setattr(gru_kernels, "_can_be_compiled", can_be_compiled)
    if platform == "gpu":
        monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    is_used = platform == "gpu" and is_known
    assert trace(gru.SHORT_ROW + 1) == is_used
    assert not trace(gru.SHORT_ROW)
    assert asked == ([((256, 768), (2, 64))] if platform == "gpu" else [])


def test_what_cannot_be_compiled_here_is_found_out_before_it_is_used():
    cell = jax.eval_shape(partial(nets.gru_init, n_in=INPUTS, n_hidden=HIDDEN), jax.random.key(0))
    with pytest.warns(UserWarning, match=r"cannot be compiled for 'a CPU' \(.*own loop, in 32 bits"):
        assert not gru_kernels._can_be_compiled(cell, (WAYS, ROWS), COARSE._replace(interpret=False), "a CPU")
    assert gru_kernels._can_be_compiled(cell, (WAYS, ROWS), COARSE, "a CPU")


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
    cell = jax.eval_shape(partial(nets.gru_init, n_in=INPUTS, n_hidden=hidden), jax.random.key(0))
    start = jax.ShapeDtypeStruct((STEPS, WAYS, rows), bool)
    assert gru_kernels.fits(cell, start, Kernels(BLOCKS, blocks)) is fits
    assert gru_kernels.fits(cell, start, Kernels(blocks, BLOCKS)) is fits

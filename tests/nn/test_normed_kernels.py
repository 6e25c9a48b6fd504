"""The kernels, interpreted on the CPU, against the same in the compiler's own; and what a GPU would be given."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_programs import lower_for_a_gpu
from jax import jit

from diaster.nn import normed, normed_kernels
from diaster.nn.normed_kernels import Kernels

SEEDS, ROWS, COLUMNS = 2, 32, 48  # three blocks of columns
INTERPRETED = Kernels(columns=16, interpret=True)


def example(dtype="float32"):
    """Inputs, gains, shifts and weights of the outputs in a sum, for each seed; some columns are far from zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SEEDS, ROWS, COLUMNS)) * rng.uniform(0.1, 3.0, COLUMNS) + rng.normal(size=COLUMNS) * 3.0
    arrays = x, rng.uniform(-0.5, 1.5, (SEEDS, COLUMNS)), rng.normal(size=(SEEDS, COLUMNS)), rng.normal(size=x.shape)
    of_x, *others = (jnp.asarray(array, jnp.float32) for array in arrays)
    return (of_x.astype(dtype), *others)


def by_kernels(how, x, gain, shift):
    outputs, *moments = normed_kernels.norm_relu(x, gain, shift, how)
    return outputs, moments


def by_compiler(x, gain, shift):
    moments = normed._moments(x.astype(jnp.float32))
    return jax.nn.relu(normed._normalize(normed.Norm(gain, shift), moments, x.astype(jnp.float32))), list(moments)


def with_gradients(function):
    def total(x, gain, shift, weight):
        outputs, moments = function(x, gain, shift)
        return (outputs.astype(jnp.float32) * weight).sum(), (outputs, moments)

    return jax.vmap(jax.grad(total, argnums=(0, 1, 2), has_aux=True))


def test_outputs_moments_and_gradients_are_those_of_the_compilers_own_kernels_for_each_of_several_seeds():
    found, expected = (
        jit(with_gradients(function))(*example()) for function in (partial(by_kernels, INTERPRETED), by_compiler)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)
    outputs = found[1][0]
    assert (outputs == 0.0).any() and (outputs > 0.0).any()  # both sides of the ReLU


def test_with_inputs_of_16_bits_all_is_computed_with_32_and_rounded_in_the_end():
    found, expected = (
        jit(with_gradients(function))(*example("bfloat16"))
        for function in (partial(by_kernels, INTERPRETED), by_compiler)
    )
    (d_x, *d_others), (outputs, moments) = found
    assert d_x.dtype == outputs.dtype == jnp.bfloat16
    np.testing.assert_array_equal(outputs, expected[1][0].astype(jnp.bfloat16))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), moments, expected[1][1])
    # The kernel's own gradient of the outputs has 16 bits too, as that of a product in this format has.
    for coarse, fine in zip([d_x, *d_others], expected[0], strict=True):
        fine = np.asarray(fine, np.float32)
        assert np.linalg.norm(np.asarray(coarse, np.float32) - fine) < 0.01 * np.linalg.norm(fine)


def test_they_can_be_lowered_for_a_gpu_where_there_is_none():
    traced = jit(with_gradients(partial(by_kernels, Kernels(columns=16)))).trace(*example("bfloat16"))
    lower_for_a_gpu(traced)


class Gpu:
    platform = "gpu"


def test_they_are_used_on_a_gpu_that_can_compile_them_and_where_columns_are_whole_blocks(monkeypatch):
    assert normed_kernels.kernels_for(512, 512) is None  # a CPU
    monkeypatch.setattr(normed_kernels, "computing_device", Gpu)
    assert normed_kernels.kernels_for(512, 512) is None  # this "GPU" can compile what is interpreted, and no more
    monkeypatch.setattr(normed_kernels, "Kernels", lambda: INTERPRETED)
    assert normed_kernels.kernels_for(512, 512) == INTERPRETED
    for rows, columns in [(512, 100), (300, 512), (8, 512), (2048, 512)]:
        assert normed_kernels.kernels_for(rows, columns) is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_net_computes_the_same_with_them(monkeypatch, precision):
    net, _ = normed.normed_init(jax.random.key(0), (3, 16, 32, 2))
    x = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32)

    def total(net):
        outputs, seen = normed.of_batch(net, x, precision)
        return (outputs**2).sum(), (outputs, seen)

    expected = jit(jax.grad(total, has_aux=True))(net)
    used = []

    def kernels_for(*shape):
        used.append(shape)
        return INTERPRETED

    monkeypatch.setattr(normed_kernels, "kernels_for", kernels_for)
    found = jit(lambda net: jax.grad(total, has_aux=True)(net))(net)
    assert used == [(ROWS, 16), (ROWS, 32)]
    tolerance = {"float32": 1e-4, "bfloat16": 0.05}[precision]
    largest = max(np.linalg.norm(leaf) for leaf in jax.tree.leaves(expected[0]))  # other gradients are small sums of it
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(new - old) <= tolerance * max(np.linalg.norm(old), 0.01 * largest)

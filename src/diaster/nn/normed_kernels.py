"""Batch normalisation and ReLU on NVIDIA GPUs: one kernel (Pallas, on Triton) forward and one back.

The compiler reads the inputs for the mean, for the variance and for the result, and more often on the way back. A few
columns of them fit on the chip, and are then read once.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.nn.kernels_here import CompilerParams, computing_device, is_power_of_two, pl, why_not_compiled

EPSILON = 1e-3  # added to variances


class Kernels(NamedTuple):
    """How to compute; part of what is compiled. The defaults were the fastest of five on an H200."""

    columns: int = 32  # that one program computes
    warps: int = 8
    interpret: bool = False  # without Triton, on any device


def kernels_for(n_rows: int, n_columns: int) -> Kernels | None:
    """How to compute where JAX computes now; None where the compiler's own kernels have to do."""
    how, device = Kernels(), computing_device()
    if CompilerParams is None or device.platform != "gpu" or not fits(n_rows, n_columns, how):
        return None
    return how if _can_compile(device) else None


def fits(n_rows: int, n_columns: int, how: Kernels) -> bool:
    """Whether columns are whole blocks, and rows are what a block can hold."""
    return is_power_of_two(n_rows) and 16 <= n_rows <= 1024 and n_columns % how.columns == 0


@cache
def _can_compile(device: Any) -> bool:
    del device  # what is known of one device is not of another

    def total(x: Array, of_columns: Array) -> Array:
        return norm_relu(x, of_columns, of_columns, Kernels())[0].sum()

    return not why_not_compiled(jax.grad(total), jnp.zeros((64, 64)), jnp.zeros(64))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def norm_relu(x: Array, gain: Array, shift: Array, how: Kernels) -> tuple[Array, Array, Array]:
    """relu(BN(x)) in x's format, and the mean and variance that it took; these two have no gradient.

    x  # [B, D]; gain, shift  # [D]
    """
    return _forward(x, gain, shift, how)[0]


def _forward(x: Array, gain: Array, shift: Array, how: Kernels) -> tuple[tuple[Array, Array, Array], Any]:
    outputs, mean, variance = _call(_forward_kernel, (x,), (gain, shift), how)
    return (outputs, mean, variance), (x, gain, shift, mean, variance)


def _backward(how: Kernels, saved: Any, cotangents: Any) -> tuple[Array, Array, Array]:
    x, *of_columns = saved
    d_x, d_gain, d_shift = _call(_backward_kernel, (x, cotangents[0]), of_columns, how)
    return d_x, d_gain, d_shift


norm_relu.defvjp(_forward, _backward)


def _call(kernel: Any, matrices: Any, of_columns: Any, how: Kernels) -> Any:
    """A kernel over blocks of columns: a matrix and two rows come of some matrices and rows."""
    (n_rows, n_columns), dtype = matrices[0].shape, matrices[0].dtype
    matrix = pl.BlockSpec((n_rows, how.columns), lambda block: (0, block))
    row = pl.BlockSpec((how.columns,), lambda block: (block,))
    shapes = [((n_rows, n_columns), dtype), ((n_columns,), jnp.float32), ((n_columns,), jnp.float32)]
    return pl.pallas_call(
        kernel,
        [jax.ShapeDtypeStruct(*shape) for shape in shapes],
        grid=(n_columns // how.columns,),
        in_specs=[matrix] * len(matrices) + [row] * len(of_columns),
        out_specs=[matrix, row, row],
        compiler_params=None if how.interpret else CompilerParams(num_warps=how.warps, num_stages=1),
        interpret=how.interpret,
        name=f"norm_relu{kernel.__name__}",
    )(*matrices, *of_columns)


def _forward_kernel(x: Any, gain: Any, shift: Any, outputs: Any, mean: Any, variance: Any) -> None:
    n_rows = x.shape[0]
    values = x[...].astype(jnp.float32)
    own_mean = jnp.sum(values, axis=0) / n_rows
    centred = values - own_mean[None]
    own_variance = jnp.sum(centred * centred, axis=0) / n_rows
    mean[...], variance[...] = own_mean, own_variance
    scale = gain[...] * jax.lax.rsqrt(own_variance + EPSILON)
    outputs[...] = jnp.maximum(centred * scale[None] + shift[...][None], 0.0).astype(outputs.dtype)


def _backward_kernel(
    x: Any, d_outputs: Any, gain: Any, shift: Any, mean: Any, variance: Any, d_x: Any, d_gain: Any, d_shift: Any
) -> None:
    n_rows = x.shape[0]
    inverse = jax.lax.rsqrt(variance[...] + EPSILON)
    normal = (x[...].astype(jnp.float32) - mean[...][None]) * inverse[None]
    is_on = normal * gain[...][None] + shift[...][None] > 0.0
    d_normed = jnp.where(is_on, d_outputs[...].astype(jnp.float32), 0.0)
    by_shift, by_gain = jnp.sum(d_normed, axis=0), jnp.sum(d_normed * normal, axis=0)
    d_shift[...], d_gain[...] = by_shift, by_gain
    # Each value moves the mean and the variance as well.
    own = d_normed - (by_shift / n_rows)[None] - normal * (by_gain / n_rows)[None]
    d_x[...] = (own * (gain[...] * inverse)[None]).astype(d_x.dtype)

"""Perceptrons with batch normalisation before every layer and kernels whose columns have norm 1.

    x ← BN(x);  then for each layer  x ← relu(BN(x W));  then  x W + b

With W's columns at norm 1, the size of a step of Adam says how far a unit turns, all through training. BN has a learnt
gain and shift. Its moments are those of the batch while a net learns; what it has seen is averaged, and with these
averages BN is an affine map, so that `folded` leaves a plain ReLU perceptron.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.nn import normed_kernels
from diaster.nn.nets import MLP, Linear
from diaster.nn.normed_kernels import EPSILON

Precision = Literal["float32", "bfloat16"]
MOMENTUM = 0.99


class Norm(NamedTuple):
    """What follows after inputs have mean 0 and deviation 1."""

    gain: Array  # [D]
    shift: Array  # [D]


class Layer(NamedTuple):
    """A product without bias, normalised."""

    kernel: Array  # [I, O]
    norm: Norm


class NormedNet(NamedTuple):
    """Everything of a net that is learnt."""

    input: Norm
    layers: tuple[Layer, ...]
    head: Linear


class Moments(NamedTuple):
    """Mean and variance of what a normalisation has seen."""

    mean: Array  # [D]
    variance: Array  # [D]


Seen = tuple[Moments, ...]  # by the input's normalisation and by each layer's


def normed_init(key: Array, sizes: tuple[int, ...]) -> tuple[NormedNet, Seen]:
    """A net with the given sizes, input and output included, that has seen nothing."""
    *keys, head_key = jax.random.split(key, len(sizes) - 1)
    kernels = [jax.random.normal(k, shape) for k, shape in zip(keys, pairwise(sizes[:-1]), strict=True)]
    norms = [Norm(jnp.ones(n), jnp.zeros(n)) for n in sizes[:-1]]
    head = Linear(jax.random.normal(head_key, sizes[-2:]), jnp.zeros(sizes[-1]))
    net = NormedNet(norms[0], tuple(map(Layer, kernels, norms[1:])), head)
    return with_unit_kernels(net), tuple(Moments(jnp.zeros(n), jnp.ones(n)) for n in sizes[:-1])


def with_unit_kernels(net: NormedNet) -> NormedNet:
    """Every column of every kernel scaled to norm 1, the head's too; its bias is free."""
    layers = tuple(layer._replace(kernel=_unit_columns(layer.kernel)) for layer in net.layers)
    return net._replace(layers=layers, head=net.head._replace(weight=_unit_columns(net.head.weight)))


def _unit_columns(kernel: Array) -> Array:
    square = jnp.sum(kernel**2, axis=-2, keepdims=True)
    return kernel * jax.lax.rsqrt(jnp.maximum(square, 1e-16))


def of_batch(net: NormedNet, x: Array, precision: Precision = "float32") -> tuple[Array, Seen]:
    """Outputs where each normalisation takes the moments of the batch, and these moments.  # [B, O]"""
    moments = [_moments(x)]
    # The next normalisation takes this shift off again: only rounding would reach it, and Adam would magnify that.
    still = net.input._replace(shift=jax.lax.stop_gradient(net.input.shift))
    x = _normalize(still, moments[0], x)
    for layer in net.layers:
        x, own = _normed_relu(layer.norm, _product(x, layer.kernel, precision))
        moments.append(own)
    return _product(x, net.head.weight, precision).astype(jnp.float32) + net.head.bias, tuple(moments)


def of_averages(net: NormedNet, seen: Seen, x: Array, precision: Precision = "float32") -> Array:
    """Outputs with the averages of what was seen: each row's depends on nothing but the row.  # [B, O]"""
    x = _normalize(net.input, seen[0], x)
    for layer, moments in zip(net.layers, seen[1:], strict=True):
        x = jax.nn.relu(_normalize(layer.norm, moments, _product(x, layer.kernel, precision).astype(jnp.float32)))
    return _product(x, net.head.weight, precision).astype(jnp.float32) + net.head.bias


def averaged(seen: Any, new: Any) -> Any:
    """The averages a little further on, of one net or of several."""
    return optax.incremental_update(new, seen, 1.0 - MOMENTUM)


def folded(net: NormedNet, seen: Seen) -> MLP:
    """The perceptron that computes `of_averages`."""
    scale, shift = _affine(net.input, seen[0])
    layers = []
    for layer, moments in zip(net.layers, seen[1:], strict=True):
        own_scale, own_shift = _affine(layer.norm, moments)
        kernel = scale[:, None] * layer.kernel
        layers.append(Linear(kernel * own_scale, (shift @ layer.kernel) * own_scale + own_shift))
        scale, shift = jnp.ones_like(own_scale), jnp.zeros_like(own_shift)  # the rest has its inputs as they are
    return *layers, net.head


def _product(x: Array, kernel: Array, precision: Precision) -> Array:
    """x W; with bfloat16, factors and result have 16 bits. All else is computed with 32."""
    return jnp.dot(x.astype(precision), kernel.astype(precision))


def _normed_relu(norm: Norm, x: Array) -> tuple[Array, Moments]:
    """relu(BN(x)) with the moments of the batch, and these."""
    kernels = normed_kernels.kernels_for(*x.shape)
    if kernels:
        outputs, mean, variance = normed_kernels.norm_relu(x, *norm, kernels)
        return outputs, Moments(mean, variance)
    x = x.astype(jnp.float32)
    moments = _moments(x)
    return jax.nn.relu(_normalize(norm, moments, x)), moments


def _moments(x: Array) -> Moments:
    return Moments(x.mean(axis=0), x.var(axis=0))


def _affine(norm: Norm, moments: Moments) -> tuple[Array, Array]:
    """BN as x · scale + shift."""
    scale = norm.gain * jax.lax.rsqrt(moments.variance + EPSILON)
    return scale, norm.shift - moments.mean * scale


def _normalize(norm: Norm, moments: Moments, x: Array) -> Array:
    # The mean first: an observation far from zero keeps its digits.
    return (x - moments.mean) * (norm.gain * jax.lax.rsqrt(moments.variance + EPSILON)) + norm.shift

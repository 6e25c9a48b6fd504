"""Policies on the host: NumPy only, one observation at a time, no device in the loop.

The parameters are the learner's own, copied once per chunk. A matrix-vector product of this size costs a
few microseconds here, a round trip to an accelerator several hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from diaster.types import FloatArray

HostLayers = Sequence[tuple[FloatArray, FloatArray]]  # (weight [I, O], bias [O]) per layer
HostPolicy = Callable[[HostLayers, FloatArray, FloatArray | None], FloatArray]

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


def mlp(layers: HostLayers, x: FloatArray) -> FloatArray:
    """The ReLU perceptron of `nets.mlp`, in NumPy."""
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight + bias, 0.0)
    weight, bias = layers[-1]
    return np.asarray(x @ weight + bias, np.float32)


def tanh_gaussian(layers: HostLayers, obs: FloatArray, noise: FloatArray | None) -> FloatArray:
    """SAC's policy: tanh(mean + exp(log_std) · noise); without noise, its deterministic action."""
    mean, log_std = np.split(mlp(layers, obs), 2, axis=-1)
    if noise is None:
        return np.tanh(mean)
    return np.tanh(mean + np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise)

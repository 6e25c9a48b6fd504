"""The convolutional net of `nn/encoder.py` on the host: NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from diaster.types import FloatArray, Observation

KERNEL, STRIDE = 3, 2
SMALL = 1e-5


class HostEncoder(NamedTuple):
    """Weights and biases, as they are in `nn/encoder.py`."""

    convolutions: tuple[tuple[FloatArray, FloatArray], ...]
    last: tuple[FloatArray, FloatArray]


def encode(net: HostEncoder, image: Observation) -> FloatArray:
    """Features of a square image of 8 bits, laid flat, or of several.  # […, H · H · C] → […, FEATURES]"""
    if image.ndim > 1:
        return np.stack([encode(net, row) for row in image])
    channels = len(net.convolutions[0][0]) // KERNEL**2
    side = round((image.shape[-1] / channels) ** 0.5)
    x = image.reshape(side, side, channels).astype(np.float32) / np.float32(255.0) - np.float32(0.5)
    for weight, bias in net.convolutions:
        windows = sliding_window_view(x, (KERNEL, KERNEL), axis=(0, 1))[::STRIDE, ::STRIDE]  # [h, h, C, K, K]
        flat = windows.transpose(0, 1, 3, 4, 2).reshape(windows.shape[0], windows.shape[1], -1)
        x = np.maximum(flat @ weight + bias, 0.0)
    weight, bias = net.last
    x = x.reshape(-1) @ weight + bias
    features: FloatArray = np.tanh((x - x.mean()) / np.sqrt(x.var() + SMALL))
    return features

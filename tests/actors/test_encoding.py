"""The host's convolutional net is the device's."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from diaster.actors import encoding
from diaster.actors.encoding import HostEncoder
from diaster.nn import encoder


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (16, 3), (64, 4)])
def test_the_host_sees_the_features_that_the_device_sees(side: int, channels: int) -> None:
    net = encoder.encoder_init(jax.random.key(side), side, channels)
    image = np.random.default_rng(side).integers(0, 256, side * side * channels).astype(np.uint8)
    host = HostEncoder(
        tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in net.convolutions),
        (np.asarray(net.last.weight), np.asarray(net.last.bias)),
    )
    np.testing.assert_allclose(encoding.encode(host, image), encoder.encode(net, image), atol=2e-5)


def test_both_have_the_same_windows() -> None:
    assert (encoding.KERNEL, encoding.STRIDE, encoding.SMALL) == (encoder.KERNEL, encoder.STRIDE, encoder.SMALL)

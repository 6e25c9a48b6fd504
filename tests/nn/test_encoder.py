"""A convolutional net that learns features of images by telling which image follows."""

from __future__ import annotations

import jax
import numpy as np

from diaster.nn.encoder import Encoder, encode, encoder_init, encoder_state, learn_features, shifted, sides_of
from diaster.types import IMAGE_FEATURES


def test_convolutions_halve_an_image_until_four_pixels_are_left() -> None:
    assert sides_of(64) == [31, 15, 7, 3]
    assert sides_of(8) == [3]


def test_a_convolution_is_a_product_with_every_second_window() -> None:
    net = encoder_init(jax.random.key(0), 8, 2)
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 2)).astype(np.uint8)
    x = image.astype(np.float64) / 255.0 - 0.5
    weight, bias = (np.asarray(part, np.float64) for part in net.convolutions[0])
    conv = np.zeros((3, 3, weight.shape[1]))
    for row in range(3):
        for column in range(3):
            window = x[2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            conv[row, column] = np.maximum(window.reshape(-1) @ weight + bias, 0.0)
    out = conv.reshape(-1) @ np.asarray(net.last.weight, np.float64) + np.asarray(net.last.bias, np.float64)
    expected = np.tanh((out - out.mean()) / np.sqrt(out.var() + 1e-5))
    np.testing.assert_allclose(encode(net, image.reshape(-1)), expected, atol=1e-5)


def test_images_of_any_batch_shape_are_encoded_alike() -> None:
    net = encoder_init(jax.random.key(0), 8, 1)
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 64)).astype(np.uint8)
    together = encode(net, images)
    assert together.shape == (2, 3, IMAGE_FEATURES)
    np.testing.assert_allclose(together[1, 2], encode(net, images[1, 2]), atol=1e-5)


def test_a_shift_moves_an_image_and_repeats_its_edge() -> None:
    image = np.zeros((1, 16, 16, 1), np.uint8)
    image[0, 8, 8] = 200
    places = set()
    for number in range(40):
        moved = np.asarray(shifted(jax.random.key(number), image.reshape(1, -1), 16)).reshape(16, 16)
        (place,) = np.argwhere(moved == 200).tolist()
        places.add(tuple(place))
    assert places <= {(row, column) for row in (7, 8, 9) for column in (7, 8, 9)}
    assert len(places) > 5


SIDE, BATCH = 16, 64
RANDOM = np.random.default_rng(0)


def dots(columns: np.ndarray) -> np.ndarray:
    """Images with a bright dot, each in a noise of its own."""
    images = RANDOM.integers(0, 60, (len(columns), SIDE, SIDE)).astype(np.uint8)
    images[np.arange(len(columns)), SIDE // 2, columns] = 255
    return images.reshape(len(columns), -1)


def steps_of_a_dot(is_next: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A dot that moves by a pixel; where it is not the next image that is shown, it is any."""
    column, action = RANDOM.integers(2, SIDE - 2, BATCH), RANDOM.choice([-1, 1], BATCH)
    following = column + action if is_next else RANDOM.integers(1, SIDE - 1, BATCH)
    return dots(column), action[:, None].astype(np.float32), dots(following)


def unexplained(net: Encoder) -> float:
    """The share of a dot's variance that is left when its place is told by a linear map of features."""
    column = RANDOM.integers(1, SIDE - 1, 500)
    seen = np.concatenate([np.asarray(encode(net, dots(column))), np.ones((500, 1))], axis=1)
    weight = np.linalg.lstsq(seen[:300], column[:300], rcond=None)[0]
    return float(((seen[300:] @ weight - column[300:]) ** 2).mean() / column.var())


def test_it_learns_where_a_dot_is_from_what_follows_and_nothing_from_what_does_not() -> None:
    learn, chance = jax.jit(learn_features), np.log(BATCH)
    losses = {}
    for is_next in (True, False):
        state, found = encoder_state(jax.random.key(0), SIDE, 1, 1), []
        before = unexplained(state.net)
        for number in range(150):
            state, loss = learn(state, jax.random.key(number), *steps_of_a_dot(is_next))
            found.append(loss)
        losses[is_next] = np.mean(found[-30:])
        if is_next:
            assert unexplained(state.net) < 0.6 * before
    assert losses[True] < chance - 0.2
    assert losses[False] > chance - 0.02

"""A small convolutional net that turns an image into a few features, and how it learns them without a reward.

It learns by telling which image follows: from the features of s and the action it predicts those of s′, and has to pick
the right s′ among all of the batch (temporal contrast; van den Oord et al., 2018; Stooke et al., 2021). Both images are
shifted by a few pixels at random, so that single pixels do not give the answer away. s′ is seen by a running average
of the net.

Learning features apart from the policy leaves every agent and every method as it is: they see vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.nn.nets import MLP, Linear, linear, linear_init, mlp, mlp_init
from diaster.types import IMAGE_FEATURES

CHANNELS = 32
KERNEL, STRIDE = 3, 2
LEAST_SIDE = 4  # convolutions go on while an image is larger
SHIFT = 4  # pixels, for images of 64; smaller ones in proportion
TARGET_RATE = 0.01
OPTIMIZER = optax.adam(1e-3)
SMALL = 1e-5
MOST_AT_ONCE = 512  # images


class Encoder(NamedTuple):
    """Convolutions, and a layer that turns what is left into features. A kernel is [KERNEL · KERNEL · I, O]."""

    convolutions: tuple[Linear, ...]
    last: Linear


class EncoderState(NamedTuple):
    """What learns."""

    net: Encoder
    target: Encoder
    predictor: MLP
    optimizer: optax.OptState


def sides_of(side: int) -> list[int]:
    """The side of the image after each convolution; there is at least one."""
    sides = [_halved(side)]
    while sides[-1] > LEAST_SIDE:
        sides.append(_halved(sides[-1]))
    return sides


def _halved(side: int) -> int:
    return (side - KERNEL) // STRIDE + 1


def encoder_init(key: Array, side: int, channels: int) -> Encoder:
    """A net for square images."""
    sides = sides_of(side)
    *keys, last_key = jax.random.split(key, len(sides) + 1)
    convolutions, n_in = [], channels
    for conv_key in keys:
        n_window = KERNEL * KERNEL * n_in
        convolutions.append(linear_init(conv_key, n_window, CHANNELS, n_window**-0.5))
        n_in = CHANNELS
    n_flat = sides[-1] ** 2 * n_in
    return Encoder(tuple(convolutions), linear_init(last_key, n_flat, IMAGE_FEATURES, n_flat**-0.5))


def encode(net: Encoder, images: Array) -> Array:
    """Features in [−1, 1] of square images of 8 bits, laid flat; nothing is learnt through this function.

    # […, H · H · C] → […, IMAGE_FEATURES]
    """
    features: Array = _features_of_rows(net, images.reshape(-1, images.shape[-1]))
    return features.reshape(*images.shape[:-1], IMAGE_FEATURES)


@jax.custom_batching.custom_vmap
def _features_of_rows(net: Encoder, images: Array) -> Array:
    """Some hundred images at a time: the batches of a loop, or whole episodes, take gigabytes between the layers."""
    if len(images) <= MOST_AT_ONCE:
        return encoded(net, images)
    padded = jnp.pad(images, ((0, -len(images) % MOST_AT_ONCE), (0, 0)))
    groups = padded.reshape(-1, MOST_AT_ONCE, images.shape[-1])
    features: Array = jax.lax.map(lambda group: encoded(net, group), groups)
    return features.reshape(-1, IMAGE_FEATURES)[: len(images)]


@_features_of_rows.def_vmap
def _features_of_batches(
    size: int, is_batched: tuple[Encoder, bool], net: Encoder, images: Array
) -> tuple[Array, bool]:
    """Many batches with one net are one long batch; several nets take turns."""
    of_nets, of_images = is_batched
    if not any(jax.tree.leaves(of_nets)):
        return _features_of_rows(net, images.reshape(-1, images.shape[-1])).reshape(size, -1, IMAGE_FEATURES), True

    def of_one(index: Array) -> Array:
        own = jax.tree.map(lambda leaf, batched: leaf[index] if batched else leaf, net, of_nets)
        features: Array = _features_of_rows(own, images[index] if of_images else images)
        return features

    return jax.lax.map(of_one, jnp.arange(size)), True


def encoded(net: Encoder, images: Array) -> Array:
    """The features of one batch, all at once; this can be differentiated.  # [B, H · H · C] → [B, IMAGE_FEATURES]"""
    channels = net.convolutions[0].weight.shape[0] // KERNEL**2
    side = round((images.shape[-1] / channels) ** 0.5)
    x = images.reshape(-1, side, side, channels).astype(jnp.float32) / 255.0 - 0.5
    for layer in net.convolutions:
        x = jax.nn.relu(linear(layer, _windows(x)))
    x = linear(net.last, x.reshape(len(x), -1))
    # Without a normalisation, tanh would soon know nothing but its ends.
    x = (x - x.mean(axis=-1, keepdims=True)) / jnp.sqrt(x.var(axis=-1, keepdims=True) + SMALL)
    features: Array = jnp.tanh(x)
    return features


def _windows(x: Array) -> Array:
    """What every window of a convolution sees, so that the nets of all seeds are one product of matrices.

    # [B, H, H, C] → [B, h, h, KERNEL · KERNEL · C]
    """
    side = _halved(x.shape[1])
    ends = STRIDE * (side - 1) + 1
    parts = [
        x[:, row : row + ends : STRIDE, column : column + ends : STRIDE]
        for row in range(KERNEL)
        for column in range(KERNEL)
    ]
    return jnp.concatenate(parts, axis=-1)


def encoder_state(key: Array, side: int, channels: int, action_dim: int) -> EncoderState:
    """A net that has learnt nothing."""
    net_key, predictor_key = jax.random.split(key)
    net = encoder_init(net_key, side, channels)
    predictor = mlp_init(predictor_key, (IMAGE_FEATURES + action_dim, 4 * IMAGE_FEATURES, IMAGE_FEATURES))
    optimizer = OPTIMIZER.init((net, predictor))
    return EncoderState(net, jax.tree.map(jnp.copy, net), predictor, optimizer)


def contrast_loss(
    net: Encoder, predictor: MLP, target: Encoder, images: Array, action: Array, following: Array
) -> Array:
    """Cross-entropy of picking, for every step, the image that follows it among those of the batch."""
    guess = mlp(predictor, jnp.concatenate([encoded(net, images), action], axis=-1))  # [B, F]
    logits = guess @ encoded(target, following).T  # [B, B]
    cross_entropy: Array = -jnp.diagonal(jax.nn.log_softmax(logits)).mean()
    return cross_entropy


def shifted(key: Array, images: Array, side: int) -> Array:
    """Each image moved by a few pixels, its edge repeated.  # [B, H · H · C]"""
    most = max(1, side * SHIFT // 64)
    grid = images.reshape(len(images), side, side, -1)
    padded = jnp.pad(grid, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")

    def crop(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), grid.shape[1:])

    corners = jax.random.randint(key, (len(images), 2), 0, 2 * most + 1)
    return jax.vmap(crop)(padded, corners).reshape(images.shape)


def learn_features(
    state: EncoderState, key: Array, images: Array, action: Array, following: Array
) -> tuple[EncoderState, Array]:
    """One gradient step on a batch of steps, and its loss."""
    channels = state.net.convolutions[0].weight.shape[0] // KERNEL**2
    side = round((images.shape[-1] / channels) ** 0.5)
    first, second = jax.random.split(key)
    seen, seen_next = shifted(first, images, side), shifted(second, following, side)

    def loss_of(nets: tuple[Encoder, MLP]) -> Array:
        return contrast_loss(*nets, state.target, seen, action, seen_next)

    loss, gradient = jax.value_and_grad(loss_of)((state.net, state.predictor))
    change, optimizer = OPTIMIZER.update(gradient, state.optimizer)
    net, predictor = optax.apply_updates((state.net, state.predictor), change)
    return EncoderState(net, optax.incremental_update(net, state.target, TARGET_RATE), predictor, optimizer), loss

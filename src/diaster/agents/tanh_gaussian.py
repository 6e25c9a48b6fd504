"""The policy of soft actor-critics for continuous actions: a Gaussian, squashed by tanh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from diaster.actors.acting import LOG_STD_MAX, LOG_STD_MIN


def tanh_gaussian(outputs: Array, noise: Array) -> tuple[Array, Array]:
    """SAC's policy, from its net's outputs: a squashed sample and its log-probability.

    outputs  # [B, 2A]; noise  # [B, A]
    """
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    log_std = jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
    raw = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    # log(1 − tanh²(x)), written so that it stays finite for large |x|
    squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(gaussian - squash, axis=-1)

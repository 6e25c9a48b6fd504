"""The size of rewards, for an agent whose values have to lie in a fixed range: that of their discounted sums.

As r̂ is learnt and the policy changes, so does that size. It is measured on stretches of stored steps with r̂ as it is
now, before each chunk of updates, and averaged.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

SLOWEST = 0.01  # weight of a chunk in the average, once there have been many
LEAST = 1e-6  # of a scale: rewards may all be zero


class RewardScale(NamedTuple):
    """A running mean of squared discounted sums of rewards."""

    chunks: Array  # [] seen
    square: Array  # []


def init_reward_scale() -> RewardScale:
    """Of nothing."""
    return RewardScale(jnp.zeros(()), jnp.zeros(()))


def add_rewards(scale: RewardScale, rewards: Array, is_last: Array, discount: float) -> RewardScale:
    """Take in stretches of steps, one after the other in a column, and where episodes end.  # [T, W]"""

    def step(following: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, is_last = x
        total = reward + discount * jnp.where(is_last, 0.0, following)
        return total, total

    _, totals = jax.lax.scan(step, jnp.zeros(rewards.shape[1]), (rewards, is_last), reverse=True, unroll=32)
    # The last steps of a stretch miss what follows: the first three quarters count.
    square = (totals[: -(rewards.shape[0] // 4) or None] ** 2).mean()
    chunks = scale.chunks + 1.0
    return RewardScale(chunks, scale.square + jnp.maximum(1.0 / chunks, SLOWEST) * (square - scale.square))


def typical_return(scale: RewardScale) -> Array:
    """Root mean square of discounted sums of rewards.  # []"""
    return jnp.maximum(jnp.sqrt(scale.square), LEAST)

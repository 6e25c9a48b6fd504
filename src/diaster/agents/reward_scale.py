"""The size of rewards, for an agent whose values have to lie in a fixed range: that of their discounted sums.

As r̂ is learnt and the policy changes, so does that size. It is measured on stretches of stored steps with r̂ as it is
now, before each chunk of updates, and averaged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

SLOWEST = 0.05  # weight of a chunk in the average, once there have been many
MARGIN = 0.8  # of the range of values, for the largest sum seen of late
LEAST = 1e-6  # of a scale: rewards may all be zero
FEW_STEPS = 50.0  # discounted; how an episode with fewer would have gone on is not to be guessed from all it had


class RewardScale(NamedTuple):
    """How large discounted sums of rewards are."""

    chunks: Array  # [] seen
    square: Array  # [] running mean of their squares
    largest: Array  # [] of their absolute values of late, had episodes gone on as they were


def init_reward_scale() -> RewardScale:
    """Of nothing."""
    return RewardScale(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def add_rewards(scale: RewardScale, rewards: Array, is_last: Array, discount: float) -> RewardScale:
    """Take in stretches of steps, one after the other in a column, and where episodes end.  # [T, W]

    A policy that is learning to stay up falls, and its sums are cut short. Its critics know better: what would follow
    if it did not fall is worth more than any sum so far, and has to lie within the range of values as well.
    """

    def step(following: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[Any, Any]:
        reward, is_last = x
        goes_on = jnp.where(is_last, 0.0, discount)
        both = reward + goes_on * following[0], 1.0 + goes_on * following[1]
        return both, both

    nothing = jnp.zeros(rewards.shape[1])
    _, sums = jax.lax.scan(step, (nothing, nothing), (rewards, is_last), reverse=True, unroll=32)
    # The last steps of a stretch miss what follows.
    totals, weights = (part[: -(rewards.shape[0] // 4) or None] for part in sums)
    endless = sum(discount**n for n in range(rewards.shape[0]))
    gone_on = totals * jnp.maximum(endless / jnp.maximum(weights, FEW_STEPS), 1.0)
    chunks = scale.chunks + 1.0
    rate = jnp.maximum(1.0 / chunks, SLOWEST)
    return RewardScale(
        chunks=chunks,
        square=scale.square + rate * ((totals**2).mean() - scale.square),
        largest=jnp.maximum(jnp.abs(gone_on).max(), (1.0 - SLOWEST) * scale.largest),
    )


def size_of_returns(scale: RewardScale, limit: float) -> Array:
    """Their root mean square, or more where the largest would otherwise come near the limit of values.  # []"""
    return jnp.maximum(jnp.maximum(jnp.sqrt(scale.square), scale.largest / (MARGIN * limit)), LEAST)

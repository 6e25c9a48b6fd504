"""What decomposers keep of all episodes so far: moments of the observations, and the size of returns per step."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from diaster.replay.store import EpisodeBlock

AUTO_SCALE = 5.0  # r̂ has a root mean square near 1/5: the published scales 10 and 500 come out for their tasks
INPUT_CLIP = 10.0


class Moments(NamedTuple):
    """Running mean and sum of squared deviations of the observations."""

    rows: Array  # [] how many
    mean: Array  # [D]
    deviation: Array  # [D]


class Rate(NamedTuple):
    """How large returns per step are."""

    steps: Array  # [] seen
    square: Array  # [] mean over those steps of (R/L)²


def init_moments(obs_dim: int) -> Moments:
    """Of nothing."""
    return Moments(jnp.zeros(()), jnp.zeros((obs_dim,)), jnp.zeros((obs_dim,)))


def init_rate() -> Rate:
    """Of nothing."""
    return Rate(jnp.zeros(()), jnp.zeros(()))


def add_rows(moments: Moments, block: EpisodeBlock) -> Moments:
    """Merge the mean and deviation of a block's observations into the running ones (Chan's formula)."""
    rows, valid = jnp.asarray(block.obs), jnp.asarray(block.row_episode) >= 0
    count = valid.sum()
    weight = valid[:, None] / jnp.maximum(count, 1)
    mean = (rows * weight).sum(axis=0)
    deviation = jnp.where(valid[:, None], (rows - mean) ** 2, 0.0).sum(axis=0)
    total = moments.rows + count
    shift = mean - moments.mean
    share = count / jnp.maximum(total, 1.0)
    return Moments(
        rows=total,
        mean=moments.mean + shift * share,
        deviation=moments.deviation + deviation + shift**2 * moments.rows * share,
    )


def add_returns(rate: Rate, block: EpisodeBlock, most_steps: int = 0) -> Rate:
    """Take in a block's returns. One that has seen `most_steps` stays as it is; with 0 none does."""
    per_step = block.episode_return / jnp.maximum(block.length, 1)
    steps = rate.steps + jnp.asarray(block.length).sum()
    gained = (block.length * (per_step**2 - rate.square)).sum()
    grown = Rate(steps, rate.square + gained / jnp.maximum(steps, 1.0))
    if most_steps == 0:
        return grown
    return Rate(*(jnp.where(rate.steps < most_steps, after, before) for after, before in zip(grown, rate, strict=True)))


def normalize(moments: Moments, obs: Array) -> Array:
    """Observations with mean 0 and deviation 1 over all that were seen, bounded."""
    variance = moments.deviation / jnp.maximum(moments.rows, 1.0)
    return jnp.clip((obs - moments.mean) / jnp.sqrt(variance + 1e-8), -INPUT_CLIP, INPUT_CLIP)


def return_scale(setting: float | str, rate: Rate) -> Array:
    """What returns are divided by: a number, or 'auto', in proportion to the returns per step seen so far."""
    if not isinstance(setting, str):
        return jnp.full((), setting)
    automatic = AUTO_SCALE * jnp.sqrt(rate.square)
    return jnp.where(automatic > 0.0, automatic, 1.0)

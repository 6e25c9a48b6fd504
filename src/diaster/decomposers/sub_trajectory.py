"""R̂_sub, the reward of any part of an episode: a recurrent net, and the loss by which parts add up to returns.

The loss is eq. 12 of the paper (Lin et al., 2024) for any number of cuts; what it may be besides is told in
`diaster.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.config import DiasterConfig
from diaster.nn.gru import gru_scan, gru_scan_two_ways
from diaster.nn.nets import GRU, Linear, linear
from diaster.replay.rows import Rows, sum_by_episode


class SubReward(NamedTuple):
    """R̂_sub: a recurrent net and a linear head."""

    cell: GRU
    head: Linear


class Batch(NamedTuple):
    """Rows of steps and the returns they are measured against."""

    inputs: Array  # [T, W, I]
    rows: Rows
    start: Array  # [T, W] segment starts
    target: Array  # [B] scaled returns, less what the linear base makes of them
    length: Array  # [B]
    penalty_share: Array | None = None  # [] of the variance penalty, where it fades


def reward_differences(net: SubReward, head: str, inputs: Array, start: Array, precision: str = "float32") -> Array:
    """What each step adds to R̂_sub of its segment; a segment's differences sum to its R̂_sub.  # [T, W]"""
    return _differences(net, head, gru_scan(net.cell, inputs, start, precision), start)


def _differences(net: SubReward, head: str, states: Array, start: Array) -> Array:
    values = linear(net.head, states)[..., 0]
    if head == "cumulative":
        return values
    before = jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])
    return values - jnp.where(start, 0.0, before)


def variance_of_drawn_mean(residual: Array, rows: Rows, length: Array) -> Array:
    """How much the mean of an episode's drawn segments varies with the draw, estimated from these.  # [B]

    residual  # [T, W] differences less that mean, a segment in each column. Segments are drawn without replacement, and
    one that was drawn says nothing of others: the estimate has no bias, but for shorter segments at an episode's ends.
    """
    n_episodes = rows.counted.shape[0]
    per_segment = jnp.where(rows.valid, residual, 0.0).sum(axis=0).reshape(n_episodes, -1)  # [B, K]
    n_segments = rows.valid.any(axis=0).reshape(n_episodes, -1).sum(axis=1)
    n_steps = rows.valid.sum(axis=0).reshape(n_episodes, -1).sum(axis=1)
    squares = (per_segment**2).sum(axis=1) / jnp.maximum(n_steps, 1) ** 2
    factor = jnp.where(n_segments > 1, n_segments / jnp.maximum(n_segments - 1, 1), 0.0)
    return (1.0 - n_steps / length) * factor * squares


def sub_trajectory_loss(net: SubReward, config: DiasterConfig, batch: Batch) -> tuple[Array, Array]:
    """The loss of R̂_sub on a batch, and the differences R̂_d that the step reward is to follow."""
    rows = batch.rows
    if config.segments == "sampled" or config.reward_source == "difference":
        difference = reward_differences(net, config.head, batch.inputs, batch.start, config.precision)
        target = difference  # the very ones that the net is trained on, if any are needed
    else:
        # The paper's differences are those of whole episodes. A step waits for the one before it in its own row only:
        # cut and whole episodes together take the time of one.
        start, whole = batch.start, rows.step == 0
        cut_states, whole_states = gru_scan_two_ways(net.cell, batch.inputs, start, whole, config.precision)
        difference = _differences(net, config.head, cut_states, start)
        target = _differences(net, config.head, whole_states, whole)
    looked_at = jnp.maximum(sum_by_episode(jnp.ones_like(difference), rows), 1.0)
    mean = sum_by_episode(difference, rows) / looked_at
    error = mean - batch.target / batch.length
    if config.loss == "sum":
        error = error * batch.length
    variance = sum_by_episode(difference**2, rows) / looked_at - mean**2
    share = 1.0 if batch.penalty_share is None else batch.penalty_share
    per_episode = error**2 + config.variance_penalty * share * variance
    if config.unbiased:
        by_chance = variance_of_drawn_mean(difference - mean[rows.episode], rows, batch.length)
        per_episode -= by_chance * batch.length**2 if config.loss == "sum" else by_chance
    n_counted = jnp.maximum(rows.counted.sum(), 1)
    return jnp.where(rows.counted, per_episode, 0.0).sum() / n_counted, jax.lax.stop_gradient(target)

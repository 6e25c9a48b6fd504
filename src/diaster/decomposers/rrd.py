"""RRD: randomized return decomposition (Ren et al., ICLR 2022).

Step rewards that explain a return add up to it. The mean of K steps drawn at random stands for the mean of all L,
so an update need not see the whole episode. The paper's loss, and what it is in expectation over the draw:

    L_Rand-RD = (R − L/K · Σ_{t ∈ I} r̂_t)²,    I: K of the L steps, without replacement
    E_I[L_Rand-RD] = (R − Σ_t r̂_t)² + L² · (1 − K/L) · Var(r̂)/K

with Var the unbiased variance of r̂ over the steps of the episode: the bias draws the rewards of an episode together.
`unbiased` takes an estimate of it from the same K steps out of the loss, whose expectation is then that of RD.

Deviations (numbers as in docs/methods/rrd.md):

1. The loss is divided by L²: (mean_I r̂ − R/L)², so that episodes count alike however long they are.
2. Returns are divided by a scale taken from those seen so far, and inputs may be normalised.
3. Episodes shorter than K are drawn from with replacement. The draws are then independent of each other, and the
   factor 1 − K/L becomes 1: a case the paper leaves open.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from diaster.config import RrdConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.step_reward import make_step_reward


def draw_subset(key: Array, length: Array, n: int) -> Array:
    """n steps of an episode: every subset is equally likely; with replacement where the episode has fewer.  # [n]

    Floyd's sampling. Draw k is uniform over the first L − n + k + 1 steps; where it hits a step that is taken, it takes
    the last of those instead, which no earlier draw could hit. The cost depends on n alone, whatever the horizon.
    """
    place = jnp.arange(n)
    last = length - n + place  # negative where the episode is too short
    is_long_enough = length >= n
    drawn = jax.random.randint(key, (n,), 0, jnp.where(is_long_enough, last + 1, length))
    # A step is taken if an earlier draw hit it as well, or if it is the last of an earlier draw which took that
    # instead. The second is a chain of draws; doubling the jump along it follows the longest in log n rounds.
    taken = ((drawn[:, None] == drawn) & (place < place[:, None])).any(axis=1)
    of_draw = drawn - (length - n)
    earlier = jnp.where((of_draw >= 0) & (of_draw < place), of_draw, place)
    for _ in range((n - 1).bit_length()):
        taken, earlier = taken | taken[earlier], earlier[earlier]
    return jnp.where(is_long_enough & taken, last, drawn)


def bias_factor(length: Array, n: int) -> Array:
    """c: the mean of n drawn steps has the variance c · Var/n; none where all steps were drawn, or there is but one."""
    of_short = jnp.where(length > 1, 1.0, 0.0)
    return jnp.where(length >= n, 1.0 - n / length, of_short)


def episode_loss(step_reward: Array, episode_return: Array, length: Array, unbiased: bool) -> Array:
    """(mean r̂ − R/L)² of the drawn steps of one episode, less the variance of that mean. step_reward  # [K]"""
    n, mean = step_reward.shape[0], step_reward.mean()
    loss = (mean - episode_return / length) ** 2
    if not unbiased:
        return loss
    variance = ((step_reward - mean) ** 2).sum() / (n - 1)
    return loss - bias_factor(length, n) * variance / n


def make_rrd(config: RrdConfig, horizon: int) -> Decomposer:
    """RRD, whatever the horizon."""
    assert config.subset > 1 or not config.unbiased, "check_together comes first"
    return make_step_reward(
        config, partial(draw_subset, n=config.subset), partial(episode_loss, unbiased=config.unbiased)
    )

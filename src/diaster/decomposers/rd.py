"""RD: return decomposition by least squares (Efroni et al., AAAI 2021).

Step rewards that explain a return add up to it:

    L_RD = (R − Σ_t r̂_t)²,    t over all steps of the episode

Deviations (numbers as in docs/methods/rd.md):

1. r̂ is a perceptron that is fitted by gradient steps, where the paper solves least squares for a table.
2. Returns are divided by a scale taken from those seen so far, and inputs may be normalised.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from diaster.config import RdConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.step_reward import make_step_reward


def all_steps(length: Array, horizon: int) -> Array:
    """Every step of an episode; the padding repeats the last one.  # [T]"""
    return jnp.minimum(jnp.arange(horizon), length - 1)


def episode_loss(step_reward: Array, episode_return: Array, length: Array) -> Array:
    """(R − Σ_t r̂_t)² of one episode, padding left out. step_reward  # [T]"""
    is_step = jnp.arange(step_reward.shape[0]) < length
    return (episode_return - jnp.where(is_step, step_reward, 0.0).sum()) ** 2


def make_rd(config: RdConfig, horizon: int) -> Decomposer:
    """RD for episodes of at most `horizon` steps."""

    def choose(key: Array, length: Array) -> Array:
        return all_steps(length, horizon)

    return make_step_reward(config, choose, episode_loss)

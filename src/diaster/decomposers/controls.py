"""The controls: what learning makes of returns that nobody decomposes.

`uniform`:  r̂_t = R/L on every step.
`episodic`: r̂_t = R at the last step, 0 before: the raw delayed reward.
`dense`:    the hidden true reward of every step, the upper reference. It is no function of what is stored: the
            learner keeps it as the steps' labels, and only under this method's own name does it leave the environments.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from diaster.config import DenseConfig, EpisodicConfig, UniformConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.statistics import Rate, add_returns, init_rate, return_scale
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps
from diaster.types import EnvSpec


def make_uniform(config: UniformConfig, horizon: int) -> Decomposer:
    """Every step has the same share of its episode's return."""
    return _scaled_return(config, lambda steps: steps.episode_return / jnp.maximum(steps.length, 1))


def make_episodic(config: EpisodicConfig, horizon: int) -> Decomposer:
    """The last step of an episode has its whole return."""
    return _scaled_return(config, lambda steps: jnp.where(steps.time == steps.length - 1, steps.episode_return, 0.0))


def make_dense(config: DenseConfig, horizon: int) -> Decomposer:
    """Every step has its hidden true reward, divided by the return scale."""

    def reward(steps: Steps) -> Array:
        raise NotImplementedError("the hidden reward is no function of a stored step")

    dense = _scaled_return(config, reward)._replace(is_hidden_reward=True, needs_return=False)
    if config.return_scale == "auto":
        return dense._replace(is_scaled_when_drawn=True)
    # A number needs nothing of the returns, and runs of earlier versions have kept nothing.
    return dense._replace(init=lambda key, spec: (), ingest=lambda state, store, block: state, saved=())


def _scaled_return(config: UniformConfig | EpisodicConfig | DenseConfig, share: Callable[[Steps], Array]) -> Decomposer:
    """What a step's episode says of the step, divided by the return scale; that scale is all there is to keep."""

    def init(key: Array, spec: EnvSpec) -> Rate:
        return init_rate()

    def ingest(state: Rate, store: EpisodeStore, block: EpisodeBlock) -> Rate:
        return add_returns(state, block, config.scale_steps)

    def scale(state: Rate) -> Array:
        return return_scale(config.return_scale, state)

    def reward(state: Rate, steps: Steps) -> Array:
        return share(steps) / scale(state)

    return Decomposer(init, ingest, reward, scale, saved=Rate._fields, needs_return=True)

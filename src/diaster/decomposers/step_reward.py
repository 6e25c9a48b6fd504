"""A step reward r̂(s, a, s′) that is fitted to returns: all that RRD and RD have in common.

r̂ is a perceptron over [s, a, s − s′], or its running average. A method adds two things: which steps of an episode an
update looks at, and the loss of their rewards. Both are written for one episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jax import Array

from diaster.config import RdConfig, RrdConfig
from diaster.decomposers import Decomposer, Metrics
from diaster.decomposers.fitting import Average, adam, init_average, n_inputs, net_inputs, with_net
from diaster.decomposers.linear_base import (
    EpisodeMeans,
    LinearReward,
    base_metrics,
    init_linear_base,
    linear_and_net,
    returns_for_net,
    with_base_fitted,
)
from diaster.decomposers.statistics import (
    Moments,
    Rate,
    add_returns,
    add_rows,
    init_moments,
    init_rate,
    return_scale,
)
from diaster.nn.nets import MLP, mlp, mlp_init
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_episodes, gather_steps
from diaster.types import EnvSpec

StepChoice = Callable[[Array, Array], Array]
"""Steps of an episode that an update looks at, from a random key and the length  # [K]"""
EpisodeLoss = Callable[[Array, Array, Array], Array]
"""Loss of an episode, from r̂ of those steps  # [K], the scaled return and the length"""


class StepRewardState(NamedTuple):
    """Everything that is carried between updates."""

    step_reward: MLP
    optimizer: optax.OptState
    moments: Moments
    rate: Rate
    base: LinearReward | None = None
    base_means: EpisodeMeans | None = None
    mean_step_reward: Average | None = None  # the running average, where there is one


class Batch(NamedTuple):
    """Some steps of each episode, and the returns that their rewards are measured against."""

    inputs: Array  # [B, K, I]
    episode_return: Array  # [B] scaled; with `base="linear"`, less what that makes of it
    length: Array  # [B]


def batch_loss(net: MLP, batch: Batch, episode_loss: EpisodeLoss) -> Array:
    """Mean loss of the episodes of a batch."""
    step_reward = mlp(net, batch.inputs)[..., 0]  # [B, K]
    return jax.vmap(episode_loss)(step_reward, batch.episode_return, batch.length).mean()


def make_step_reward(config: RrdConfig | RdConfig, choose: StepChoice, episode_loss: EpisodeLoss) -> Decomposer:
    """The decomposer that fits r̂ of the chosen steps by the given loss."""
    assert config.base != "auto", "make_decomposer comes first"
    optimizer, is_based = adam(config.learning_rate, config.weight_decay), config.base != "none"
    is_averaged = config.averaging > 0.0

    def init(key: Array, spec: EnvSpec) -> StepRewardState:
        n_in = n_inputs(spec.obs_dim, spec.action_dim, config.next_obs)
        step_reward = mlp_init(key, (n_in, config.hidden, config.hidden, 1))
        base, base_means = init_linear_base(jax.random.fold_in(key, 3), spec) if is_based else (None, None)
        return StepRewardState(
            step_reward,
            optimizer.init(step_reward),
            init_moments(spec.obs_dim),
            init_rate(),
            base,
            base_means,
            init_average(step_reward) if is_averaged else None,
        )

    def ingest(state: StepRewardState, store: EpisodeStore, block: EpisodeBlock) -> StepRewardState:
        state = state._replace(
            moments=add_rows(state.moments, block), rate=add_returns(state.rate, block, config.scale_steps)
        )
        has_learnt = state.optimizer[0].count > 0
        return with_base_fitted(
            config.base, state, block, lambda steps: net_reward(state, steps) * scale(state), has_learnt
        )

    def scale(state: StepRewardState) -> Array:
        return return_scale(config.return_scale, state.rate)

    def inputs_of(state: StepRewardState, steps: Steps) -> Array:
        return net_inputs(state.moments, steps, config.normalize_inputs, config.next_obs)

    def draw(state: StepRewardState, store: EpisodeStore, key: Array) -> Batch:
        episode_key, step_key = jax.random.split(key)
        episode = draw_episodes(store, episode_key, config.batch_episodes, config.episode_draw)  # [B]
        length = store.length[episode]
        time = jax.vmap(choose)(jax.random.split(step_key, config.batch_episodes), length)  # [B, K]
        inputs = inputs_of(state, gather_steps(store, episode[:, None], time))
        return Batch(inputs, returns_for_net(config.base, state.base, store, episode, key) / scale(state), length)

    def update(state: StepRewardState, batch: Batch) -> tuple[StepRewardState, Metrics]:
        loss, gradient = jax.value_and_grad(batch_loss)(state.step_reward, batch, episode_loss)
        change, optimizer_state = optimizer.update(gradient, state.optimizer, state.step_reward)
        step_reward = optax.apply_updates(state.step_reward, change)
        mean = state.mean_step_reward
        if mean is not None:
            mean = with_net(mean, step_reward, config.averaging)
        metrics = {"step_loss": loss} | base_metrics(state.base, state.base_means)
        return state._replace(step_reward=step_reward, optimizer=optimizer_state, mean_step_reward=mean), metrics

    def net_reward(state: StepRewardState, steps: Steps) -> Array:
        net = state.step_reward if state.mean_step_reward is None else state.mean_step_reward.net
        return mlp(net, inputs_of(state, steps))[..., 0]

    def reward(state: StepRewardState, steps: Steps) -> Array:
        return linear_and_net(config.base, state.base, net_reward(state, steps), steps, scale(state))

    extra = [*(["base"] if is_based else []), *(["mean_step_reward"] if is_averaged else [])]
    saved = ("step_reward", "moments", "rate", *extra)
    return Decomposer(
        init,
        ingest,
        reward,
        scale,
        saved,
        draw,
        update,
        needs_next_obs=is_based or config.next_obs,
        exact_sum=config.exact_sum,
    )

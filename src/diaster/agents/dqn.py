"""DQN: deep Q-network (Mnih et al., 2015), double by default (van Hasselt, Guez and Silver, 2016).

One net Q(s) has a value for each action. Its target is

    y = r + γ · Q′(s′, argmax_a Q(s′, a))    double: the learning net chooses, the target net judges
    y = r + γ · max_a Q′(s′, a)              plain

Errors count squared or, as Huber has it, squared while below 1 and linear beyond. Deviations are numbered in
docs/explanation/agents.md.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.agents.actions import need_discrete
from diaster.agents.sac import critic_error
from diaster.config import DqnConfig
from diaster.nn.nets import MLP, mlp, mlp_init
from diaster.types import EnvSpec


class DqnState(NamedTuple):
    """Everything DQN carries between updates."""

    net: MLP
    target_net: MLP
    optimizer: optax.OptState
    updates: Array  # [] made so far


def next_values(config: DqnConfig, net: MLP, target_net: MLP, next_obs: Array) -> Array:
    """The value of what follows.  # [B]"""
    judged = mlp(target_net, next_obs)  # [B, A]
    chosen = jnp.argmax(mlp(net, next_obs) if config.double else judged, axis=-1)
    return jnp.take_along_axis(judged, chosen[..., None], axis=-1)[..., 0]


def exploration(config: DqnConfig, updates: Array) -> Array:
    """The share of random actions after a number of updates: a straight line from 1 to `exploration_final`.

    It counts environment steps since learning began: each update stands for every / updates of them.
    """
    steps = updates * (config.every / max(config.updates, 1))
    passed = jnp.minimum(steps / config.exploration_steps, 1.0)
    return 1.0 - (1.0 - config.exploration_final) * passed


def learning_rate(config: DqnConfig) -> optax.ScalarOrSchedule:
    """Adam's step size: a number, or a straight line down to a hundredth of it."""
    if config.annealing_updates == 0:
        return config.learning_rate
    return optax.linear_schedule(config.learning_rate, config.learning_rate / 100, config.annealing_updates)


def make_dqn(config: DqnConfig) -> Agent:
    """DQN for one-hot actions."""
    optimizer = optax.adam(learning_rate(config))

    def init(key: Array, spec: EnvSpec) -> DqnState:
        need_discrete("dqn", spec)
        net = mlp_init(key, (spec.obs_dim, config.hidden, config.hidden, spec.action_dim))
        return DqnState(net, jax.tree.map(jnp.copy, net), optimizer.init(net), jnp.zeros((), jnp.int32))

    def noise(key: Array, batch: Transition) -> Array:
        return jnp.zeros((0,))  # an update draws nothing

    def update(state: DqnState, batch: Transition, noise: Array, number: Array) -> tuple[DqnState, Metrics]:
        next_value = next_values(config, state.net, state.target_net, batch.next_obs)
        target = batch.reward + config.discount * jnp.where(batch.terminal, 0.0, next_value)

        def loss(net: MLP) -> tuple[Array, Array]:
            values = (mlp(net, batch.obs) * batch.action).sum(axis=-1)
            return critic_error(config, values, target).mean(), values.mean()

        (loss_q, mean_value), gradient = jax.value_and_grad(loss, has_aux=True)(state.net)
        change, optimizer_state = optimizer.update(gradient, state.optimizer)
        net = optax.apply_updates(state.net, change)

        # The number is the same for all seeds: under vmap this stays a branch, and is not both sides and a select.
        target_net = jax.lax.cond(
            (number + 1) % config.target_every == 0,
            lambda slow: optax.incremental_update(net, slow, config.target_rate),
            lambda slow: slow,
            state.target_net,
        )
        metrics = {
            "critic_loss": loss_q,
            "q_value": mean_value,
            "exploration": exploration(config, state.updates),
        }
        return DqnState(net, target_net, optimizer_state, state.updates + 1), metrics

    def policy(state: DqnState) -> Acting:
        return Acting(state.net, exploration(config, state.updates))

    return Agent(init, noise, update, policy, acting.EPSILON_GREEDY)

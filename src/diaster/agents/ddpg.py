"""DDPG: deep deterministic policy gradient (Lillicrap et al., 2016).

A critic learns the value of a deterministic policy, against targets that follow slowly (algorithm 1),

    y = r + γ · Q′(s′, π′(s′)),

and the policy climbs it: the gradient of Q(s, π(s)) in the policy's parameters. Deviations are numbered in
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
from diaster.agents.actions import need_continuous
from diaster.agents.td3 import bootstrapped, deterministic_action
from diaster.config import DdpgConfig
from diaster.nn.nets import MLP, mlp, mlp_init
from diaster.types import EnvSpec


class DdpgState(NamedTuple):
    """Everything DDPG carries between updates."""

    actor: MLP
    critic: MLP
    target_actor: MLP
    target_critic: MLP
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState


def action_value(critic: MLP, obs: Array, action: Array) -> Array:
    """Q(s, a).  # [B]"""
    return mlp(critic, jnp.concatenate([obs, action], axis=-1))[..., 0]


def make_ddpg(config: DdpgConfig) -> Agent:
    """DDPG for actions in [−1, 1]."""
    optimizer = optax.adam(config.learning_rate)

    def init(key: Array, spec: EnvSpec) -> DdpgState:
        need_continuous("ddpg", spec)
        actor_key, critic_key = jax.random.split(key)
        hidden = (config.hidden, config.hidden)
        actor = mlp_init(actor_key, (spec.obs_dim, *hidden, spec.action_dim))
        critic = mlp_init(critic_key, (spec.obs_dim + spec.action_dim, *hidden, 1))
        return DdpgState(
            actor=actor,
            critic=critic,
            target_actor=jax.tree.map(jnp.copy, actor),
            target_critic=jax.tree.map(jnp.copy, critic),
            actor_optimizer=optimizer.init(actor),
            critic_optimizer=optimizer.init(critic),
        )

    def noise(key: Array, batch: Transition) -> Array:
        return jnp.zeros((0,))  # an update draws nothing

    def update(state: DdpgState, batch: Transition, noise: Array, number: Array) -> tuple[DdpgState, Metrics]:
        next_action = deterministic_action(state.target_actor, batch.next_obs)
        next_value = action_value(state.target_critic, batch.next_obs, next_action)
        target = bootstrapped(batch, config.discount, next_value)

        def critic_loss(critic: MLP) -> tuple[Array, Array]:
            values = action_value(critic, batch.obs, batch.action)
            return ((values - target) ** 2).mean(), values.mean()

        (loss_q, mean_value), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critic)
        change, critic_optimizer = optimizer.update(gradient, state.critic_optimizer)
        critic = optax.apply_updates(state.critic, change)

        def actor_loss(actor: MLP) -> Array:
            return -action_value(critic, batch.obs, deterministic_action(actor, batch.obs)).mean()

        loss_pi, gradient = jax.value_and_grad(actor_loss)(state.actor)
        change, actor_optimizer = optimizer.update(gradient, state.actor_optimizer)
        actor = optax.apply_updates(state.actor, change)

        new = DdpgState(
            actor=actor,
            critic=critic,
            target_actor=optax.incremental_update(actor, state.target_actor, config.target_rate),
            target_critic=optax.incremental_update(critic, state.target_critic, config.target_rate),
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
        )
        return new, {"critic_loss": loss_q, "actor_loss": loss_pi, "q_value": mean_value}

    def policy(state: DdpgState) -> Acting:
        return Acting(state.actor, jnp.full((), config.exploration_noise))

    return Agent(init, noise, update, policy, acting.NOISY_TANH)

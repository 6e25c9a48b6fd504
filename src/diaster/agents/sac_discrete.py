"""Soft actor-critic for discrete actions (Christodoulou, 2019).

As SAC with a learnt temperature α, but critics have a value for each action and the policy is categorical, so that
every expectation over actions is a sum (eqs. 10 to 12 of the paper) and an update draws nothing:

    V(s)  = Σ_a π(a|s) · (min_i Q_i(s, a) − α log π(a|s))
    J_π   = − V(s)
    J_α   = α · (H(π(·|s)) − H̄),    H̄ = discrete_entropy · log n

Deviations are numbered in docs/explanation/agents.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.agents.actions import need_discrete
from diaster.agents.sac import critic_error, net_optimizer
from diaster.config import SacConfig
from diaster.nn.nets import MLP, mlp, mlp_init
from diaster.types import EnvSpec


class SacDiscreteState(NamedTuple):
    """Everything discrete SAC carries between updates."""

    actor: MLP
    critics: tuple[MLP, MLP]
    target_critics: tuple[MLP, MLP]
    log_temperature: Array  # []
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState


def values_per_action(critics: tuple[MLP, MLP], obs: Array) -> Array:
    """Both critics' values of every action.  # [2, B, A]"""
    return jnp.stack([mlp(critic, obs) for critic in critics])


def soft_value(logits: Array, values: Array, temperature: Array) -> tuple[Array, Array]:
    """V(s) under softmax of the logits, and the entropy there.  # [B] each"""
    log_prob = jax.nn.log_softmax(logits)
    probability = jnp.exp(log_prob)
    entropy = -(probability * log_prob).sum(axis=-1)
    return (probability * values).sum(axis=-1) + temperature * entropy, entropy


def make_sac_discrete(config: SacConfig) -> Agent:
    """SAC for one-hot actions."""
    optimizer = net_optimizer(config)
    temperature_adam = optax.adam(config.learning_rate)

    def init(key: Array, spec: EnvSpec) -> SacDiscreteState:
        need_discrete("sac for discrete actions", spec, "make_sac, which the agent 'sac' stands for there")
        actor_key, first_key, second_key = jax.random.split(key, 3)
        sizes = (spec.obs_dim, config.hidden, config.hidden, spec.action_dim)
        actor = mlp_init(actor_key, sizes)
        critics = (mlp_init(first_key, sizes), mlp_init(second_key, sizes))
        log_temperature = jnp.log(jnp.full((), config.initial_temperature, jnp.float32))  # not weakly typed: one trace
        return SacDiscreteState(
            actor=actor,
            critics=critics,
            target_critics=jax.tree.map(jnp.copy, critics),
            log_temperature=log_temperature,
            actor_optimizer=optimizer.init(actor),
            critic_optimizer=optimizer.init(critics),
            temperature_optimizer=temperature_adam.init(log_temperature),
        )

    def noise(key: Array, batch: Transition) -> Array:
        return jnp.zeros((0,))  # an update draws nothing

    def update(
        state: SacDiscreteState, batch: Transition, noise: Array, number: Array
    ) -> tuple[SacDiscreteState, Metrics]:
        temperature = jnp.exp(state.log_temperature)
        target_entropy = config.discrete_entropy * math.log(batch.action.shape[-1])

        next_values = values_per_action(state.target_critics, batch.next_obs).min(axis=0)
        next_value, _ = soft_value(mlp(state.actor, batch.next_obs), next_values, temperature)
        target = batch.reward + config.discount * jnp.where(batch.terminal, 0.0, next_value)

        def critic_loss(critics: tuple[MLP, MLP]) -> tuple[Array, Array]:
            values = (values_per_action(critics, batch.obs) * batch.action).sum(axis=-1)  # [2, B]
            return critic_error(config, values, target).mean(axis=-1).sum(), values.mean()

        (loss_q, mean_q), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
        change, critic_optimizer = optimizer.update(gradient, state.critic_optimizer)
        critics = optax.apply_updates(state.critics, change)
        values = values_per_action(critics, batch.obs).min(axis=0)

        def actor_loss(actor: MLP) -> tuple[Array, Array]:
            value, entropy = soft_value(mlp(actor, batch.obs), values, temperature)
            return -value.mean(), entropy.mean()

        (loss_pi, mean_entropy), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
        change, actor_optimizer = optimizer.update(gradient, state.actor_optimizer)
        actor = optax.apply_updates(state.actor, change)

        # The gradient of log α · (entropy − target entropy), by hand.
        change, temperature_optimizer = temperature_adam.update(
            mean_entropy - target_entropy, state.temperature_optimizer
        )

        new = SacDiscreteState(
            actor=actor,
            critics=critics,
            target_critics=optax.incremental_update(critics, state.target_critics, config.target_rate),
            log_temperature=optax.apply_updates(state.log_temperature, change),
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            temperature_optimizer=temperature_optimizer,
        )
        metrics = {
            "critic_loss": loss_q,
            "actor_loss": loss_pi,
            "q_value": mean_q,
            "entropy": mean_entropy,
            "temperature": temperature,
        }
        return new, metrics

    def policy(state: SacDiscreteState) -> Acting:
        return Acting(state.actor, jnp.zeros(()))

    return Agent(init, noise, update, policy, acting.CATEGORICAL)

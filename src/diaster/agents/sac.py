"""Soft actor-critic with a learnt temperature (Haarnoja et al., 2018), as in the paper's appendix B."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Metrics, Transition, WorkingForm
from diaster.agents.actions import need_continuous
from diaster.agents.tanh_gaussian import tanh_gaussian
from diaster.agents.twins import Critics, StackedCritics, action_values, stack_critics, unstack_critics
from diaster.config import DqnConfig, SacConfig
from diaster.nn.nets import MLP, mlp, mlp_init, mlp_two_batches
from diaster.types import EnvSpec


class SacState(NamedTuple):
    """Everything SAC carries between updates."""

    actor: MLP
    critics: Critics
    target_critics: Critics
    log_temperature: Array  # []
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState


def critic_error(config: SacConfig | DqnConfig, values: Array, target: Array) -> Array:
    """How much each error counts: squared or, by Huber, half of that below 1 and linear beyond."""
    return optax.huber_loss(values, target) if config.critic_loss == "huber" else (values - target) ** 2


def net_optimizer(config: SacConfig) -> optax.GradientTransformation:
    """Adam for the actor, and for both critics as one; on clipped gradients if that was asked for."""
    adam = optax.adam(config.learning_rate)
    if config.gradient_clip == 0.0:
        return adam
    return optax.chain(optax.clip_by_global_norm(config.gradient_clip), adam)


def policy_outputs(state: SacState, batch: Transition, actor: MLP) -> tuple[Array, Array]:
    """What the policy's net says of both observations: it is the same net until its own step at the end.

    Where critics are stacked launches count, and both go through it at once; on a CPU that takes longer.
    """
    if isinstance(state.critics, StackedCritics):
        return mlp_two_batches(actor, batch.obs, batch.next_obs)
    return mlp(actor, batch.obs), mlp(actor, batch.next_obs)


def make_sac(config: SacConfig) -> Agent:
    """SAC for actions in [−1, 1]."""
    optimizer = net_optimizer(config)
    temperature_adam = optax.adam(config.learning_rate)

    def init(key: Array, spec: EnvSpec) -> SacState:
        need_continuous("sac for continuous actions", spec, "make_sac_discrete, which the agent 'sac' stands for there")
        actor_key, first_key, second_key = jax.random.split(key, 3)
        hidden = (config.hidden, config.hidden)
        actor = mlp_init(actor_key, (spec.obs_dim, *hidden, 2 * spec.action_dim))
        critic_sizes = (spec.obs_dim + spec.action_dim, *hidden, 1)
        critics = (mlp_init(first_key, critic_sizes), mlp_init(second_key, critic_sizes))
        log_temperature = jnp.log(jnp.full((), config.initial_temperature, jnp.float32))  # not weakly typed: one trace
        return SacState(
            actor=actor,
            critics=critics,
            target_critics=jax.tree.map(jnp.copy, critics),
            log_temperature=log_temperature,
            actor_optimizer=optimizer.init(actor),
            critic_optimizer=optimizer.init(critics),
            temperature_optimizer=temperature_adam.init(log_temperature),
        )

    def noise(key: Array, batch: Transition) -> Array:
        return jax.random.normal(key, (2, *batch.action.shape))  # of the next action, of this one

    def update(state: SacState, batch: Transition, noise: Array, number: Array) -> tuple[SacState, Metrics]:
        temperature = jnp.exp(state.log_temperature)
        target_entropy = -float(batch.action.shape[-1])

        outputs, differentiate, next_outputs = jax.vjp(partial(policy_outputs, state, batch), state.actor, has_aux=True)
        next_action, next_log_prob = tanh_gaussian(next_outputs, noise[0])
        next_value = action_values(state.target_critics, batch.next_obs, next_action).min(axis=0)
        next_value = next_value - temperature * next_log_prob
        target = batch.reward + config.discount * jnp.where(batch.terminal, 0.0, next_value)

        def critic_loss(critics: Critics) -> tuple[Array, Array]:
            values = action_values(critics, batch.obs, batch.action)
            return critic_error(config, values, target).mean(axis=-1).sum(), values.mean()

        (loss_q, mean_q), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
        change, critic_optimizer = optimizer.update(gradient, state.critic_optimizer)
        critics = optax.apply_updates(state.critics, change)

        def actor_loss(outputs: Array) -> tuple[Array, Array]:
            action, log_prob = tanh_gaussian(outputs, noise[1])
            value = action_values(critics, batch.obs, action).min(axis=0)
            return (temperature * log_prob - value).mean(), log_prob.mean()

        (loss_pi, mean_log_prob), gradient = jax.value_and_grad(actor_loss, has_aux=True)(outputs)
        change, actor_optimizer = optimizer.update(*differentiate(gradient), state.actor_optimizer)
        actor = optax.apply_updates(state.actor, change)

        # The gradient of −log α · (log π + target entropy), by hand.
        gradient = -(mean_log_prob + target_entropy)
        change, temperature_optimizer = temperature_adam.update(gradient, state.temperature_optimizer)

        new = SacState(
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
            "entropy": -mean_log_prob,
            "temperature": temperature,
        }
        return new, metrics

    def policy(state: SacState) -> Acting:
        return Acting(state.actor, jnp.zeros(()))

    return Agent(init, noise, update, policy, acting.TANH_GAUSSIAN, WorkingForm(stack_critics, unstack_critics))

"""XQC: a soft actor-critic whose critics are well conditioned (Palenicek et al., 2026).

Actor and critics are perceptrons with batch normalisation and kernels of norm 1 (`nn/normed.py`). Critics give a
distribution of the value over atoms, and are fitted by cross-entropy to the projected target

    r + γ (z − α log π(a′|s′)),   z ~ the one of two target critics with the lower mean at (s′, a′).

1. (s, a) and (s′, a′) pass through a critic as one batch: both then have the same moments, which is what lets batch
   normalisation work here at all (Bhatt et al., 2024).
2. The actor climbs the lower mean of the critics, which then use their averages; it moves every third update.
3. Rewards are divided by the typical size of their discounted sums (`reward_scale.py`), so that one range of atoms
   serves every task.

Deviations are numbered in docs/agents.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Metrics, Transition, WorkingForm
from diaster.agents.actions import need_continuous
from diaster.agents.categorical import atoms_of, certain_zero, project
from diaster.agents.reward_scale import RewardScale, add_rewards, init_reward_scale, size_of_returns
from diaster.agents.tanh_gaussian import tanh_gaussian
from diaster.agents.twins import (
    NormedCritics,
    averaged_outputs,
    both_with_unit_kernels,
    normed_outputs,
    stack_critics,
    unstack_critics,
)
from diaster.config import XqcConfig
from diaster.nn.normed import NormedNet, Seen, averaged, folded, normed_init, of_averages, of_batch, with_unit_kernels
from diaster.types import EnvSpec

ENTROPY_PER_ACTION = -0.5  # that the temperature aims at


class Slow(NamedTuple):
    """What moves once in `policy_every` updates."""

    actor: NormedNet
    seen: Seen
    log_temperature: Array  # []
    actor_optimizer: optax.OptState
    temperature_optimizer: optax.OptState
    actor_loss: Array  # [] the last one, so that there is one to log in between
    entropy: Array  # [] likewise


class XqcState(NamedTuple):
    """Everything XQC carries between updates."""

    critics: NormedCritics
    target_critics: NormedCritics
    critic_optimizer: optax.OptState
    slow: Slow
    reward_scale: RewardScale


def annealed_adam(config: XqcConfig, every: int = 1) -> optax.GradientTransformation:
    """Adam with a step size that falls along a straight line, for what moves once in `every` updates."""
    # Resolved before an agent learns. One that is loaded to act may have settings in which it is not.
    n_steps = 0 if config.annealing_updates == "auto" else config.annealing_updates // every
    if n_steps == 0:
        return optax.adam(config.learning_rate)
    return optax.adam(optax.linear_schedule(config.learning_rate, config.final_learning_rate, n_steps))


def make_xqc(config: XqcConfig) -> Agent:
    """XQC for actions in [−1, 1]."""
    atoms = atoms_of(config.value_limit, config.atoms)
    critic_adam = annealed_adam(config)
    actor_adam, temperature_adam = (annealed_adam(config, config.policy_every) for _ in range(2))
    sizes = config.sizes

    def init(key: Array, spec: EnvSpec) -> XqcState:
        need_continuous("xqc", spec)
        actor_key, first_key, second_key = jax.random.split(key, 3)
        actor, seen = normed_init(actor_key, (spec.obs_dim, *sizes.actor, 2 * spec.action_dim))
        critic_sizes = (spec.obs_dim + spec.action_dim, *sizes.critic, config.atoms)
        nets, critics_seen = zip(*(normed_init(k, critic_sizes) for k in (first_key, second_key)), strict=True)
        critics = NormedCritics(nets, critics_seen)
        log_temperature = jnp.log(jnp.full((), config.initial_temperature, jnp.float32))
        return XqcState(
            critics=critics,
            target_critics=jax.tree.map(jnp.copy, critics),
            critic_optimizer=critic_adam.init(nets),
            slow=Slow(
                actor=actor,
                seen=seen,
                log_temperature=log_temperature,
                actor_optimizer=actor_adam.init(actor),
                temperature_optimizer=temperature_adam.init(log_temperature),
                actor_loss=jnp.zeros(()),
                entropy=jnp.zeros(()),
            ),
            reward_scale=init_reward_scale(),
        )

    def watch(state: XqcState, rewards: Array, is_last: Array) -> XqcState:
        return state._replace(reward_scale=add_rewards(state.reward_scale, rewards, is_last, config.discount))

    def noise(key: Array, batch: Transition) -> Array:
        return jax.random.normal(key, (2, *batch.action.shape))  # of the next action, of this one

    def scaled(rewards: Array, scale: RewardScale) -> Array:
        if isinstance(config.reward_scale, str):
            return rewards / size_of_returns(scale, config.value_limit)
        return rewards / config.reward_scale

    def mean_value(logits: Array) -> Array:
        return (jax.nn.softmax(logits) * atoms).sum(axis=-1)

    def target_of(state: XqcState, batch: Transition, pairs: Array, next_log_prob: Array) -> tuple[Array, Array]:
        """The distribution that critics are fitted to, and the share of it that was clipped.  # [B, N], []"""
        n = batch.reward.shape[0]
        logits, _ = normed_outputs(state.target_critics.nets, pairs, config.precision)  # [2, 2B, N]
        mass = jax.nn.softmax(logits[:, n:])
        first, second = (mass * atoms).sum(axis=-1)
        mass = jnp.where((first <= second)[:, None], mass[0], mass[1])
        mass = jnp.where(batch.terminal[:, None], certain_zero(config.atoms), mass)
        entropy_bonus = jnp.where(batch.terminal, 0.0, -jnp.exp(state.slow.log_temperature) * next_log_prob)
        offset = scaled(batch.reward, state.reward_scale) + config.discount * entropy_bonus
        projected = project(mass, offset, config.discount, config.value_limit)
        return projected.mass, projected.clipped.mean()

    def move_slow(slow: Slow, critics: NormedCritics, batch: Transition, noise: Array) -> Slow:
        """One step of the actor up the lower critic, and of the temperature."""
        temperature = jnp.exp(slow.log_temperature)

        def actor_loss(actor: NormedNet) -> tuple[Array, tuple[Seen, Array]]:
            outputs, seen = of_batch(actor, batch.obs, config.precision)
            action, log_prob = tanh_gaussian(outputs, noise)
            logits = averaged_outputs(critics, jnp.concatenate([batch.obs, action], axis=-1), config.precision)
            return (temperature * log_prob - mean_value(logits).min(axis=0)).mean(), (seen, log_prob.mean())

        (loss, (seen, mean_log_prob)), gradient = jax.value_and_grad(actor_loss, has_aux=True)(slow.actor)
        change, actor_optimizer = actor_adam.update(gradient, slow.actor_optimizer)
        # The gradient of −log α · (log π + target entropy), by hand.
        target_entropy = ENTROPY_PER_ACTION * batch.action.shape[-1]
        temperature_change, temperature_optimizer = temperature_adam.update(
            -(mean_log_prob + target_entropy), slow.temperature_optimizer
        )
        return Slow(
            actor=with_unit_kernels(optax.apply_updates(slow.actor, change)),
            seen=averaged(slow.seen, seen),
            log_temperature=optax.apply_updates(slow.log_temperature, temperature_change),
            actor_optimizer=actor_optimizer,
            temperature_optimizer=temperature_optimizer,
            actor_loss=loss,
            entropy=-mean_log_prob,
        )

    def update(state: XqcState, batch: Transition, noise: Array, number: Array | int) -> tuple[XqcState, Metrics]:
        n = batch.reward.shape[0]
        next_outputs = of_averages(state.slow.actor, state.slow.seen, batch.next_obs, config.precision)
        next_action, next_log_prob = tanh_gaussian(next_outputs, noise[0])
        inputs = [batch.obs, batch.action], [batch.next_obs, next_action]
        pairs = jnp.concatenate([jnp.concatenate(parts, axis=-1) for parts in inputs])  # [2B, D + A]
        target, clipped = target_of(state, batch, pairs, next_log_prob)

        def critic_loss(nets: Any) -> tuple[Array, tuple[Any, Array]]:
            logits, seen = normed_outputs(nets, pairs, config.precision)
            log_mass = jax.nn.log_softmax(logits[:, :n])
            return -(target * log_mass).sum(axis=-1).mean(axis=-1).sum(), (seen, mean_value(logits[:, :n]).mean())

        (loss, (seen, mean_q)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critics.nets)
        change, critic_optimizer = critic_adam.update(gradient, state.critic_optimizer)
        nets = both_with_unit_kernels(optax.apply_updates(state.critics.nets, change))
        critics = NormedCritics(nets, averaged(state.critics.seen, seen))

        is_due = number % config.policy_every == 0
        if isinstance(number, int):
            slow = move_slow(state.slow, critics, batch, noise[1]) if is_due else state.slow
        else:
            # The number is the same for all seeds: under vmap this stays a branch, and is not both sides and a select.
            slow = jax.lax.cond(
                is_due, lambda slow: move_slow(slow, critics, batch, noise[1]), lambda slow: slow, state.slow
            )
        new = XqcState(
            critics=critics,
            target_critics=optax.incremental_update(critics, state.target_critics, config.target_rate),
            critic_optimizer=critic_optimizer,
            slow=slow,
            reward_scale=state.reward_scale,
        )
        metrics = {
            "critic_loss": loss,
            "actor_loss": slow.actor_loss,
            "q_value": mean_q,
            "entropy": slow.entropy,
            "temperature": jnp.exp(state.slow.log_temperature),
            "clipped": clipped,
        }
        return new, metrics

    def policy(state: XqcState) -> Acting:
        return Acting(folded(state.slow.actor, state.slow.seen), jnp.zeros(()))

    return Agent(
        init,
        noise,
        update,
        policy,
        acting.TANH_GAUSSIAN,
        WorkingForm(stack_critics, unstack_critics),
        watch if config.reward_scale == "auto" else None,
        config.policy_every,
    )

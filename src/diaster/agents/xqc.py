"""XQC: a soft actor-critic whose critics are well conditioned (Palenicek et al., 2026).

Actor and critics are perceptrons with batch normalisation and kernels of norm 1 (`nn/normed.py`). Critics give a
distribution of the value over atoms, and are fitted by cross-entropy to the projected target

    r + γ (z − α log π(a′|s′)),   z ~ the one of two target critics with the lower mean at (s′, a′).

1. (s, a) and (s′, a′) pass through a critic as one batch: both then have the same moments, which is what lets batch
   normalisation work here at all (Bhatt et al., 2024).
2. The actor climbs the lower mean of the critics, which then use their averages; it moves every third update.
3. Rewards are divided by the typical size of their discounted sums (`reward_scale.py`), so that one range of atoms
   serves every task.

Deviations are numbered in docs/explanation/agents.md.
"""

from __future__ import annotations

from functools import partial
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


class Optimizers(NamedTuple):
    """Adam for each of the three things that learn; its step size falls along a straight line."""

    critic: optax.GradientTransformation
    actor: optax.GradientTransformation
    temperature: optax.GradientTransformation


def make_optimizers(config: XqcConfig) -> Optimizers:
    """The optimisers: actor and temperature move once in `policy_every` updates, so theirs fall as much in fewer."""
    slow = annealed_adam(config, config.policy_every)
    return Optimizers(annealed_adam(config), slow, slow)


def annealed_adam(config: XqcConfig, every: int = 1) -> optax.GradientTransformation:
    """Adam with a step size that falls along a straight line, for what moves once in `every` updates."""
    # Resolved before an agent learns. One that is loaded to act may have settings in which it is not.
    n_steps = 0 if config.annealing_updates == "auto" else config.annealing_updates // every
    if n_steps == 0:
        return optax.adam(config.learning_rate)
    return optax.adam(optax.linear_schedule(config.learning_rate, config.final_learning_rate, n_steps))


def scaled(config: XqcConfig, rewards: Array, scale: RewardScale) -> Array:
    """Rewards in the units of the critics' values."""
    if isinstance(config.reward_scale, str):
        return rewards / size_of_returns(scale, config.value_limit)
    return rewards / config.reward_scale


def mean_value(logits: Array, atoms: Array) -> Array:
    """The mean of each distribution.  # […]"""
    return (jax.nn.softmax(logits) * atoms).sum(axis=-1)


def target_distribution(
    config: XqcConfig, state: XqcState, batch: Transition, pairs: Array, next_log_prob: Array
) -> tuple[Array, Array]:
    """The distribution that critics are fitted to, and the share of it that was clipped.  # [B, N], []

    pairs  # [2B, D + A] are (s, a) and, below, (s′, a′).
    """
    n = batch.reward.shape[0]
    logits, _ = normed_outputs(state.target_critics.nets, pairs, config.precision)  # [2, 2B, N]
    mass = jax.nn.softmax(logits[:, n:])
    first, second = (mass * atoms_of(config.value_limit, config.atoms)).sum(axis=-1)
    mass = jnp.where((first <= second)[:, None], mass[0], mass[1])
    mass = jnp.where(batch.terminal[:, None], certain_zero(config.atoms), mass)
    entropy_bonus = jnp.where(batch.terminal, 0.0, -jnp.exp(state.slow.log_temperature) * next_log_prob)
    offset = scaled(config, batch.reward, state.reward_scale) + config.discount * entropy_bonus
    projected = project(mass, offset, config.discount, config.value_limit)
    return projected.mass, projected.clipped.mean()


def critic_loss(config: XqcConfig, nets: Any, pairs: Array, target: Array) -> tuple[Array, tuple[Any, Array]]:
    """Cross-entropy of both critics at (s, a), what they have seen, and their mean value.

    pairs as in `target_distribution`; target  # [B, N]
    """
    logits, seen = normed_outputs(nets, pairs, config.precision)
    logits = logits[:, : len(target)]  # [2, B, N]
    cross_entropy = -(target * jax.nn.log_softmax(logits)).sum(axis=-1)
    value = mean_value(logits, atoms_of(config.value_limit, config.atoms))
    return cross_entropy.mean(axis=-1).sum(), (seen, value.mean())


def move_slow(
    config: XqcConfig, optimizers: Optimizers, slow: Slow, critics: NormedCritics, batch: Transition, noise: Array
) -> Slow:
    """One step of the actor up the lower critic, and of the temperature."""
    atoms, temperature = atoms_of(config.value_limit, config.atoms), jnp.exp(slow.log_temperature)

    def actor_loss(actor: NormedNet) -> tuple[Array, tuple[Seen, Array]]:
        outputs, seen = of_batch(actor, batch.obs, config.precision)
        action, log_prob = tanh_gaussian(outputs, noise)
        logits = averaged_outputs(critics, jnp.concatenate([batch.obs, action], axis=-1), config.precision)
        lower = mean_value(logits, atoms).min(axis=0)
        return (temperature * log_prob - lower).mean(), (seen, log_prob.mean())

    (loss, (seen, mean_log_prob)), gradient = jax.value_and_grad(actor_loss, has_aux=True)(slow.actor)
    change, actor_optimizer = optimizers.actor.update(gradient, slow.actor_optimizer)
    # The gradient of −log α · (log π + target entropy), by hand.
    target_entropy = ENTROPY_PER_ACTION * batch.action.shape[-1]
    temperature_change, temperature_optimizer = optimizers.temperature.update(
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


def init_state(config: XqcConfig, optimizers: Optimizers, key: Array, spec: EnvSpec) -> XqcState:
    """Nets as they begin."""
    need_continuous("xqc", spec)
    sizes = config.sizes
    actor_key, first_key, second_key = jax.random.split(key, 3)
    actor, seen = normed_init(actor_key, (spec.obs_dim, *sizes.actor, 2 * spec.action_dim))
    critic_sizes = (spec.obs_dim + spec.action_dim, *sizes.critic, config.atoms)
    nets, critics_seen = zip(*(normed_init(k, critic_sizes) for k in (first_key, second_key)), strict=True)
    critics = NormedCritics(nets, critics_seen)
    log_temperature = jnp.log(jnp.full((), config.initial_temperature, jnp.float32))
    return XqcState(
        critics=critics,
        target_critics=jax.tree.map(jnp.copy, critics),
        critic_optimizer=optimizers.critic.init(nets),
        slow=Slow(
            actor=actor,
            seen=seen,
            log_temperature=log_temperature,
            actor_optimizer=optimizers.actor.init(actor),
            temperature_optimizer=optimizers.temperature.init(log_temperature),
            actor_loss=jnp.zeros(()),
            entropy=jnp.zeros(()),
        ),
        reward_scale=init_reward_scale(),
    )


def make_xqc(config: XqcConfig) -> Agent:
    """XQC for actions in [−1, 1]."""
    optimizers = make_optimizers(config)

    def watch(state: XqcState, rewards: Array, is_last: Array) -> XqcState:
        return state._replace(reward_scale=add_rewards(state.reward_scale, rewards, is_last, config.discount))

    def noise(key: Array, batch: Transition) -> Array:
        return jax.random.normal(key, (2, *batch.action.shape))  # of the next action, of this one

    def update(state: XqcState, batch: Transition, noise: Array, number: Array | int) -> tuple[XqcState, Metrics]:
        next_outputs = of_averages(state.slow.actor, state.slow.seen, batch.next_obs, config.precision)
        next_action, next_log_prob = tanh_gaussian(next_outputs, noise[0])
        inputs = [batch.obs, batch.action], [batch.next_obs, next_action]
        pairs = jnp.concatenate([jnp.concatenate(parts, axis=-1) for parts in inputs])  # [2B, D + A]
        target, clipped = target_distribution(config, state, batch, pairs, next_log_prob)

        fit = jax.value_and_grad(partial(critic_loss, config), has_aux=True)
        (loss, (seen, mean_q)), gradient = fit(state.critics.nets, pairs, target)
        change, critic_optimizer = optimizers.critic.update(gradient, state.critic_optimizer)
        nets = both_with_unit_kernels(optax.apply_updates(state.critics.nets, change))
        critics = NormedCritics(nets, averaged(state.critics.seen, seen))

        def moved(slow: Slow) -> Slow:
            return move_slow(config, optimizers, slow, critics, batch, noise[1])

        is_due = number % config.policy_every == 0
        if isinstance(number, int):
            slow = moved(state.slow) if is_due else state.slow
        else:
            # The number is the same for all seeds: under vmap this stays a branch, and is not both sides and a select.
            slow = jax.lax.cond(is_due, moved, lambda slow: slow, state.slow)
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
        partial(init_state, config, optimizers),
        noise,
        update,
        policy,
        acting.TANH_GAUSSIAN,
        WorkingForm(stack_critics, unstack_critics),
        watch if config.reward_scale == "auto" else None,
        config.policy_every,
    )

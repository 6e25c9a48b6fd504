"""XQC: a soft actor-critic whose critics are well conditioned (Palenicek et al., 2026).

Actor and critics are perceptrons with batch normalisation and kernels of norm 1 (`nn/normed.py`). Critics give a
distribution of the value over atoms, and are fitted by cross-entropy to the projected target

    r + γ (z − α log π(a′|s′)),   z ~ the one of two target critics with the lower mean at (s′, a′).

1. (s, a) and (s′, a′) pass through a critic as one batch: both then have the same moments, which is what lets batch
   normalisation work here at all (Bhatt et al., 2024).
2. The actor climbs the lower mean of the critics, which then use their averages; it moves every third update.
3. Rewards are divided by the typical size of their discounted sums (`reward_scale.py`), so that one range of atoms
   serves every task.

`xqc_discrete.py` shares all that does not depend on the kind of actions. Deviations are numbered in
docs/explanation/agents.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.actors import acting
from diaster.actors.acting import HostPolicy
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


class Losses(NamedTuple):
    """What an update makes smaller, on one batch."""

    critic: Callable[[Any], tuple[Array, tuple[Any, Array]]]
    """Of both critics: their cross-entropy, what they have seen, and their mean value."""
    clipped: Array  # [] the share of the targets that was beyond the atoms
    actor: Callable[[Array, NormedCritics, NormedNet], tuple[Array, tuple[Seen, Array]]]
    """Of the temperature, the critics and the actor: its loss, what it has seen, and the mean of log π."""
    target_entropy: float


class Ends(NamedTuple):
    """The first and the last size of the nets."""

    actor: tuple[int, int]
    critic: tuple[int, int]


class Form(NamedTuple):
    """What depends on the kind of actions."""

    ends: Callable[[EnvSpec], Ends]
    """It refuses the other kind."""
    noise: Callable[[Array, Transition], Array]
    losses: Callable[[XqcState, Transition, Array], Losses]
    """From a state, a batch and its noise."""
    acting: HostPolicy


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


def reward_size(config: XqcConfig, scale: RewardScale) -> Array:
    """What rewards are divided by, so that they are in the units of the critics' values.  # []"""
    if isinstance(config.reward_scale, str):
        return size_of_returns(scale, config.value_limit)
    return jnp.full((), config.reward_scale)


def mean_value(logits: Array, atoms: Array) -> Array:
    """The mean of each distribution.  # […]"""
    return (jax.nn.softmax(logits) * atoms).sum(axis=-1)


def lower_of_both(mass: Array, atoms: Array) -> Array:
    """Of both critics' distributions the one with the lower mean, in each place.  # [2, …, N] → […, N]"""
    first, second = (mass * atoms).sum(axis=-1)
    return jnp.where((first <= second)[..., None], mass[0], mass[1])


def target_after(
    config: XqcConfig, state: XqcState, batch: Transition, next_mass: Array, next_entropy: Array
) -> tuple[Array, Array]:
    """The distribution that critics are fitted to, and the share of it that was clipped.  # [B, N], []

    next_mass  # [B, N] is the distribution of the value in s′, next_entropy  # [B] that of the policy there.
    """
    mass = jnp.where(batch.terminal[:, None], certain_zero(config.atoms), next_mass)
    entropy_bonus = jnp.where(batch.terminal, 0.0, jnp.exp(state.slow.log_temperature) * next_entropy)
    offset = batch.reward / reward_size(config, state.reward_scale) + config.discount * entropy_bonus
    projected = project(mass, offset, config.discount, config.value_limit)
    return projected.mass, projected.clipped.mean()


def cross_entropy(config: XqcConfig, logits: Array, target: Array) -> tuple[Array, Array]:
    """That of both critics added up, and their mean value.  logits # [2, B, N]; target # [B, N]"""
    of_each = -(target * jax.nn.log_softmax(logits)).sum(axis=-1)
    value = mean_value(logits, atoms_of(config.value_limit, config.atoms))
    return of_each.mean(axis=-1).sum(), value.mean()


def losses_of(config: XqcConfig, state: XqcState, batch: Transition, noise: Array) -> Losses:
    """With a drawn action in s′, and one in s for the actor."""
    n, atoms = batch.reward.shape[0], atoms_of(config.value_limit, config.atoms)
    next_outputs = of_averages(state.slow.actor, state.slow.seen, batch.next_obs, config.precision)
    next_action, next_log_prob = tanh_gaussian(next_outputs, noise[0])
    inputs = [batch.obs, batch.action], [batch.next_obs, next_action]
    pairs = jnp.concatenate([jnp.concatenate(parts, axis=-1) for parts in inputs])  # [2B, D + A]
    logits, _ = normed_outputs(state.target_critics.nets, pairs, config.precision)  # [2, 2B, N]
    next_mass = lower_of_both(jax.nn.softmax(logits[:, n:]), atoms)
    target, clipped = target_after(config, state, batch, next_mass, -next_log_prob)

    def critic_loss(nets: Any) -> tuple[Array, tuple[Any, Array]]:
        logits, seen = normed_outputs(nets, pairs, config.precision)
        loss, value = cross_entropy(config, logits[:, :n], target)
        return loss, (seen, value)

    def actor_loss(temperature: Array, critics: NormedCritics, actor: NormedNet) -> tuple[Array, tuple[Seen, Array]]:
        outputs, seen = of_batch(actor, batch.obs, config.precision)
        action, log_prob = tanh_gaussian(outputs, noise[1])
        logits = averaged_outputs(critics, jnp.concatenate([batch.obs, action], axis=-1), config.precision)
        lower = mean_value(logits, atoms).min(axis=0)
        return (temperature * log_prob - lower).mean(), (seen, log_prob.mean())

    return Losses(critic_loss, clipped, actor_loss, ENTROPY_PER_ACTION * batch.action.shape[-1])


def move_slow(optimizers: Optimizers, slow: Slow, critics: NormedCritics, losses: Losses) -> Slow:
    """One step of the actor up the lower critic, and of the temperature."""
    fit = jax.value_and_grad(partial(losses.actor, jnp.exp(slow.log_temperature), critics), has_aux=True)
    (loss, (seen, mean_log_prob)), gradient = fit(slow.actor)
    change, actor_optimizer = optimizers.actor.update(gradient, slow.actor_optimizer)
    # The gradient of −log α · (log π + target entropy), by hand.
    temperature_change, temperature_optimizer = optimizers.temperature.update(
        -(mean_log_prob + losses.target_entropy), slow.temperature_optimizer
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


def init_state(config: XqcConfig, optimizers: Optimizers, ends: Ends, key: Array) -> XqcState:
    """Nets as they begin."""
    sizes = config.sizes
    actor_key, first_key, second_key = jax.random.split(key, 3)
    actor, seen = normed_init(actor_key, (ends.actor[0], *sizes.actor, ends.actor[1]))
    critic_sizes = (ends.critic[0], *sizes.critic, ends.critic[1])
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


def learnt(
    config: XqcConfig, optimizers: Optimizers, state: XqcState, losses: Losses, number: Array | int
) -> tuple[XqcState, Metrics]:
    """The state after an update, and its metrics."""
    (loss, (seen, mean_q)), gradient = jax.value_and_grad(losses.critic, has_aux=True)(state.critics.nets)
    change, critic_optimizer = optimizers.critic.update(gradient, state.critic_optimizer)
    nets = both_with_unit_kernels(optax.apply_updates(state.critics.nets, change))
    critics = NormedCritics(nets, averaged(state.critics.seen, seen))

    def moved(slow: Slow) -> Slow:
        return move_slow(optimizers, slow, critics, losses)

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
        "clipped": losses.clipped,
        "reward_size": reward_size(config, state.reward_scale),
    }
    return new, metrics


def agent_for(config: XqcConfig, form: Form) -> Agent:
    """XQC for the actions of a form."""
    optimizers = make_optimizers(config)

    def init(key: Array, spec: EnvSpec) -> XqcState:
        return init_state(config, optimizers, form.ends(spec), key)

    def update(state: XqcState, batch: Transition, noise: Array, number: Array | int) -> tuple[XqcState, Metrics]:
        return learnt(config, optimizers, state, form.losses(state, batch, noise), number)

    def policy(state: XqcState) -> Acting:
        return Acting(folded(state.slow.actor, state.slow.seen), jnp.zeros(()))

    def watch(state: XqcState, rewards: Array, is_last: Array) -> XqcState:
        return state._replace(reward_scale=add_rewards(state.reward_scale, rewards, is_last, config.discount))

    return Agent(
        init,
        form.noise,
        update,
        policy,
        form.acting,
        WorkingForm(stack_critics, unstack_critics),
        watch if config.reward_scale == "auto" else None,
        config.policy_every,
    )


def make_xqc(config: XqcConfig) -> Agent:
    """XQC for actions in [−1, 1]."""

    def ends(spec: EnvSpec) -> Ends:
        need_continuous("xqc for continuous actions", spec, "make_xqc_discrete, which the agent 'xqc' stands for there")
        return Ends((spec.obs_dim, 2 * spec.action_dim), (spec.obs_dim + spec.action_dim, config.atoms))

    def noise(key: Array, batch: Transition) -> Array:
        return jax.random.normal(key, (2, *batch.action.shape))  # of the next action, of this one

    return agent_for(config, Form(ends, noise, partial(losses_of, config), acting.TANH_GAUSSIAN))

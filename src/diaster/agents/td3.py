"""TD3: twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger, 2018).

A deterministic policy π climbs the value of a critic, as in DDPG, with three remedies against values that are
too high (numbers as in the paper's section 5 and algorithm 1):

1. Clipped double Q-learning: the target takes the lesser of two target critics,

       y = r + γ · min_i Q′_i(s′, ã).

2. Target policy smoothing: ã = clip(π′(s′) + clip(ε, −c, c), −1, 1), ε ~ N(0, σ): similar actions have similar
   values.
3. Delayed updates: the actor and all targets move once in `policy_every` updates of the critics.

Deviations are numbered in docs/explanation/agents.md.
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
from diaster.agents.twins import action_values
from diaster.config import Td3Config
from diaster.nn.nets import MLP, mlp, mlp_init
from diaster.types import EnvSpec


class Slow(NamedTuple):
    """What moves once in `policy_every` updates."""

    actor: MLP
    target_actor: MLP
    target_critics: tuple[MLP, MLP]
    actor_optimizer: optax.OptState
    actor_loss: Array  # [] the last one, so that there is one to log in between


class Td3State(NamedTuple):
    """Everything TD3 carries between updates."""

    critics: tuple[MLP, MLP]
    critic_optimizer: optax.OptState
    slow: Slow


def deterministic_action(actor: MLP, obs: Array) -> Array:
    """π(s), in [−1, 1].  # [B, A]"""
    return jnp.tanh(mlp(actor, obs))


def smoothed_action(config: Td3Config, target_actor: MLP, obs: Array, noise: Array) -> Array:
    """The target policy's action with clipped noise; noise is standard normal.  # [B, A]"""
    shift = jnp.clip(config.target_noise * noise, -config.target_noise_clip, config.target_noise_clip)
    return jnp.clip(deterministic_action(target_actor, obs) + shift, -1.0, 1.0)


def bootstrapped(batch: Transition, discount: float, next_value: Array) -> Array:
    """The target of a critic: r, and the discounted value of what follows unless nothing does.  # [B]"""
    return batch.reward + discount * jnp.where(batch.terminal, 0.0, next_value)


def make_td3(config: Td3Config) -> Agent:
    """TD3 for actions in [−1, 1]."""
    optimizer = optax.adam(config.learning_rate)

    def init(key: Array, spec: EnvSpec) -> Td3State:
        need_continuous("td3", spec)
        actor_key, first_key, second_key = jax.random.split(key, 3)
        hidden = (config.hidden, config.hidden)
        actor = mlp_init(actor_key, (spec.obs_dim, *hidden, spec.action_dim))
        critic_sizes = (spec.obs_dim + spec.action_dim, *hidden, 1)
        critics = (mlp_init(first_key, critic_sizes), mlp_init(second_key, critic_sizes))
        slow = Slow(
            actor=actor,
            target_actor=jax.tree.map(jnp.copy, actor),
            target_critics=jax.tree.map(jnp.copy, critics),
            actor_optimizer=optimizer.init(actor),
            actor_loss=jnp.zeros(()),
        )
        return Td3State(critics, optimizer.init(critics), slow)

    def noise(key: Array, batch: Transition) -> Array:
        return jax.random.normal(key, batch.action.shape)  # of the target's action

    def move_slow(slow: Slow, critics: tuple[MLP, MLP], batch: Transition) -> Slow:
        """One step of the actor up the first critic, and all targets a little way after."""

        def actor_loss(actor: MLP) -> Array:
            x = jnp.concatenate([batch.obs, deterministic_action(actor, batch.obs)], axis=-1)
            return -mlp(critics[0], x)[..., 0].mean()

        loss, gradient = jax.value_and_grad(actor_loss)(slow.actor)
        change, actor_optimizer = optimizer.update(gradient, slow.actor_optimizer)
        actor = optax.apply_updates(slow.actor, change)
        return Slow(
            actor=actor,
            target_actor=optax.incremental_update(actor, slow.target_actor, config.target_rate),
            target_critics=optax.incremental_update(critics, slow.target_critics, config.target_rate),
            actor_optimizer=actor_optimizer,
            actor_loss=loss,
        )

    def update(state: Td3State, batch: Transition, noise: Array, number: Array) -> tuple[Td3State, Metrics]:
        next_action = smoothed_action(config, state.slow.target_actor, batch.next_obs, noise)
        next_value = action_values(state.slow.target_critics, batch.next_obs, next_action).min(axis=0)
        target = bootstrapped(batch, config.discount, next_value)

        def critic_loss(critics: tuple[MLP, MLP]) -> tuple[Array, Array]:
            values = action_values(critics, batch.obs, batch.action)
            return ((values - target) ** 2).mean(axis=-1).sum(), values.mean()

        (loss, mean_value), gradient = jax.value_and_grad(critic_loss, has_aux=True)(state.critics)
        change, critic_optimizer = optimizer.update(gradient, state.critic_optimizer)
        critics = optax.apply_updates(state.critics, change)

        # The number is the same for all seeds: under vmap this stays a branch, and is not both sides and a select.
        slow = jax.lax.cond(
            (number + 1) % config.policy_every == 0,
            lambda slow: move_slow(slow, critics, batch),
            lambda slow: slow,
            state.slow,
        )
        metrics = {"critic_loss": loss, "actor_loss": slow.actor_loss, "q_value": mean_value}
        return Td3State(critics, critic_optimizer, slow), metrics

    def policy(state: Td3State) -> Acting:
        return Acting(state.slow.actor, jnp.full((), config.exploration_noise))

    return Agent(init, noise, update, policy, acting.NOISY_TANH)

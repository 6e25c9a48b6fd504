"""XQC for discrete actions: critics give a distribution for each action, and the policy is categorical.

As `xqc.py`, but critics see the state alone. Every expectation over actions is a sum, as in `sac_discrete.py`, and an
update draws nothing. Distributions that are mixed are a distribution, so that the target

    r + γ (z + α H(π(·|s′))),   z ~ Σ_a π(a|s′) · the one of two target distributions with the lower mean at (s′, a)

is one, too. The actor climbs Σ_a π(a|s) · the lower mean at (s, a) + α H(π(·|s)), and the temperature α aims at
H = discrete_entropy · log n. Deviations are numbered in docs/explanation/agents.md.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from diaster.actors import acting
from diaster.agents import Agent, Transition
from diaster.agents.actions import need_discrete
from diaster.agents.categorical import atoms_of
from diaster.agents.sac_discrete import soft_value
from diaster.agents.twins import NormedCritics, averaged_outputs, normed_outputs
from diaster.agents.xqc import (
    Ends,
    Form,
    Losses,
    XqcState,
    agent_for,
    cross_entropy,
    lower_of_both,
    mean_value,
    target_after,
)
from diaster.config import XqcConfig
from diaster.nn.normed import NormedNet, Seen, of_averages, of_batch
from diaster.types import EnvSpec


def per_action(outputs: Array, n_actions: int) -> Array:
    """A critic's outputs as the logits of each action.  # [… , A·N] → […, A, N]"""
    return outputs.reshape(*outputs.shape[:-1], n_actions, -1)


def target_distribution(config: XqcConfig, state: XqcState, batch: Transition, both: Array) -> tuple[Array, Array]:
    """The distribution that critics are fitted to, and the share of it that was clipped.  # [B, N], []

    both  # [2B, D] are s and, below, s′.
    """
    n, n_actions = batch.action.shape
    log_prob = jax.nn.log_softmax(of_averages(state.slow.actor, state.slow.seen, batch.next_obs, config.precision))
    probability = jnp.exp(log_prob)  # [B, A]
    outputs, _ = normed_outputs(state.target_critics.nets, both, config.precision)
    of_each = jax.nn.softmax(per_action(outputs[:, n:], n_actions))  # [2, B, A, N]
    lower = lower_of_both(of_each, atoms_of(config.value_limit, config.atoms))
    mixture = (probability[..., None] * lower).sum(axis=-2)  # [B, N]
    return target_after(config, state, batch, mixture, -(probability * log_prob).sum(axis=-1))


def losses_of(config: XqcConfig, state: XqcState, batch: Transition, noise: Array) -> Losses:
    """With all actions in s and s′."""
    n, n_actions = batch.action.shape
    both = jnp.concatenate([batch.obs, batch.next_obs])  # [2B, D]
    target, clipped = target_distribution(config, state, batch, both)

    def critic_loss(nets: Any) -> tuple[Array, tuple[Any, Array]]:
        outputs, seen = normed_outputs(nets, both, config.precision)
        taken = (per_action(outputs[:, :n], n_actions) * batch.action[..., None]).sum(axis=-2)  # [2, B, N]
        loss, value = cross_entropy(config, taken, target)
        return loss, (seen, value)

    def actor_loss(temperature: Array, critics: NormedCritics, actor: NormedNet) -> tuple[Array, tuple[Seen, Array]]:
        logits, seen = of_batch(actor, batch.obs, config.precision)
        outputs = per_action(averaged_outputs(critics, batch.obs, config.precision), n_actions)
        lower = mean_value(outputs, atoms_of(config.value_limit, config.atoms)).min(axis=0)  # [B, A]
        value, entropy = soft_value(logits, lower, temperature)
        return -value.mean(), (seen, -entropy.mean())

    return Losses(critic_loss, clipped, actor_loss, config.discrete_entropy * math.log(n_actions))


def make_xqc_discrete(config: XqcConfig) -> Agent:
    """XQC for one-hot actions."""

    def ends(spec: EnvSpec) -> Ends:
        need_discrete("xqc for discrete actions", spec, "make_xqc, which the agent 'xqc' stands for there")
        return Ends((spec.obs_dim, spec.action_dim), (spec.obs_dim, spec.action_dim * config.atoms))

    def noise(key: Array, batch: Transition) -> Array:
        return jnp.zeros((0,))  # an update draws nothing

    return agent_for(config, Form(ends, noise, partial(losses_of, config), acting.CATEGORICAL))

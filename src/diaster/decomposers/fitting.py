"""What every method that fits nets has in common: their inputs, their optimiser, their running average."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.decomposers.statistics import Moments, normalize
from diaster.replay.store import Steps

Net = TypeVar("Net", bound=Any)


class Average(NamedTuple):
    """A running average of nets, with what it needs to go on after the optimiser has begun anew (`--from`)."""

    net: Any
    updates: Array  # []


def net_inputs(moments: Moments, steps: Steps, normalized: bool, next_obs: bool) -> Array:
    """What nets see of steps: [s, a], or [s, a, s − s′].  # […, I]"""
    obs = normalize(moments, steps.obs) if normalized else steps.obs
    if not next_obs:
        return jnp.concatenate([obs, steps.action], axis=-1)
    following = normalize(moments, steps.next_obs) if normalized else steps.next_obs
    return jnp.concatenate([obs, steps.action, obs - following], axis=-1)


def n_inputs(obs_dim: int, action_dim: int, next_obs: bool) -> int:
    """I."""
    return obs_dim * (2 if next_obs else 1) + action_dim


def adam(learning_rate: float, weight_decay: float) -> optax.GradientTransformation:
    """Adam; with a weight decay, AdamW."""
    if weight_decay == 0.0:
        return optax.adam(learning_rate)
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def follow(mean: Net, net: Net, updates: Array, averaging: float) -> Net:
    """A running average that forgets its start: over the last tenth of all nets so far, until these are many."""
    keep = jnp.minimum(averaging, updates / (updates + 10.0))
    followed: Net = jax.tree.map(lambda slow, fast: fast + keep * (slow - fast), mean, net)
    return followed


def init_average(net: Any) -> Average:
    """Of the net as it begins."""
    copied = jax.tree.map(jnp.copy, net)  # no array twice: a state may be donated
    return Average(copied, jnp.zeros((), jnp.int32))


def with_net(average: Average, net: Any, averaging: float) -> Average:
    """The average with one more net."""
    return Average(follow(average.net, net, average.updates, averaging), average.updates + 1)

"""Decomposers and agents of no use but to see what is done with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Transition
from diaster.decomposers import Decomposer
from diaster.nn.nets import Linear
from diaster.types import EnvSpec


class Counted(NamedTuple):
    updates: Array  # []


def make_counting(**functions: Any) -> Decomposer:
    """A method whose every label is the number of updates it had when the label was made; its parts can be replaced."""
    parts: dict[str, Any] = {
        "init": lambda key, spec: Counted(jnp.zeros((), jnp.int32)),
        "ingest": lambda state, store, block: state,
        "reward": lambda state, steps: jnp.zeros(steps.time.shape),
        "scale": lambda state: jnp.ones(()),
        "draw": lambda state, store, key: (),
        "update": lambda state, batch: (Counted(state.updates + 1), {}),
        "label": lambda state, steps: jnp.full(steps.time.shape, state.updates, jnp.float32),
    }
    return Decomposer(**{**parts, **functions})


class LastBatch(NamedTuple):
    batch: Transition
    number: Array  # [] of the update
    policy: tuple[Linear]


def make_remembering(batch_size: int) -> Agent:
    """An agent that learns nothing and keeps the last batch it was given; its policy is the same for ever."""

    def init(key: Array, spec: EnvSpec) -> LastBatch:
        obs, action, number = (jnp.zeros((batch_size, *n)) for n in ((spec.obs_dim,), (spec.action_dim,), ()))
        batch = Transition(obs, action, number, jnp.copy(obs), number > 0)
        layer = Linear(jnp.zeros((spec.obs_dim, 2 * spec.action_dim)), jnp.zeros(2 * spec.action_dim))
        return LastBatch(batch, jnp.zeros((), jnp.int32), (layer,))

    return Agent(
        init=init,
        noise=lambda key, batch: jnp.zeros(()),
        update=lambda state, batch, noise, number: (
            state._replace(batch=batch, number=number),
            {"number": number.astype(jnp.float32)},
        ),
        policy=lambda state: Acting(state.policy, jnp.zeros(())),
        acting=acting.TANH_GAUSSIAN,
    )

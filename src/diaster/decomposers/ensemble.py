"""Several decomposers of one kind in the place of one: r̂ is their mean, and where they differ it is a guess.

Members begin with other nets and draw batches of their own; they see the same episodes. What they say of a step that
returns determine agrees, what each of them made up does not. So a policy can be kept from chasing guesses:

    r̂ = mean − κ · deviation over the members
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.decomposers import Decomposer, Metrics
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_steps, gather_numbered
from diaster.types import EnvSpec

PROBED = 32  # stored steps on which members are compared in each update
LEAST = 1e-8


class Batches(NamedTuple):
    """A batch for each member, and stored steps that all of them are asked about."""

    of_members: Any
    probed: Steps


def make_ensemble(member: Decomposer, n: int, careful: float) -> Decomposer:
    """n members of a kind. Their state is a member's, with the members as the leading axis of every array."""
    draw_one, update_one = member.draw, member.update
    assert draw_one is not None and update_one is not None, "nothing is fitted, so members would not differ"
    draw_of, update_of = draw_one, update_one

    def init(key: Array, spec: EnvSpec) -> Any:
        return jax.vmap(lambda key: member.init(key, spec))(jax.random.split(key, n))

    def ingest(state: Any, store: EpisodeStore, block: EpisodeBlock) -> Any:
        return jax.vmap(lambda state: member.ingest(state, store, block))(state)

    def scale(state: Any) -> Array:
        return member.scale(jax.tree.map(lambda leaf: leaf[0], state))  # all have seen the same returns

    def draw(state: Any, store: EpisodeStore, key: Array) -> Batches:
        own_key, probe_key = jax.random.split(key)
        of_members = jax.vmap(lambda state, key: draw_of(state, store, key))(state, jax.random.split(own_key, n))
        return Batches(of_members, gather_numbered(store, draw_steps(store, probe_key, PROBED)))

    def update(state: Any, batches: Batches) -> tuple[Any, Metrics]:
        state, metrics = jax.vmap(update_of)(state, batches.of_members)
        metrics = {name: values.mean() for name, values in metrics.items()}
        if member.label is None:
            metrics["disagreement"] = disagreement(jax.vmap(member.reward, (0, None))(state, batches.probed))
        return state, metrics

    def reward(state: Any, steps: Steps) -> Array:
        return cautious_mean(jax.vmap(member.reward, (0, None))(state, steps), careful)

    def label(state: Any, steps: Steps) -> Array:
        assert member.label is not None
        return cautious_mean(jax.vmap(member.label, (0, None))(state, steps), careful)

    return member._replace(
        init=init,
        ingest=ingest,
        reward=reward,
        scale=scale,
        draw=draw,
        update=update,
        label=None if member.label is None else label,
    )


def cautious_mean(rewards: Array, careful: float) -> Array:
    """The members' mean, less some of their deviation. rewards  # [M, …]; returns  # […]"""
    mean = rewards.mean(axis=0)
    return mean if careful == 0.0 else mean - careful * rewards.std(axis=0)


def disagreement(rewards: Array) -> Array:
    """The members' deviation, relative to the size of their mean. rewards  # [M, K]; returns  # []"""
    power = (rewards.mean(axis=0) ** 2).mean()
    return jnp.sqrt(rewards.var(axis=0).mean() / jnp.maximum(power, LEAST))

"""Methods and agents of no use but to see what is done with them.

A test puts one in the place of another by its name: `METHODS["uniform"]._replace(factory="toy_methods:make_…")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.actors import acting
from diaster.agents import Acting, Agent, Transition
from diaster.config import DenseConfig
from diaster.config.fitted import NO_UPDATES, UpdateCost
from diaster.config.limits import Positive
from diaster.config.methods import MethodName
from diaster.decomposers import Decomposer
from diaster.decomposers.controls import make_dense
from diaster.nn.nets import Linear, mlp_init
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
        "saved": Counted._fields,
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


class Watched(NamedTuple):
    state: Any
    rewards: Array  # [T, W]
    is_last: Array  # [T, W]
    calls: Array  # []


def make_watching(batch_size: int, length: int, width: int) -> Agent:
    """An agent that learns nothing and keeps what it was shown last."""
    inner = make_remembering(batch_size)

    def init(key: Array, spec: EnvSpec) -> Watched:
        zeros = jnp.zeros((length, width))
        return Watched(inner.init(key, spec), zeros, zeros > 0.0, jnp.zeros((), jnp.int32))

    def update(state: Watched, *given: Any) -> tuple[Watched, Any]:
        new, metrics = inner.update(state.state, *given)
        return state._replace(state=new), metrics

    return inner._replace(
        init=init,
        update=update,
        policy=lambda state: inner.policy(state.state),
        watch=lambda state, rewards, is_last: Watched(state.state, rewards, is_last, state.calls + 1),
    )


def make_counting_of(settings: Any, horizon: int) -> Decomposer:
    """`make_counting` in the place of a method."""
    return make_counting()


def make_remembering_of(settings: Any) -> Agent:
    """`make_remembering` in the place of an agent."""
    return make_remembering(settings.batch_size)


def make_counting_agent(settings: Any) -> Agent:
    """Its policy stays as it is, and counts the updates it was given."""
    return Agent(
        init=lambda key, spec: Acting(mlp_init(key, (spec.obs_dim, 2 * spec.action_dim)), jnp.zeros(())),
        noise=lambda key, batch: jnp.zeros(()),
        update=lambda state, batch, noise, number: (
            state._replace(exploration=state.exploration + 1.0),
            {"q_value": batch.reward.mean()},
        ),
        policy=lambda state: state,
        acting=acting.TANH_GAUSSIAN,
    )


class Factor(NamedTuple):
    factor: Array  # []


def read_off(factor: float) -> Decomposer:
    """Knows the reward of ToyPlain-v0: an entry of the observation that a step leads to, times a factor."""
    return Decomposer(
        init=lambda key, spec: Factor(jnp.full((), factor)),
        ingest=lambda state, store, block: state,
        reward=lambda state, steps: steps.next_obs[..., 0] * state.factor,
        scale=lambda state: jnp.ones(()),
        saved=Factor._fields,
        needs_next_obs=True,
    )


def make_true_rewards(settings: Any, horizon: int) -> Decomposer:
    return read_off(1.0)


def make_rewards_a_thousandth_larger(settings: Any, horizon: int) -> Decomposer:
    return read_off(1.001)


class Learnt(NamedTuple):
    factor: Array  # []
    episodes: Array  # [] that are needed


def make_true_rewards_at_last(settings: Any, horizon: int) -> Decomposer:
    """Gives no rewards before ten episodes, and the true ones from there on; some seeds know them from the start."""

    def init(key: Array, spec: EnvSpec) -> Learnt:
        return Learnt(jnp.zeros(()), jnp.where(jax.random.bernoulli(key), 10, 1))

    def ingest(state: Learnt, store: Any, block: Any) -> Learnt:
        return state._replace(factor=jnp.where(store.n_episodes >= state.episodes, 1.0, state.factor))

    return read_off(1.0)._replace(init=init, ingest=ingest, saved=Learnt._fields)


def make_dense_in_disguise(settings: Any, horizon: int) -> Decomposer:
    """Wants the hidden rewards, whatever the name it goes by."""
    return make_dense(DenseConfig(return_scale=1.0), horizon)


@dataclass(frozen=True)
class ToySettings:
    """A method as somebody outside of the package would add it."""

    name: MethodName = "toy"
    """How returns are decomposed."""
    factor: Positive = 1.0
    """What rewards are multiplied by."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1

    def cost(self, horizon: int) -> UpdateCost:
        """There are no updates."""
        return NO_UPDATES


def make_toy(settings: ToySettings, horizon: int) -> Decomposer:
    return read_off(settings.factor)

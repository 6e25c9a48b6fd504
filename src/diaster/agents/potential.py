"""The same returns with less variance: what a potential of the state explains of rewards is taken out of them.

Rewards of steps are not determined by the returns of episodes. With any function P of the state that is 0 where an
episode begins and where it terminates,

    r + P(s′) − P(s)

has the same sum over an episode. An agent that looks at an endless sum would not see a difference. One that discounts
does: it sees the next hundred steps, and what moves to and fro within them hides what they add up to. A swimmer is paid
for the speed of its nose, most of which is the nose being moved by the joints. So of all these rewards an agent learns
from those that vary least inside episodes, where that makes all the difference: where P leaves less than a fifth of
the variance. Where it leaves more, runs show that rewards are better taken as they are.

P is linear in random cosines of the normalised state and in the state itself, and is fitted by ridge regression on
stretches of stored steps, anew before each chunk of updates: rewards and the states that are visited both change.
At a time limit nothing ends for the agent, whose values go on there, and P(s′) stays what it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.agents import Acting, Agent, Metrics, Transition, WorkingForm
from diaster.types import EnvSpec

N_COSINES = 256
TOGETHER = 2  # numbers of a state that a cosine is of: the speed of a part of a body depends on a few at a time
FREQUENCY = 1.0  # of cosines, for a state of typical size: less than one period within it
STRENGTH = 1e-3  # of the ridge, for features of size 1
MOST_KEPT = 0.2  # of the variance of rewards; where a potential leaves more, none is used
LEAST_STEPS = 4  # stored, for each feature; with hardly more steps than features P would explain any rewards
CLIP = 10.0  # deviations; further away the potential is flat
LEAST = 1e-8  # of what is divided by
LEAST_DEVIATION = 1e-4  # of an observation: one that never moves says nothing
EXACT = jax.lax.Precision.HIGHEST  # a GPU would keep 11 bits of the factors


class Potential(NamedTuple):
    """P, and the states that it was fitted to."""

    frequencies: Array  # [D, N] drawn once
    phases: Array  # [N]
    weight: Array  # [F] of features, F = N + D
    mean: Array  # [D] of observations
    variance: Array  # [D]
    first: Array  # [F] features where an episode begins
    kept: Array  # [] share of the rewards' variance inside stretches that P leaves


def init_potential(key: Array, obs_dim: int) -> Potential:
    """P = 0."""
    frequency_key, choice_key, phase_key = jax.random.split(key, 3)
    n, together = N_COSINES + obs_dim, min(TOGETHER, obs_dim)
    rank = jax.random.uniform(choice_key, (obs_dim, N_COSINES)).argsort(axis=0).argsort(axis=0)
    frequencies = jax.random.normal(frequency_key, (obs_dim, N_COSINES)) * FREQUENCY / math.sqrt(together)
    return Potential(
        frequencies=jnp.where(rank < together, frequencies, 0.0),
        phases=jax.random.uniform(phase_key, (N_COSINES,), maxval=2.0 * math.pi),
        weight=jnp.zeros(n),
        mean=jnp.zeros(obs_dim),
        variance=jnp.ones(obs_dim),
        first=jnp.zeros(n),
        kept=jnp.ones(()),
    )


def features_of(potential: Potential, obs: Array) -> Array:
    """What P is linear in.  # […, F]"""
    deviation = jnp.sqrt(jnp.maximum(potential.variance, LEAST_DEVIATION**2))
    scaled = jnp.clip((obs - potential.mean) / deviation, -CLIP, CLIP)
    angles = jnp.matmul(scaled, potential.frequencies, precision=EXACT) + potential.phases
    return jnp.concatenate([jnp.cos(angles), scaled], axis=-1)


def changes_of(potential: Potential, steps: Transition) -> Array:
    """What features gain in steps; where an episode terminates they are what they were at its beginning.  # […, F]"""
    after = jnp.where(steps.terminal[..., None], potential.first, features_of(potential, steps.next_obs))
    return after - features_of(potential, steps.obs)


def gain(potential: Potential, steps: Transition) -> Array:
    """P(s′) − P(s) of steps.  # […]"""

    def of_features() -> Array:
        return jnp.matmul(changes_of(potential, steps), potential.weight, precision=EXACT)

    # Where none is used, cosines would only take time. (Of several seeds both sides are computed: a GPU has the time.)
    is_used = (potential.weight != 0.0).any()
    gained: Array = jax.lax.cond(is_used, of_features, lambda: jnp.zeros_like(steps.reward))
    return gained


def fitted(potential: Potential, steps: Transition, first_obs: Array, n_stored: Array | int) -> Potential:
    """P for rewards as they are now, from stretches of steps  # [T, W]  and first observations  # [M, D]

    Rewards are seen from their mean over a stretch: that some episodes are better than others is not P's to explain.
    Stretches overlap, so it is the number of stored steps that says how many different ones there can be.
    """
    potential = potential._replace(mean=steps.obs.mean(axis=(0, 1)), variance=steps.obs.var(axis=(0, 1)))
    potential = potential._replace(first=features_of(potential, first_obs).mean(axis=0))
    x = changes_of(potential, steps).reshape(-1, potential.weight.shape[0])  # [TW, F]
    y = (steps.reward - steps.reward.mean(axis=0)).reshape(-1)
    size = jnp.sqrt((x**2).mean(axis=0)) + LEAST
    x = x / size
    ridge = jnp.matmul(x.T, x, precision=EXACT) / len(y) + STRENGTH * jnp.eye(len(size))
    weight = -jax.scipy.linalg.solve(ridge, jnp.matmul(y, x, precision=EXACT) / len(y), assume_a="pos")
    left = y + jnp.matmul(x, weight, precision=EXACT)
    kept = (left**2).mean() / jnp.maximum((y**2).mean(), LEAST**2)
    kept = jnp.where(jnp.isfinite(kept), kept, 1.0)  # the regression can fail where states hardly differ
    is_used = (kept < MOST_KEPT) & (n_stored >= LEAST_STEPS * len(size))
    return potential._replace(weight=jnp.where(is_used, weight / size, 0.0), kept=kept)


class Shaped(NamedTuple):
    """An agent's state, and the potential that its rewards are seen through."""

    agent: Any
    potential: Potential


def with_potential(agent: Agent) -> Agent:
    """The agent, learning from rewards that vary least."""

    def init(key: Array, spec: EnvSpec) -> Shaped:
        return Shaped(agent.init(key, spec), init_potential(jax.random.fold_in(key, 11), spec.obs_dim))

    def update(state: Shaped, batch: Transition, noise: Array, number: Any) -> tuple[Shaped, Metrics]:
        new, metrics = agent.update(state.agent, batch, noise, number)
        return state._replace(agent=new), metrics | {"variance_kept": state.potential.kept}

    def policy(state: Shaped) -> Acting:
        return agent.policy(state.agent)

    def watch(state: Shaped, rewards: Array, is_last: Array) -> Shaped:
        assert agent.watch is not None
        return state._replace(agent=agent.watch(state.agent, rewards, is_last))

    def survey(state: Shaped, steps: Transition, first_obs: Array, n_stored: Array) -> Shaped:
        return state._replace(potential=fitted(state.potential, steps, first_obs, n_stored))

    def rewards(state: Shaped, steps: Transition) -> Array:
        return steps.reward + gain(state.potential, steps)

    form = agent.working_form
    return agent._replace(
        init=init,
        update=update,
        policy=policy,
        working_form=None
        if form is None
        else WorkingForm(
            lambda state: state._replace(agent=form.pack(state.agent)),
            lambda state: state._replace(agent=form.unpack(state.agent)),
        ),
        watch=None if agent.watch is None else watch,
        survey=survey,
        rewards=rewards,
    )

"""Critics stacked into one net learn what two separate ones do."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit
from small_agents import OBS, continuous_spec, discrete_spec

from diaster.agents import Transition
from diaster.agents.sac import make_sac
from diaster.agents.twins import (
    StackedCritics,
    action_values,
    averaged_outputs,
    both_with_unit_kernels,
    normed_outputs,
    stack_critics,
    unstack_critics,
)
from diaster.agents.xqc import make_xqc
from diaster.agents.xqc_discrete import make_xqc_discrete
from diaster.config import SacConfig, XqcConfig

NORMED = XqcConfig(hidden=8, actor_hidden=8, layers=2, atoms=11, annealing_updates=0, policy_every=2)
AGENTS = {
    "sac": make_sac(SacConfig(hidden=8)),
    "sac, clipped": make_sac(SacConfig(hidden=8, gradient_clip=0.5)),
    "xqc": make_xqc(NORMED),
    "xqc, annealed": make_xqc(dataclasses.replace(NORMED, annealing_updates=10)),
    "xqc, discrete": make_xqc_discrete(NORMED),
}
SPECS = {name: discrete_spec(3) if "discrete" in name else continuous_spec(3) for name in AGENTS}


def batch(seed: int, is_discrete: bool = False) -> Transition:
    keys = jax.random.split(jax.random.key(seed), 4)
    continuous = jax.random.uniform(keys[1], (16, 3), minval=-1.0)
    return Transition(
        obs=jax.random.normal(keys[0], (16, OBS)),
        action=jax.nn.one_hot(continuous.argmax(axis=-1), 3) if is_discrete else continuous,
        reward=jax.random.normal(keys[2], (16,)),
        next_obs=jax.random.normal(keys[3], (16, OBS)),
        terminal=jnp.arange(16) % 5 == 0,
    )


@pytest.mark.parametrize("name", AGENTS)
def test_an_update_of_stacked_critics_is_one_of_separate_critics(name: str) -> None:
    agent = AGENTS[name]
    assert agent.working_form is not None
    plain = agent.init(jax.random.key(0), SPECS[name])
    packed, update = agent.working_form.pack(plain), jit(agent.update)
    for number in range(3):
        given = batch(number, SPECS[name].discrete)
        noise = agent.noise(jax.random.key(number), given)
        plain, expected = update(plain, given, noise, jnp.int32(number))
        packed, found = update(packed, given, noise, jnp.int32(number))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)
    unpacked = agent.working_form.unpack(packed)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), unpacked, plain)


# The critics, their targets, and both moments of their optimiser; of normed ones also what each pair has seen.
@pytest.mark.parametrize(
    ("name", "n_stacks"), [("sac", 4), ("sac, clipped", 4), ("xqc", 6), ("xqc, annealed", 6), ("xqc, discrete", 6)]
)
def test_stacking_finds_critics_everywhere_and_the_way_back_changes_no_bit(name: str, n_stacks: int) -> None:
    state = AGENTS[name].init(jax.random.key(0), SPECS[name])
    stacked = stack_critics(state)
    is_stack = partial(jax.tree.leaves, is_leaf=lambda part: isinstance(part, StackedCritics))
    assert sum(isinstance(part, StackedCritics) for part in is_stack(stacked)) == n_stacks
    back = unstack_critics(stacked)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


@pytest.mark.parametrize("layers", [1, 2])
def test_what_an_actor_has_seen_is_not_taken_for_that_of_two_critics(layers: int) -> None:
    # With one layer a net has seen two moments, as a pair has.
    state = make_xqc(dataclasses.replace(NORMED, layers=layers)).init(jax.random.key(0), SPECS["xqc"])
    stacked = stack_critics(state)
    for one, other in ((stacked.slow, state.slow), (stacked.reward_scale, state.reward_scale)):
        assert jax.tree.structure(one) == jax.tree.structure(other)
    assert isinstance(stacked.critics.seen, StackedCritics)
    jax.tree.map(np.testing.assert_array_equal, unstack_critics(stacked), state)


def test_values_of_stacked_critics_are_those_of_each() -> None:
    state, one = make_sac(SacConfig(hidden=8)).init(jax.random.key(1), SPECS["sac"]), batch(7)
    separate = action_values(state.critics, one.obs, one.action)
    together = action_values(stack_critics(state.critics), one.obs, one.action)
    assert together.shape == (2, 16)
    np.testing.assert_allclose(together, separate, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(separate[0] - separate[1])).max() > 0.01


def test_outputs_and_kernels_of_stacked_normed_critics_are_those_of_each() -> None:
    critics, x = (
        AGENTS["xqc"].init(jax.random.key(1), SPECS["xqc"]).critics,
        jax.random.normal(jax.random.key(2), (9, 5)),
    )
    stacked = stack_critics(critics)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    separate, seen = normed_outputs(critics.nets, x, "float32")
    together, seen_together = normed_outputs(stacked.nets, x, "float32")
    close(together, separate)
    jax.tree.map(close, unstack_critics(seen_together), seen)
    close(averaged_outputs(stacked, x, "float32"), averaged_outputs(critics, x, "float32"))
    grown = jax.tree.map(lambda leaf: 2.0 * leaf, (critics.nets, stacked.nets))
    jax.tree.map(close, unstack_critics(both_with_unit_kernels(grown[1])), both_with_unit_kernels(grown[0]))
    assert np.abs(np.asarray(separate[0] - separate[1])).max() > 0.01

"""Critics stacked into one net learn what two separate ones do."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit
from small_agents import continuous_spec

from diaster.agents import Transition
from diaster.agents.sac import make_sac
from diaster.agents.twins import StackedCritics, action_values, stack_critics, unstack_critics
from diaster.config import SacConfig

SPEC = continuous_spec(3)


def batch(seed: int) -> Transition:
    keys = jax.random.split(jax.random.key(seed), 4)
    return Transition(
        obs=jax.random.normal(keys[0], (16, SPEC.obs_dim)),
        action=jax.random.uniform(keys[1], (16, SPEC.action_dim), minval=-1.0),
        reward=jax.random.normal(keys[2], (16,)),
        next_obs=jax.random.normal(keys[3], (16, SPEC.obs_dim)),
        terminal=jnp.arange(16) % 5 == 0,
    )


@pytest.mark.parametrize("gradient_clip", [0.0, 0.5])
def test_an_update_of_stacked_critics_is_one_of_separate_critics(gradient_clip: float) -> None:
    agent = make_sac(SacConfig(hidden=8, gradient_clip=gradient_clip))
    assert agent.working_form is not None
    plain = agent.init(jax.random.key(0), SPEC)
    packed, update = agent.working_form.pack(plain), jit(agent.update)
    for number in range(3):
        noise = agent.noise(jax.random.key(number), batch(number))
        plain, expected = update(plain, batch(number), noise, number)
        packed, found = update(packed, batch(number), noise, number)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)
    unpacked = agent.working_form.unpack(packed)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), unpacked, plain)


def test_stacking_finds_critics_everywhere_and_the_way_back_changes_no_bit() -> None:
    state = make_sac(SacConfig(hidden=8)).init(jax.random.key(0), SPEC)
    stacked = stack_critics(state)
    is_stack = partial(jax.tree.leaves, is_leaf=lambda part: isinstance(part, StackedCritics))
    # The critics, their targets, and both moments of their optimiser.
    assert sum(isinstance(part, StackedCritics) for part in is_stack(stacked)) == 4
    back = unstack_critics(stacked)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_values_of_stacked_critics_are_those_of_each() -> None:
    state, one = make_sac(SacConfig(hidden=8)).init(jax.random.key(1), SPEC), batch(7)
    separate = action_values(state.critics, one.obs, one.action)
    together = action_values(stack_critics(state.critics), one.obs, one.action)
    assert together.shape == (2, 16)
    np.testing.assert_allclose(together, separate, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(separate[0] - separate[1])).max() > 0.01

"""Tests against the real Stable-Baselines3 and SBX: `make sb3-test` runs them, in an environment of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from diaster.config import METHODS


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a method with r̂ = 1000 + the first number of the observation + 10 for each update so far.

    Its scale is 2, and its schedule an update for every environment step. No environment gives such rewards.
    """
    from toy_methods import make_counting

    def reward(state: Any, steps: Any) -> jax.Array:
        return 1000.0 + steps.obs[..., 0] + 10.0 * state.updates

    def make(settings: Any, horizon: int) -> Any:
        return make_counting(label=None, reward=reward, scale=lambda state: jnp.full((), 2.0))

    monkeypatch.setattr("toy_methods.make_given", make, raising=False)
    monkeypatch.setitem(METHODS, "rrd", METHODS["rrd"]._replace(factory="toy_methods:make_given"))
    return "rrd"

"""The hidden reward of a step is what the environment gave, whatever its `info` says."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from diaster.envs.delayed import TRUE_REWARD, DelayedReward


class Boastful(gym.Env[Any, Any]):
    """Pays 1 for each of three steps, and tells of another reward under the name that the wrapper uses."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {TRUE_REWARD: "a hundred"}


def test_an_environments_own_true_reward_does_not_override_the_wrappers() -> None:
    env = DelayedReward(Boastful())
    env.reset(seed=0)
    seen = [env.step(np.zeros(1)) for _ in range(3)]
    assert [info[TRUE_REWARD] for *_, info in seen] == [1.0, 1.0, 1.0]
    assert [reward for _, reward, *_ in seen] == pytest.approx([0.0, 0.0, 3.0])

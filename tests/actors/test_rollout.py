"""What crosses the boundary from an environment is copied, checked, and never passed on where it is bad."""

from __future__ import annotations

import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.actors.collector import Collector
from diaster.actors.rollout import Rollout
from diaster.envs.delayed import DelayedReward
from diaster.envs.making import describe_env
from diaster.errors import EnvironmentFault
from diaster.signals import Interruption
from diaster.types import Episode

STEPS = 4


class InPlace(gym.Env[Any, Any]):
    """Counts its steps in one array that it hands out again and again; it writes into the actions that it is given."""

    action_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, dtype: Any = np.float32, is_dict: bool = False) -> None:
        box = spaces.Box(-100.0, 100.0, (3,), dtype)
        self.observation_space = spaces.Dict({"a": box}) if is_dict else box
        self._obs = np.zeros(3, dtype)
        self._shown: Any = {"a": self._obs} if is_dict else self._obs
        self._info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs[:] = 0.0
        return self._shown, self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._obs += 1.0
        action[...] = 77.0
        self._info["x_position"] = float(self._obs[0])
        return self._shown, float(self._obs[0]), bool(self._obs[0] == STEPS), False, self._info


def made(dtype: Any = np.float32, is_dict: bool = False) -> Any:
    env: Any = InPlace(dtype, is_dict)
    return DelayedReward(gym.wrappers.FlattenObservation(env) if is_dict else env)


def spec_of(env: Any) -> Any:
    return describe_env(env, "InPlace-v0", STEPS)


@pytest.mark.parametrize(("dtype", "is_dict"), [(np.float32, False), (np.float64, False), (np.float32, True)])
def test_an_environment_that_updates_its_arrays_in_place_has_every_observation_and_action_kept(
    dtype: Any, is_dict: bool
) -> None:
    collector = Collector(lambda: made(dtype, is_dict), spec_of(made(dtype, is_dict)), TANH_GAUSSIAN, seed=0)
    first, second = collector.collect(None, 0, 2 * STEPS)
    for episode in (first, second):
        np.testing.assert_array_equal(episode.obs[:, 0], np.arange(STEPS + 1))
        assert np.abs(episode.action).max() <= 1.0
        assert episode.episode_return == sum(range(1, STEPS + 1))
    assert not np.array_equal(first.action, second.action)
    collector.collect(None, 1, 2)
    state = collector.state()
    np.testing.assert_array_equal(state.obs[:, 0], [0.0, 1.0, 2.0])


def test_info_that_an_environment_updates_in_place_is_that_of_each_step() -> None:
    rollout = Rollout(made, spec_of(made()), "a test's")
    rollout.reset(0)
    infos = []
    for _ in range(STEPS):
        rollout.step(np.zeros(2, np.float32))
        infos.append(rollout.info)
    assert [info["x_position"] for info in infos] == [1.0, 2.0, 3.0, 4.0]


class Ends(InPlace):
    """Raises something at its second step."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._obs[0] == 1.0:
            raise self.error
        return super().step(action)


def outcome(env: Any) -> Episode | None:
    rollout = Rollout(lambda: DelayedReward(env), spec_of(made()), "a test's")
    rollout.reset(0)
    rollout.step(np.zeros(2, np.float32))
    return rollout.step(np.zeros(2, np.float32))[1]


def test_an_environment_that_ends_the_interpreter_has_a_fault() -> None:
    for error in (SystemExit(0), SystemExit("bye"), GeneratorExit()):
        with pytest.raises(EnvironmentFault, match=f"raised {type(error).__name__}"):
            outcome(Ends(error))


def test_an_interrupt_that_an_environment_raises_itself_is_a_fault_and_one_of_the_keyboard_is_not() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            outcome(Ends(KeyboardInterrupt()))
        # While a run trains, Ctrl-C raises nothing.
        with Interruption(), pytest.raises(EnvironmentFault, match="raised KeyboardInterrupt"):
            outcome(Ends(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, before)


class Pays(InPlace):
    """Pays a reward of any kind at its second step."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        is_second = obs[0] == 2.0
        return obs, self.reward if is_second else 0.0, bool(is_second or terminated), truncated, info


def test_rewards_of_one_number_are_taken_whatever_their_shape() -> None:
    for reward in (3.0, 3, np.float32(3.0), np.array(3.0), np.array([3.0]), np.array([[3.0]], np.float32)):
        episode = outcome(Pays(reward))
        assert episode is not None and episode.episode_return == 3.0


def test_a_return_that_learning_cannot_hold_loses_its_episode_and_not_the_run() -> None:
    for reward in (1e39, -1e39, 1e20, -1e20, float("nan"), float("inf")):
        with pytest.raises(EnvironmentFault, match="returned a reward of"):
            outcome(Pays(reward))
    assert outcome(Pays(1e15)) is not None

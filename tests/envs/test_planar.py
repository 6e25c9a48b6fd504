from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from diaster.envs.making import make_env
from diaster.envs.planar import make_lean

RUNNERS = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in RUNNERS),
    *((name, {"exclude_current_positions_from_observation": False}) for name in RUNNERS),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_state_range": (-2.0, 2.0)}),
    ("Walker2d-v5", {"terminate_when_unhealthy": False, "healthy_reward": 0.5, "forward_reward_weight": 2.0}),
    ("HalfCheetah-v5", {"ctrl_cost_weight": 0.7, "frame_skip": 2}),
]


def is_lean(env: Any) -> bool:
    return "step" in vars(env.unwrapped)


def bits(step: tuple[Any, Any, bool, bool, dict[str, Any]]) -> Any:
    obs, reward, terminated, truncated, info = step
    return obs.dtype, obs.tobytes(), float(reward).hex(), terminated, truncated, {k: float(v) for k, v in info.items()}


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_every_number_of_every_step_is_gymnasiums(name: str, settings: dict[str, Any]) -> None:
    own, lean = (gym.make(name, disable_env_checker=True, max_episode_steps=100, **settings) for _ in range(2))
    make_lean(lean)
    assert is_lean(lean) and not is_lean(own)
    random, n_fallen = np.random.default_rng(0), 0
    obs, expected = (env.reset(seed=3)[0] for env in (lean, own))
    for number in range(400):
        assert obs.tobytes() == expected.tobytes()
        scale = 30.0 if number > 350 else 1.0  # beyond what is allowed: fast enough for every limit to be met
        action = (scale * random.uniform(-1.0, 1.0, own.action_space.shape)).astype(np.float32)  # type: ignore[arg-type]
        found, step = lean.step(action), own.step(action)
        assert bits(found) == bits(step)
        obs, expected = found[0], step[0]
        n_fallen += step[2]
        if step[2] or step[3]:
            obs, expected = (env.reset(seed=number)[0] for env in (lean, own))
    can_fall = name != "HalfCheetah-v5" and settings.get("terminate_when_unhealthy", True)
    assert (n_fallen > 0) == can_fall


@pytest.mark.parametrize("name", RUNNERS)
def test_environments_are_made_lean(name: str) -> None:
    assert is_lean(make_env(name, 1000))


CHANGES: dict[str, Any] = {
    "control_cost": lambda self, action: 0.5 * float(np.abs(action).sum()),
    "is_healthy": property(lambda self: bool(self.data.qpos[1] > 0.7 and abs(self.state_vector()[2:]).max() < 100)),
    "_get_obs": lambda self: np.concatenate((self.data.qpos[1:], np.clip(self.data.qvel, -20, 20))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_where_gymnasium_does_something_else_its_own_step_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HopperEnv, name, CHANGES[name])
    env = make_env("Hopper-v5", 1000)
    assert not is_lean(env)


def test_settings_that_change_on_the_way_count() -> None:
    own, lean = (gym.make("Hopper-v5", disable_env_checker=True).unwrapped for _ in range(2))
    make_lean(lean)
    steps = []
    for env in (own, lean):
        inner: Any = env
        inner.reset(seed=0)
        inner._ctrl_cost_weight, inner._forward_reward_weight, inner._healthy_reward = 0.5, 3.0, 7.0
        inner._healthy_angle_range, inner._healthy_state_range = (-1e-9, 1e-9), (-1.0, 1.0)
        inner.model.opt.timestep, inner.frame_skip = 0.003, 2
        steps.append(bits(inner.step(np.full(3, 0.4, np.float32))))
    assert steps[0] == steps[1]


def test_where_gymnasium_lacks_something_its_own_step_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    make, plain = HopperEnv.__init__, HopperEnv.step

    def init(self: Any, *arguments: Any, **settings: Any) -> None:
        make(self, *arguments, **settings)
        self._weight = self.__dict__.pop("_forward_reward_weight")

    def step(self: Any, action: Any) -> Any:
        self._forward_reward_weight = self._weight
        try:
            return plain(self, action)
        finally:
            del self._forward_reward_weight

    monkeypatch.setattr(HopperEnv, "__init__", init)
    monkeypatch.setattr(HopperEnv, "step", step)
    assert not is_lean(make_env("Hopper-v5", 1000))


class OtherHopper(HopperEnv):
    pass


def test_what_somebody_has_made_of_a_runner_keeps_its_step() -> None:
    env = OtherHopper()
    make_lean(env)
    assert not is_lean(env)


def test_an_environment_that_is_shown_keeps_its_step() -> None:
    assert not is_lean(make_env("Hopper-v5", 1000, render_mode="rgb_array"))


def test_an_action_of_another_shape_is_refused() -> None:
    env = make_env("Hopper-v5", 1000)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"an action of shape \(2,\) where \(3,\) is needed"):
        env.unwrapped.step(np.zeros(2, np.float32))


def test_a_reset_without_a_seed_is_as_random_as_before() -> None:
    first, second = (make_env("Hopper-v5", 1000).reset()[0] for _ in range(2))
    assert np.abs(first - second).max() > 0.0

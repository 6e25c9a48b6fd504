"""Gymnasium's planar runners (Hopper, Walker2d, HalfCheetah) stepped in fewer calls: every number is the same.

Half of a step of Hopper-v5 is not physics but calls of NumPy on a few numbers each, some of them made twice. Where
many environments are stepped, cores are what a run waits for. Whether the numbers are the same is looked at whenever an
environment is made; where they are not, because another version of Gymnasium does something else, its own step stays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

CLASSES = {
    ("gymnasium.envs.mujoco.hopper_v5", "HopperEnv"),
    ("gymnasium.envs.mujoco.walker2d_v5", "Walker2dEnv"),
    ("gymnasium.envs.mujoco.half_cheetah_v5", "HalfCheetahEnv"),
}
FASTEST = 10.0  # the largest velocity that Hopper and Walker2d show
N_COMPARED = 8  # steps

Step = Callable[[Any], tuple[Any, Any, bool, bool, dict[str, Any]]]


def make_lean(env: gym.Env[Any, Any]) -> None:
    """Let an environment step in fewer calls, if it is one of those that can and nobody watches it."""
    inner: Any = env.unwrapped
    if (type(inner).__module__, type(inner).__name__) not in CLASSES or inner.render_mode is not None:
        return
    try:
        step = planar_step(inner)
        is_same = _steps(inner, inner.step) == _steps(inner, step)
    except Exception:  # whatever another version lacks
        return
    if is_same:
        inner.step = step


def planar_step(env: Any) -> Step:
    """What `env.step` does: forward velocity is rewarded, control costs and, for who can fall, standing counts."""
    mujoco: Any = importlib.import_module("mujoco")  # it is there: the environment is made of it
    model, data, n_frames, dt = env.model, env.data, env.frame_skip, env.dt
    position, velocity, control = data.qpos, data.qvel, data.ctrl  # views of the simulation's own memory
    n_hidden = 1 if env._exclude_current_positions_from_observation else 0
    n_position, start_height = len(position), env.init_qpos[1]
    forward_weight, control_weight = env._forward_reward_weight, env._ctrl_cost_weight
    can_fall = hasattr(env, "_healthy_z_range")
    lowest, highest = env._healthy_z_range if can_fall else (0.0, 0.0)
    least_angle, largest_angle = env._healthy_angle_range if can_fall else (0.0, 0.0)
    least, largest = getattr(env, "_healthy_state_range", (-np.inf, np.inf))  # of all but position and height
    has_range = hasattr(env, "_healthy_state_range")

    def step(action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if np.shape(action) != control.shape:
            raise ValueError(f"an action of shape {np.shape(action)} where {control.shape} is needed")
        before = position[0]
        control[:] = action
        mujoco.mj_step(model, data, nstep=n_frames)
        mujoco.mj_rnePostConstraint(model, data)
        x = position[0]
        speed = (x - before) / dt
        state = np.concatenate((position, velocity))
        forward = forward_weight * speed
        cost = control_weight * np.add.reduce(np.square(action))
        if not can_fall:
            info = {"x_position": x, "x_velocity": speed, "reward_forward": forward, "reward_ctrl": -cost}
            return state[n_hidden:], forward - cost, False, False, info
        height = state[1]
        stands = bool(lowest < height < highest and least_angle < state[2] < largest_angle)
        if has_range and stands:
            rest = state[2:]
            stands = bool(least < rest.min() and rest.max() < largest)
        shown = state[n_position:]
        np.minimum(np.maximum(shown, -FASTEST), FASTEST, out=shown)
        survival = stands * env._healthy_reward
        info = {
            "x_position": x,
            "z_distance_from_origin": height - start_height,
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -cost,
            "reward_survive": survival,
        }
        has_fallen = not stands and env._terminate_when_unhealthy
        return state[n_hidden:], forward + survival - cost, has_fallen, False, info

    return step


def _steps(env: Any, step: Step) -> list[Any]:
    """Some steps from a reset, bit by bit. The environment's own random numbers are left as they were."""
    random = env._np_random, env._np_random_seed
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (N_COMPARED, *env.action_space.shape)).astype(np.float32)
    env.reset(seed=0)
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, info = step(action)
        numbers = {name: float(value).hex() for name, value in info.items()}
        seen.append((obs.tobytes(), obs.dtype, float(reward).hex(), terminated, truncated, numbers))
    env._np_random, env._np_random_seed = random
    return seen

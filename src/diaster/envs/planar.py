"""Gymnasium's planar runners (Hopper, Walker2d, HalfCheetah) stepped in fewer calls: every number is the same.

Half of a step of Hopper-v5 is not physics but calls of NumPy on a few numbers each, some of them made twice. Where
many environments are stepped, cores are what a run waits for. Whether the numbers are the same is looked at whenever an
environment is made, also from states in which it has fallen or is very fast; where they are not, because another
version of Gymnasium does something else, its own step stays.
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
N_COMPARED = 8  # steps from a reset, and one from each of
# these states: too low, leaning over to either side, too fast to be shown, too fast to be standing.
FAR_AWAY = ((1, -1.0), (2, 0.3), (2, -1.5), (-1, 15.0), (-1, -30.0), (-2, 150.0))  # where in the state, how far

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
    model, data = env.model, env.data
    position, velocity, control = data.qpos, data.qvel, data.ctrl  # views of the simulation's own memory
    n_position = len(position)
    can_fall, has_range = hasattr(env, "_healthy_z_range"), hasattr(env, "_healthy_state_range")

    # Settings are read at every step: somebody may change them on the way.
    def step(action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if np.shape(action) != control.shape:
            raise ValueError(f"an action of shape {np.shape(action)} where {control.shape} is needed")
        before = position[0]
        control[:] = action
        mujoco.mj_step(model, data, nstep=env.frame_skip)
        mujoco.mj_rnePostConstraint(model, data)
        x = position[0]
        speed = (x - before) / env.dt
        state = np.concatenate((position, velocity))
        shown = state[1:] if env._exclude_current_positions_from_observation else state
        forward = env._forward_reward_weight * speed
        cost = env._ctrl_cost_weight * np.add.reduce(np.square(action))
        if not can_fall:
            info = {"x_position": x, "x_velocity": speed, "reward_forward": forward, "reward_ctrl": -cost}
            return shown, forward - cost, False, False, info
        height, (lowest, highest) = state[1], env._healthy_z_range
        least_angle, largest_angle = env._healthy_angle_range
        stands = bool(lowest < height < highest and least_angle < state[2] < largest_angle)
        if stands and has_range:
            (least, largest), rest = env._healthy_state_range, state[2:]
            stands = bool(least < rest.min() and rest.max() < largest)
        speeds = state[n_position:]
        np.minimum(np.maximum(speeds, -FASTEST), FASTEST, out=speeds)
        survival = stands * env._healthy_reward
        info = {
            "x_position": x,
            "z_distance_from_origin": height - env.init_qpos[1],
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -cost,
            "reward_survive": survival,
        }
        return shown, forward + survival - cost, not stands and env._terminate_when_unhealthy, False, info

    return step


def _steps(env: Any, step: Step) -> list[Any]:
    """Some steps from a reset and some from afar, bit by bit. The environment's own random numbers are left alone."""
    random = env._np_random, env._np_random_seed
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (N_COMPARED, *env.action_space.shape)).astype(np.float32)
    try:
        env.reset(seed=0)
        seen = [_bits(step(action)) for action in actions]
        for place, amount in FAR_AWAY:
            state = np.concatenate((env.init_qpos, env.init_qvel))
            state[place] += amount
            env.set_state(state[: env.model.nq], state[env.model.nq :])
            seen.append(_bits(step(actions[0])))
        return seen
    finally:
        env._np_random, env._np_random_seed = random


def _bits(step: tuple[Any, Any, bool, bool, dict[str, Any]]) -> Any:
    obs, reward, terminated, truncated, info = step
    numbers = {name: float(value).hex() for name, value in info.items()}
    return obs.tobytes(), obs.dtype, float(reward).hex(), terminated, truncated, numbers

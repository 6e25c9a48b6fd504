"""Environments: any Gymnasium id with vector observations and Box or Discrete actions, made episodic.

`EpisodicReward` hides the reward until the episode ends. The true reward of a step is in `info` alone, where
only evaluation looks for it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from diaster.config import PAPER_TASKS
from diaster.envs.planar import make_lean
from diaster.errors import DiasterError, unknown
from diaster.signals import interrupts_raise
from diaster.types import EnvSpec

Env = gym.Env[Any, Any]
TRUE_REWARD = "true_reward"
LARGEST_RETURN = 1e18  # the squares of larger ones overflow in 32 bits
ROBOTICS = ("PointMaze", "AntMaze", "Fetch", "Hand", "Adroit", "FrankaKitchen")


class EpisodicReward(gym.Wrapper[Any, Any, Any, Any]):
    """Zero until the episode ends, then the sum of what the environment gave.

    On an environment that is episodic already this changes nothing: the sum of zeros and a last reward is that
    reward. The hidden reward of each step is `info["true_reward"]`.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._sum = 0.0
        self._is_second = _is_episodic(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sum = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._is_second:  # a wrapper of this kind inside has done it
            return obs, reward, terminated, truncated, info
        if not isinstance(reward, float):  # np.float64 is one
            array = np.asarray(reward)
            if array.size != 1:
                raise TypeError(f"a reward of shape {array.shape} where one number is needed")
            reward = array.item()
        value = float(reward)
        self._sum += value
        info = {**info, TRUE_REWARD: value}  # whatever the environment calls so itself
        # A reward that is no number, or too large a one, is passed on at once and reported at its step.
        shown = self._sum if terminated or truncated or not abs(value) <= LARGEST_RETURN else 0.0
        return obs, shown, terminated, truncated, info


def import_modules(modules: Sequence[str]) -> None:
    """Import the packages whose environments the user wants; the working directory is searched too."""
    if modules and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise DiasterError(
                f"the module '{error.name}' (from --import {module}) was not found; "
                "install it, or start from the folder that holds it."
            ) from None
        except (Exception, SystemExit) as error:  # whatever the module's own code raises; some end the interpreter
            raise DiasterError(f"the module of --import '{module}' cannot be imported: {one_line(error)}.") from error


def gym_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """Gymnasium's record of an id; those of Gymnasium-Robotics are registered on first use."""
    if env_id not in gym.registry and env_id.startswith(ROBOTICS):
        try:
            register_robotics()
        except ImportError:
            raise DiasterError(
                f"'{env_id}' comes with Gymnasium-Robotics; install it with pip install 'diaster[robotics]'."
            ) from None
    try:
        return gym.spec(env_id)
    except (gym.error.Error, ValueError):  # the latter for a version of thousands of digits
        raise unknown_env(env_id) from None
    except ModuleNotFoundError as error:
        raise DiasterError(
            f"'{env_id}' needs the module '{error.name}', which was not found; install it, or check the name."
        ) from None


def register_robotics() -> None:
    """Make the environments of Gymnasium-Robotics known; it prints remarks on tasks nobody asked for."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        gym.register_envs(importlib.import_module("gymnasium_robotics"))


def unknown_env(env_id: str) -> DiasterError:
    """The error for an id that Gymnasium does not have, with the nearest one it has."""
    text = str(unknown("environment", env_id, gym.registry))
    hint = text[text.index(" Did you mean") :] if "Did you mean" in text else ""
    return DiasterError(
        f"unknown environment '{env_id}'.{hint} Environments of other packages need --import PACKAGE; "
        "'diaster list envs' shows what is registered."
    )


def find_horizon(env_id: str, horizon: int | str) -> int:
    """The longest episode: what was asked for, else the paper's, else the environment's own."""
    if isinstance(horizon, int):
        return horizon
    if env_id in PAPER_TASKS:
        return PAPER_TASKS[env_id].horizon
    own = gym_spec(env_id).max_episode_steps
    if own is None:
        raise DiasterError(f"'{env_id}' has no time limit of its own; give one with --horizon, e.g. --horizon 1000.")
    return own


def make_env(env_id: str | gym.envs.registration.EnvSpec, horizon: int, **kwargs: Any) -> Env:
    """The environment as training and evaluation see it: flat observations, a time limit, episodic reward."""
    name = env_id if isinstance(env_id, str) else env_id.id
    spec = gym_spec(env_id) if isinstance(env_id, str) else env_id
    try:
        env: Env = gym.make(spec, max_episode_steps=horizon, disable_env_checker=True, **kwargs)
    except Exception as error:  # whatever the environment's own code raises
        raise DiasterError(f"the environment '{name}' cannot be made: {one_line(error)}.") from error
    make_lean(env)
    _refuse_images(name, env.observation_space)
    if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    if not _is_episodic(env):
        env = EpisodicReward(env)
    return env


def close_env(env: Any) -> None:
    """Let an environment go. One that cannot be closed is let go all the same; only Ctrl-C is passed on."""
    try:
        env.close()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and interrupts_raise():
            raise


def one_line(error: BaseException) -> str:
    """What an environment's exception says, as part of a sentence."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raw_observation_space(env: Env) -> spaces.Space[Any]:
    """What the environment itself shows, before `make_env` made it flat."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.FlattenObservation):
            return inner.env.observation_space
        inner = inner.env
    return env.observation_space


def describe_env(env: Env, env_id: str, horizon: int) -> EnvSpec:
    """What agents and decomposers have to know of it, or an error if it cannot be learnt here."""
    actions = env.action_space
    obs_dim = int(np.prod(env.observation_space.shape or (1,)))
    if isinstance(actions, spaces.Discrete):
        n = int(actions.n)
        bounds = np.zeros(n, np.float32), np.ones(n, np.float32)
        return EnvSpec(env_id, obs_dim, n, *bounds, (), horizon, discrete=True, first_action=int(actions.start))
    if not isinstance(actions, spaces.Box):
        raise DiasterError(
            f"'{env_id}' has actions of the kind {actions}; only Box and Discrete actions are supported. "
            "Wrap it, or choose another environment."
        )
    low, high = actions.low.astype(np.float32).reshape(-1), actions.high.astype(np.float32).reshape(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise DiasterError(
            f"'{env_id}' has actions without finite bounds ({actions}); wrap it so that low < high are finite numbers."
        )
    return EnvSpec(env_id, obs_dim, low.size, low, high, tuple(actions.shape), horizon)


def _is_episodic(env: Env) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, EpisodicReward):
            return True
        env = env.env
    return False


def _refuse_images(env_id: str, space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            _refuse_images(env_id, part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            _refuse_images(env_id, part)
    elif isinstance(space, spaces.Box) and (len(space.shape) > 2 or (space.dtype == np.uint8 and len(space.shape) > 1)):
        raise DiasterError(
            f"'{env_id}' shows images (observations of shape {space.shape}); only vector observations are supported. "
            "Choose an environment with state observations, or wrap it with an encoder."
        )
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise DiasterError(f"'{env_id}' has observations of the kind {space}; only vectors and dicts are supported.")

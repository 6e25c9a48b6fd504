"""A learnt step reward as an environment, for every library that trains on Gymnasium's."""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from diaster.config import RunConfig
from diaster.envs.creating import Env
from diaster.envs.delayed import KNOWN_REWARD, TRUE_REWARD, as_number, delays_of
from diaster.envs.making import describe_env
from diaster.errors import DiasterError
from diaster.types import EnvSpec


class PaysSteps(Protocol):
    """What is asked of a run; `diaster.Run` has it."""

    spec: EnvSpec
    config: RunConfig

    def step_reward(self, obs: Any, action: Any, next_obs: Any = None, seed: int | None = None) -> Any: ...


class DecomposedReward(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that pays the learnt reward of every step, in the environment's units.

    Where a part of the run's rewards was known, `info["known_reward"]` is paid as well. The environment's own reward is
    `info["true_reward"]`. `seed` names the seed of the run whose reward is paid, by default the first. Methods whose
    rewards depend on the history of an episode, or on its return, cannot pay while the episode lasts, and are refused.

    Examples:
        >>> run = diaster.load("runs/hopper")
        >>> env = diaster.DecomposedReward(gymnasium.make("Hopper-v5"), run, seed=0)
        >>> stable_baselines3.SAC("MlpPolicy", env).learn(100_000)
    """

    def __init__(self, env: Env, run: PaysSteps, seed: int | None = None) -> None:
        super().__init__(env)
        self._run, self._seed = run, seed
        self._obs: Any = None
        self._is_told = bool(delays_of(env))  # by a wrapper inside, which knows it
        _refuse_other_spaces(env, run.spec)
        # A method without such rewards is refused here, and at once.
        nothing = np.zeros(run.spec.obs_dim, run.spec.obs_dtype)
        run.step_reward(nothing, run.spec.to_env(np.zeros(run.spec.action_dim, np.float32)), nothing, seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = _kept(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        paid = float(self._run.step_reward(self._obs, action, obs, self._seed)) + self._known(info)
        self._obs = _kept(obs)
        told = info if self._is_told else {**info, TRUE_REWARD: float(reward)}
        return obs, paid, terminated, truncated, told

    def _known(self, info: dict[str, Any]) -> float:
        """The part of a step's reward that was not decomposed."""
        if not self._run.config.known_rewards:
            return 0.0
        if info.get(KNOWN_REWARD) is None:
            raise DiasterError(
                f"the environment gave no info['{KNOWN_REWARD}'], and the run has learnt the rest of the reward alone; "
                "wrap one that gives it at every step, as the run's own does."
            )
        return as_number(info[KNOWN_REWARD], f"info['{KNOWN_REWARD}']")


def _kept(obs: Any) -> Any:
    """A copy: an environment may write the next observation into the same array."""
    if isinstance(obs, dict):
        return {name: _kept(part) for name, part in obs.items()}
    return tuple(map(_kept, obs)) if isinstance(obs, tuple) else np.array(obs)


def _refuse_other_spaces(env: Env, spec: EnvSpec) -> None:
    """The net takes numbers of a fixed count and order."""
    theirs = describe_env(env, spec.id, spec.horizon)._replace(obs_dim=spaces.flatdim(env.observation_space))
    sizes = [(one.obs_dim, one.discrete, one.action_dim, one.action_shape) for one in (theirs, spec)]
    if sizes[0] != sizes[1]:
        raise DiasterError(
            f"this environment has {theirs.obs_dim} observations and the actions {env.action_space}; the reward was "
            f"learnt in '{spec.id}', with {spec.obs_dim} observations and {spec.action_dim} actions: give an "
            "environment like it."
        )

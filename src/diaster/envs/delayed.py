"""Feedback that is delayed: a wrapper for dense environments, and the names of what environments say in `info`.

An environment that gives its feedback itself says so with `info["feedback"]`. The true reward of a step is in `info`
alone, where only evaluation looks for it.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from diaster.errors import DiasterError

TRUE_REWARD = "true_reward"
FEEDBACK = "feedback"
KNOWN_REWARD = "known_reward"
LARGEST_RETURN = 1e18  # the squares of larger ones overflow in 32 bits


class DelayedReward(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A wrapper that hides rewards: they are zero until every k-th step or the end of the episode, and then the sum.

    Without `every` the sum comes only at the end. The reward of the environment itself is `info["true_reward"]`. With
    `every` the sum is also `info["feedback"]`, at the steps that have one. An environment that already pays only at the
    end is not changed by `DelayedReward(env)`.
    """

    def __init__(self, env: gym.Env[Any, Any], every: int | None = None) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1):
            raise DiasterError(f"DelayedReward was given every={every!r}; give a whole number of steps, 1 or more.")
        gym.utils.RecordConstructorArgs.__init__(self, every=every)
        super().__init__(env)
        self.every = None if every is None else int(every)
        self._sum, self._steps = 0.0, 0
        self._is_second = bool(delays_of(env))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sum, self._steps = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        value = as_number(reward, "a reward")
        self._sum += value
        self._steps += 1
        if not self._is_second:  # else a wrapper of this kind inside knows it
            info = {**info, TRUE_REWARD: value}  # whatever the environment calls so itself
        is_end = terminated or truncated or (self.every is not None and self._steps % self.every == 0)
        shown = 0.0
        # A reward that is no number, or too large a one, is passed on at once and reported at its step.
        if is_end or not abs(value) <= LARGEST_RETURN:
            shown, self._sum = self._sum, 0.0
        if self.every is not None:
            info = {name: said for name, said in info.items() if name != FEEDBACK}
            if is_end:
                info[FEEDBACK] = shown
        return obs, shown, terminated, truncated, info


def as_number(value: Any, what: str) -> float:
    """One number, whatever an environment has put it into."""
    if not isinstance(value, float):  # np.float64 is one
        array = np.asarray(value)
        if array.size != 1:
            raise TypeError(f"{what} of shape {array.shape} where one number is needed")
        value = array.item()
    return float(value)


def delays_of(env: Any) -> list[int | None]:
    """To how many steps each wrapper of this kind around an environment delays its rewards; None is to its end."""
    found = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, DelayedReward):
            found.append(env.every)
        env = env.env
    return found

"""Vector environments of Gymnasium, taken apart: each of their environments speaks like one between two steps of all.

They begin new episodes themselves, in one of three ways (`AutoresetMode`). Whichever it is, a lane gives out the last
observation of an episode with its last step, and the first one of the next episode at its reset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from diaster.errors import DiasterError

Vector = VectorEnv[Any, Any, Any]
Result = tuple[Any, Any, bool, bool, dict[str, Any]]


class Lanes:
    """The environments of a vector: `reset` begins and `step` steps them all, then each is asked what came of it.

    What the vector raises is raised where a lane is asked: there is somebody who knows which step it was.
    """

    def __init__(self, vector: Vector, name: str, horizon: int) -> None:
        self._vector, self._mode = vector, _mode_of(vector, name)
        none = np.zeros(vector.num_envs, bool)
        self._ended = none  # in the last step
        self._error: BaseException | None = None
        self.each = [Lane(self, number, vector, name, horizon) for number in range(vector.num_envs)]

    def reset(self, seed: int | None) -> None:
        """Begin an episode in every environment."""
        self._error, self._ended = None, np.zeros(len(self.each), bool)
        try:
            self._begin(self._vector.reset(seed=seed)[0], ~self._ended)
        except BaseException as error:
            self._error = error

    def prepare(self) -> NDArray[np.bool_]:
        """Comes before actions are chosen. Returns which lanes can take none, since the next step resets them."""
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._ended
        none = np.zeros(len(self.each), bool)
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            ended, self._ended = self._ended, none
            try:
                self._begin(self._vector.reset(options={"reset_mask": ended.copy()})[0], ended)
            except BaseException as error:
                self._error = error
        return none

    def step(self, actions: Sequence[Any]) -> None:
        """Step every environment; what has become of it is in the lanes."""
        idle = self.prepare()
        if self._error is not None:
            return
        try:
            obs, rewards, terminations, truncations, infos = self._vector.step(np.stack(actions))
            ended = np.logical_or(terminations, truncations) & ~idle
            resets_at_once = self._mode is AutoresetMode.SAME_STEP
            for lane, seen in zip(self.each, iterate(self._vector.observation_space, obs), strict=True):
                is_last = bool(resets_at_once and ended[lane.number])
                last = infos["final_obs"][lane.number] if is_last else seen
                flags = bool(terminations[lane.number]), bool(truncations[lane.number])
                info = infos.get("final_info", infos) if is_last else infos
                lane.result = last, rewards[lane.number], *flags, _of_lane(info, lane.number)
            self._begin(obs, ended if resets_at_once else idle)
            self._ended = ended
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what the vector has raised."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._vector.close()

    def _begin(self, obs: Any, which: NDArray[np.bool_]) -> None:
        for lane, first in zip(self.each, iterate(self._vector.observation_space, obs), strict=True):
            if which[lane.number]:
                lane.first = first


class Lane(gym.Env[Any, Any]):
    """One environment of a vector. What it returns, the vector has done before."""

    def __init__(self, lanes: Lanes, number: int, vector: Vector, name: str, horizon: int) -> None:
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self._lanes, self._name, self._horizon, self.number = lanes, name, horizon, number
        self.first: Any = None
        self.result: Result | None = None
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._lanes.check()
        self._length = 0
        return self.first, {}

    def step(self, action: Any) -> Result:
        self._lanes.check()
        assert self.result is not None, "the vector is stepped first"
        self._length += 1
        if self._length > self._horizon:
            raise DiasterError(
                f"'{self._name}' has an episode of more than {self._horizon} steps; a vector environment ends its "
                "episodes itself, so give that limit to what makes it, or a longer --horizon (in Python, horizon=…)."
            )
        return self.result


class FirstOf(gym.Env[Any, Any]):
    """A vector as a single environment, its first; the others take the same actions. To look at, not to train in."""

    def __init__(self, vector: Vector, name: str) -> None:
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.metadata, self.render_mode = vector.metadata, vector.render_mode
        self.vector, self._lanes = vector, Lanes(vector, name, horizon=np.iinfo(np.int64).max)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._lanes.reset(seed)
        return self._lanes.each[0].reset()

    def step(self, action: Any) -> Result:
        self._lanes.step([action] * self.vector.num_envs)
        return self._lanes.each[0].step(action)

    def render(self) -> Any:
        pictures = self.vector.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        self._lanes.close()


def vector_limit(vector: Vector) -> int | None:
    """After how many steps the environments of a vector end their episodes, if that can be known."""
    specs = [env.spec for env in getattr(vector.unwrapped, "envs", ())] or [vector.spec]
    limits = [spec.kwargs.get("max_episode_steps", spec.max_episode_steps) for spec in specs if spec is not None]
    return max((limit for limit in limits if limit is not None), default=None)


def _mode_of(vector: Vector, name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise DiasterError(
            f"the vector environment of '{name}' does not say how it begins episodes (its metadata['autoreset_mode'] "
            f"is {mode!r}); it has to be one of gymnasium.vector.AutoresetMode."
        ) from None


def _of_lane(infos: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What a vector tells of one of its environments: of every entry there is a second one that says who has it."""
    return {name: values[number] for name, values in infos.items() if f"_{name}" in infos and infos[f"_{name}"][number]}

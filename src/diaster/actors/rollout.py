"""One environment of a seed, reset by a seed and stepped with the nets' actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diaster.envs.making import LARGEST_RETURN, Env, close_env, one_line
from diaster.errors import DiasterError, EnvironmentFault
from diaster.signals import interrupts_raise
from diaster.types import EnvSpec, Episode, FloatArray

MakeEnv = Callable[[], Any]  # an environment, or what speaks like one


class Handling(NamedTuple):
    """How environments are treated."""

    keep_hidden: bool = False
    """Let collected episodes carry the hidden rewards of their steps: for the method `dense` alone."""
    retries: int = 0
    """Faults in a row that are survived."""
    isolate: bool = False
    """Step each in a process of its own."""
    step_seconds: float = 60.0
    """The longest time a step may take there."""


ORDINARY = Handling()


class Rollout:
    """One environment, reset by seed and stepped with the nets' actions; bad values are named, never passed on."""

    def __init__(self, make: MakeEnv, spec: EnvSpec, role: str) -> None:
        self._make, self._spec, self._role = make, spec, role
        self._env: Env | None = None
        self.steps = 0  # of the run so far, for sentences
        self._obs: list[FloatArray] = []
        self._actions: list[FloatArray] = []
        self.info: dict[str, Any] = {}

    def reset(self, seed: int) -> FloatArray:
        if self._env is None:
            self._env = self._make()
        try:
            obs, info = self._env.reset(seed=seed)
        except DiasterError:
            raise
        except BaseException as error:  # whatever the environment's own code raises
            raise self._raised(error, "in the reset after") from error
        self.info = dict(info)
        self._obs, self._actions = [self._checked(obs)], []
        return self._obs[0]

    def step(self, action: FloatArray) -> tuple[FloatArray, Episode | None]:
        """The next observation and, where it was the last one, the finished episode."""
        assert self._env is not None, "reset first"
        self.steps += 1
        try:
            obs, reward, terminated, truncated, info = self._env.step(self._spec.to_env(action))
        except DiasterError:
            raise
        except BaseException as error:
            raise self._raised(error, "at") from error
        self.info = dict(info)
        value = float(reward)
        if not abs(value) <= LARGEST_RETURN:
            raise self._fault(f"returned a reward of {value} (at most {LARGEST_RETURN:g} can be learnt from) at")
        checked = self._checked(obs)
        self._obs.append(checked)
        self._actions.append(action)
        if not (terminated or truncated):
            return checked, None
        return checked, Episode(np.stack(self._obs), np.stack(self._actions), value, bool(terminated))

    def close(self) -> None:
        """Let the environment go; the next reset makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            close_env(env)

    def under_way(self) -> tuple[FloatArray, FloatArray]:
        """Observations and actions of the episode since its reset."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self._spec.action_dim), np.float32)
        return np.stack(self._obs), actions

    def _checked(self, obs: Any) -> FloatArray:
        try:
            array = np.array(obs, np.float32)  # a copy: many environments update one array in place
        except (TypeError, ValueError):
            raise self._error(f"returned an observation of the kind {type(obs).__name__} at") from None
        if array.shape != (self._spec.obs_dim,):
            raise self._error(
                f"returned an observation of shape {array.shape} where ({self._spec.obs_dim},) was announced at"
            )
        if not math.isfinite(array.sum(dtype=np.float64)):  # cheaper than isfinite().all() for small arrays
            bad = np.flatnonzero(~np.isfinite(array))
            if bad.size:
                raise self._fault(f"returned {array[bad[0]]} in its observation (entry {bad[0]}) at")
        return array

    def _raised(self, error: BaseException, where: str) -> BaseException:
        """What an environment raises is its fault, also where it means to end the interpreter; Ctrl-C is not."""
        if isinstance(error, KeyboardInterrupt) and interrupts_raise():
            return error
        return self._fault(f"raised {one_line(error)} {where}")

    def _error(self, what: str) -> DiasterError:
        return DiasterError(self._sentence(what))

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(self._sentence(what))

    def _sentence(self, what: str) -> str:
        return (
            f"the environment '{self._spec.id}' {what} {self._role} step {self.steps}; "
            "check the environment at that step."
        )

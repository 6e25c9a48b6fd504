"""One environment of a seed, reset by a seed and stepped with the nets' actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from diaster.envs.creating import Env, close_env
from diaster.envs.delayed import FEEDBACK, KNOWN_REWARD, LARGEST_RETURN, as_number
from diaster.errors import DiasterError, EnvironmentFault, one_line
from diaster.signals import interrupts_raise
from diaster.types import EPISODIC, EnvSpec, Episode, Feedback, FloatArray, Observation, Spans

WarmupNoise = Literal["uniform", "sizes", "varied"]
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
    feedback: Feedback = EPISODIC
    """How feedback on their episodes comes."""
    warmup_noise: WarmupNoise = "uniform"
    """How actions are where there is no policy yet."""


ORDINARY = Handling()


class Rollout:
    """One environment, reset by seed and stepped with the nets' actions; bad values are named, never passed on."""

    def __init__(self, make: MakeEnv, spec: EnvSpec, role: str, feedback: Feedback = EPISODIC) -> None:
        self._make, self._spec, self._role, self._feedback = make, spec, role, feedback
        self._is_told_more = feedback != EPISODIC  # than one number at the end
        self._env: Env | None = None
        self.steps = 0  # of the run so far, for sentences
        self._obs: list[Observation] = []
        self._actions: list[FloatArray] = []
        self._marks: list[tuple[int, float]] = []  # where spans have ended, and their numbers
        self._known: list[float] = []
        self.info: dict[str, Any] = {}

    def reset(self, seed: int) -> Observation:
        if self._env is None:
            self._env = self._make()
        try:
            obs, info = self._env.reset(seed=seed)
        except DiasterError:
            raise
        except BaseException as error:  # whatever the environment's own code raises
            raise self._raised(error, "in the reset after") from error
        self.info = dict(info)
        self._obs, self._actions, self._marks, self._known = [self._checked(obs)], [], [], []
        return self._obs[0]

    def step(self, action: FloatArray) -> tuple[Observation, Episode | None]:
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
        is_end = bool(terminated or truncated)
        if self._is_told_more:
            self._take_feedback(value, is_end)
        return checked, self._episode(value, bool(terminated)) if is_end else None

    def _take_feedback(self, reward: float, is_end: bool) -> None:
        """Note what a step says of the steps up to it, and what is known of its reward."""
        every, length = self._feedback.every, len(self._actions)
        if self._feedback.has_known:
            known = self._said(KNOWN_REWARD)
            if math.isnan(known):
                raise self._error(f"gave no info['{KNOWN_REWARD}'], which known_rewards promises, at")
            self._known.append(known)
        if isinstance(every, int):
            if is_end or length % every == 0:
                self._marks.append((length, reward))
        elif every == "environment":
            if FEEDBACK in self.info:
                self._marks.append((length, self._said(FEEDBACK)))
            elif is_end:  # nobody has said anything of the last steps
                self._marks.append((length, math.nan))

    def _said(self, name: str) -> float:
        """A number in a step's `info`; NaN where it is missing."""
        said = self.info.get(name)
        try:
            value = math.nan if said is None else as_number(said, f"info['{name}']")
        except (TypeError, ValueError):
            raise self._error(f"gave an info['{name}'] of the kind {type(said).__name__}, not a number, at") from None
        if abs(value) > LARGEST_RETURN:
            raise self._fault(f"gave an info['{name}'] of {value} (at most {LARGEST_RETURN:g} can be learnt from) at")
        return value

    def _episode(self, last_reward: float, terminated: bool) -> Episode:
        spans, episode_return = None, last_reward
        if self._marks:
            end, number = zip(*self._marks, strict=True)
            spans = Spans(np.array(end, np.int64), np.array(number, np.float64))
            if isinstance(self._feedback.every, int):
                episode_return = float(sum(number))
        known = np.array(self._known, np.float32) if self._feedback.has_known else None
        obs, action = np.stack(self._obs), np.stack(self._actions)
        return Episode(obs, action, episode_return, terminated, spans=spans, known_reward=known)

    def close(self) -> None:
        """Let the environment go; the next reset makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            close_env(env)

    @property
    def last_action(self) -> FloatArray | None:
        """Of the episode since its reset."""
        return self._actions[-1] if self._actions else None

    def under_way(self) -> tuple[Observation, FloatArray]:
        """Observations and actions of the episode since its reset."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self._spec.action_dim), np.float32)
        return np.stack(self._obs), actions

    def _checked(self, obs: Any) -> Observation:
        try:
            array: Observation = np.array(
                obs, self._spec.obs_dtype
            )  # a copy: many environments update one array in place
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

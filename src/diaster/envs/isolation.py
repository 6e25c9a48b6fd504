"""An environment in a process of its own: if it dies or hangs, only its episode is lost.

The process is started as `python -m diaster.envs.isolation`, as workers are, and answers one step at a time. That costs
a quarter of a millisecond a step, so it is on request only.
"""

from __future__ import annotations

import contextlib
import signal
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from diaster.envs.creating import close_env, find_horizon
from diaster.envs.delayed import FEEDBACK, KNOWN_REWARD, TRUE_REWARD
from diaster.envs.making import describe_env, make_env, raw_observation_space
from diaster.envs.processes import line_to_the_parent, start_child
from diaster.envs.source import EnvSource, PackedSource, is_portable, pack
from diaster.errors import DiasterError, one_line, with_traceback
from diaster.types import EPISODIC, EnvSpec, Feedback

Description = tuple[EnvSpec, spaces.Space[Any]]  # and what it shows before that was made flat
SAID = (TRUE_REWARD, FEEDBACK, KNOWN_REWARD)  # of what a step's `info` says
SECONDS_TO_BE_MADE = 60.0  # further ones for the first answer, which waits for imports and for the environment


class IsolatedEnv:
    """Speaks like an environment; raises RuntimeError where the one behind it raised, died or took too long."""

    def __init__(self, source: PackedSource, horizon: int | str, seconds: float, feedback: Feedback = EPISODIC) -> None:
        self._seconds = seconds
        self._process, self._connection = start_child("diaster.envs.isolation")
        with contextlib.suppress(OSError):  # it died at once: the first question finds out
            self._connection.send((source, horizon, feedback))
        self._is_made = False

    def describe(self) -> Description:
        """What it is like, without a step."""
        spec, space = self._ask(None)
        return spec, space

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        obs, info = self._ask(seed)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._ask(action)
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """End the process, at once: what it holds is of no more use."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        try:
            self._connection.send(question)
            seconds = self._seconds if self._is_made else self._seconds + SECONDS_TO_BE_MADE
            if not self._connection.poll(seconds):
                self.close()
                raise TimeoutError(f"no answer within {seconds:g} seconds")
            answer = self._connection.recv()
        except (EOFError, ConnectionError, BrokenPipeError):
            code = self._process.wait()
            reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise RuntimeError(f"its process died ({reason})") from None
        self._is_made = True
        if isinstance(answer, DiasterError | RuntimeError):
            raise answer
        return answer


def describe(source: EnvSource, horizon: int | str, isolate: bool, seconds: float) -> Description:
    """What an environment is like. It is made for that and closed again, on demand in a process of its own."""
    if isolate and is_portable(source):  # one that is not is refused where the environments to step are made
        isolated = IsolatedEnv(pack(source), horizon, seconds)
        try:
            return isolated.describe()
        except (RuntimeError, TimeoutError) as error:
            raise DiasterError(f"the environment '{source.name}' cannot be made: {error}.") from None
        finally:
            isolated.close()
    limit = find_horizon(source, horizon)
    env = make_env(source, limit)
    try:
        return describe_env(env, source.name, limit), raw_observation_space(env)
    finally:
        close_env(env)


def serve(connection: Connection) -> None:
    """Make the environment and answer until the other side closes.

    A seed is a reset, nothing asks what it is like, all else is an action.
    """
    env: gym.Env[Any, Any] | None = None
    with contextlib.suppress(EOFError, OSError):
        packed, asked, feedback = connection.recv()
        while True:
            question = connection.recv()
            try:
                if env is None:
                    source = packed.unpack()
                    horizon = find_horizon(source, asked)
                    env = make_env(source, horizon, feedback)
                if question is None:
                    connection.send((describe_env(env, source.name, horizon), raw_observation_space(env)))
                elif type(question) is int:
                    obs, _ = env.reset(seed=question)
                    connection.send((obs, {}))
                else:
                    obs, reward, terminated, truncated, info = env.step(question)
                    wanted = (TRUE_REWARD,) if feedback == EPISODIC else SAID
                    said = {name: info[name] for name in wanted if name in info}
                    connection.send((obs, float(reward), terminated, truncated, said))
            except DiasterError as error:
                connection.send(with_traceback(error))
            except Exception as error:  # whatever the environment's own code raises
                raised = RuntimeError(one_line(error))
                raised.__cause__ = error
                connection.send(with_traceback(raised))


if __name__ == "__main__":
    serve(line_to_the_parent())

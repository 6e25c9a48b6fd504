"""An environment in a process of its own: if it dies or hangs, only its episode is lost.

The process is started as `python -m diaster.envs.isolation`, as workers are, and answers one step at a time. That costs
a quarter of a millisecond a step, so it is on request only.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from diaster.envs.making import (
    TRUE_REWARD,
    close_env,
    describe_env,
    gym_spec,
    import_modules,
    make_env,
    one_line,
    raw_observation_space,
)
from diaster.envs.processes import line_to_the_parent, start_child
from diaster.errors import DiasterError
from diaster.types import EnvSpec

Description = tuple[EnvSpec, spaces.Space[Any]]  # and what it shows before that was made flat
SECONDS_TO_BE_MADE = 60.0  # further ones for the first answer, which waits for imports and for the environment


class IsolatedEnv:
    """Speaks like an environment; raises RuntimeError where the one behind it raised, died or took too long."""

    def __init__(self, env_json: str, horizon: int, imports: Sequence[str], seconds: float) -> None:
        self._seconds = seconds
        self._process, self._connection = start_child("diaster.envs.isolation")
        with contextlib.suppress(OSError):  # it died at once: the first question finds out
            self._connection.send((env_json, horizon, tuple(imports)))
        self._is_made = False

    def describe(self, env_id: str) -> Description:
        """What it is like, without a step."""
        spec, space = self._ask(env_id)
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
        if isinstance(answer, DiasterError):
            raise answer
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer


def describe(env_id: str, horizon: int, imports: Sequence[str], isolate: bool, seconds: float) -> Description:
    """What an environment is like. It is made for that and closed again, on demand in a process of its own."""
    if isolate and is_portable(env_id):  # one that is not is refused where the environments to step are made
        isolated = IsolatedEnv(gym_spec(env_id).to_json(), horizon, imports, seconds)
        try:
            return isolated.describe(env_id)
        except (RuntimeError, TimeoutError) as error:
            raise DiasterError(f"the environment '{env_id}' cannot be made: {error}.") from None
        finally:
            isolated.close()
    env = make_env(env_id, horizon)
    try:
        return describe_env(env, env_id, horizon), raw_observation_space(env)
    finally:
        close_env(env)


def is_portable(env_id: str) -> bool:
    """Whether another process can make the environment: text has to be enough."""
    spec = gym_spec(env_id)
    if not isinstance(spec.entry_point, str) or spec.entry_point.startswith("__main__:"):
        return False
    try:
        spec.to_json()
    except (TypeError, ValueError):
        return False
    return True


def serve(connection: Connection) -> None:
    """Make the environment and answer until the other side closes.

    A seed is a reset, a name asks what it is like, all else is an action.
    """
    env: gym.Env[Any, Any] | None = None
    with contextlib.suppress(EOFError, OSError):
        env_json, horizon, imports = connection.recv()
        while True:
            question = connection.recv()
            try:
                if env is None:
                    import_modules(imports)
                    env = make_env(gym.envs.registration.EnvSpec.from_json(env_json), horizon)
                if isinstance(question, str):
                    connection.send((describe_env(env, question, horizon), raw_observation_space(env)))
                elif isinstance(question, int):
                    obs, _ = env.reset(seed=question)
                    connection.send((obs, {}))
                else:
                    obs, reward, terminated, truncated, info = env.step(question)
                    connection.send((obs, float(reward), terminated, truncated, {TRUE_REWARD: info[TRUE_REWARD]}))
            except DiasterError as error:
                connection.send(error)
            except Exception as error:  # whatever the environment's own code raises
                connection.send(one_line(error))


if __name__ == "__main__":
    serve(line_to_the_parent())

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

from diaster.envs.making import TRUE_REWARD, import_modules, make_env, one_line
from diaster.envs.processes import line_to_the_parent, start_child
from diaster.errors import DiasterError


class IsolatedEnv:
    """Speaks like an environment; raises RuntimeError where the one behind it raised, died or took too long."""

    def __init__(self, env_json: str, horizon: int, imports: Sequence[str], seconds: float) -> None:
        self._seconds = seconds
        self._process, self._connection = start_child("diaster.envs.isolation")
        with contextlib.suppress(OSError):  # it died at once: the first question finds out
            self._connection.send((env_json, horizon, tuple(imports)))
        self._is_made = False

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
            # The first answer waits for imports and for the environment to be made.
            if not self._connection.poll(self._seconds if self._is_made else self._seconds + 60.0):
                self.close()
                raise TimeoutError(f"no answer within {self._seconds:g} seconds")
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


def serve(connection: Connection) -> None:
    """Make the environment and answer until the other side closes: a seed is a reset, all else an action."""
    env: gym.Env[Any, Any] | None = None
    with contextlib.suppress(EOFError, OSError):
        env_json, horizon, imports = connection.recv()
        while True:
            question = connection.recv()
            try:
                if env is None:
                    import_modules(imports)
                    env = make_env(gym.envs.registration.EnvSpec.from_json(env_json), horizon)
                if isinstance(question, int):
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

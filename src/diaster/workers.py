"""Where environments are stepped: in this process, or in worker processes that hold some seeds each.

A worker acts with its own copy of the policy for a whole chunk, so there is one message per chunk and not one
per step. Workers are started as `python -m diaster.workers`, not by multiprocessing: a user's script needs
no `__main__` guard, and no JAX is loaded in them. Results do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from threadpoolctl import threadpool_limits

from diaster.acting import POLICIES, HostParameters, HostPolicy
from diaster.collect import Collector, CollectorState, evaluation_episodes
from diaster.envs import Env, gym_spec, import_modules, make_env
from diaster.errors import DiasterError
from diaster.interruption import SIGNALS
from diaster.types import EnvSpec


class Job(NamedTuple):
    """All a worker has to know."""

    env_json: str
    spec: EnvSpec
    imports: tuple[str, ...]
    policy: str  # its name in acting.py
    seeds: tuple[int, ...]
    keep_hidden: bool


class Request(NamedTuple):
    """Collect so many steps, or evaluate so many episodes, with one policy per seed of the worker.

    `state` asks where every collector stands; `restore` brings them to such states.
    """

    kind: str  # "collect" | "evaluate" | "state" | "restore"
    parameters: Sequence[HostParameters | CollectorState | None]  # of every seed
    number: int = 0  # of the chunk or of the evaluation
    amount: int = 0


class Fleet(Protocol):
    """The environments of all seeds. `start` returns at once where it can; `finish` waits."""

    def start(self, request: Request) -> None: ...

    def finish(self) -> list[Any]: ...

    def close(self) -> None: ...


class SeedEnvs:
    """Training and evaluation environment of some seeds, in this process."""

    def __init__(
        self,
        envs: Sequence[tuple[Env, Env]],
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        keep_hidden: bool,
    ) -> None:
        self._spec, self._policy, self._seeds = spec, policy, seeds
        self._training_envs = [training for training, _ in envs]
        self._evaluation_envs = [evaluation for _, evaluation in envs]
        self._collectors = [
            Collector(env, spec, policy, seed, keep_hidden)
            for env, seed in zip(self._training_envs, seeds, strict=True)
        ]

    def answer(self, request: Request) -> list[Any]:
        """One result per seed: finished episodes, those of an evaluation, a state, or whether one was restored."""
        # The products of one observation are too small to share among threads, and another result with another
        # number of threads would make the run depend on the machine's load.
        with threadpool_limits(limits=1, user_api="blas"):
            return [self._answer_one(request, position) for position in range(len(self._seeds))]

    def _answer_one(self, request: Request, position: int) -> Any:
        collector, given = self._collectors[position], request.parameters[position]
        if request.kind == "state":
            return collector.state()
        if isinstance(given, CollectorState):
            return collector.restore(given)
        if request.kind == "collect":
            return collector.collect(given, request.number, request.amount)
        assert given is not None, "an evaluation needs a policy"
        env, seed = self._evaluation_envs[position], self._seeds[position]
        return list(evaluation_episodes(env, self._spec, self._policy, given, seed, request.number, request.amount))

    def close(self) -> None:
        for env in (*self._training_envs, *self._evaluation_envs):
            env.close()


class LocalFleet:
    """All seeds in this process; learning goes on underneath because JAX computes in the background."""

    def __init__(self, spec: EnvSpec, policy: HostPolicy, seeds: Sequence[int], keep_hidden: bool) -> None:
        envs = [(make_env(spec.id, spec.horizon), make_env(spec.id, spec.horizon)) for _ in seeds]
        self._envs = SeedEnvs(envs, spec, policy, seeds, keep_hidden)
        self._request: Request | None = None

    def start(self, request: Request) -> None:
        self._request = request

    def finish(self) -> list[Any]:
        assert self._request is not None
        return list(self._envs.answer(self._request))

    def close(self) -> None:
        self._envs.close()


class WorkerFleet:
    """Seeds dealt out to worker processes."""

    def __init__(
        self,
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        keep_hidden: bool,
        imports: Sequence[str],
        n: int,
    ) -> None:
        self._shares = [list(range(first, len(seeds), n)) for first in range(n)]
        self._n_seeds = len(seeds)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        env_json = gym_spec(spec.id).to_json()
        # BLAS reads this when it is loaded; one observation is too little work for more than one thread.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        for share in self._shares:
            ours, theirs = socket.socketpair()
            process = subprocess.Popen(
                [sys.executable, "-m", "diaster.workers", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
            )
            theirs.close()
            connection = Connection(ours.detach())
            names = tuple(seeds[position] for position in share)
            connection.send(Job(env_json, spec, tuple(imports), policy.name, names, keep_hidden))
            self._processes.append(process)
            self._connections.append(connection)

    def start(self, request: Request) -> None:
        for connection, share in zip(self._connections, self._shares, strict=True):
            parameters = [request.parameters[position] for position in share]
            with contextlib.suppress(OSError):  # the worker is gone; finish() says so
                connection.send(request._replace(parameters=parameters))

    def finish(self) -> list[Any]:
        results: list[Any] = [None] * self._n_seeds
        for connection, share, process in zip(self._connections, self._shares, self._processes, strict=True):
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                raise DiasterError(
                    f"a process that steps environments ended unexpectedly (exit code {process.wait()}); "
                    "run with --workers 0 to see the environment's own message."
                ) from None
            if isinstance(answer, DiasterError):
                raise answer
            for position, result in zip(share, answer, strict=True):
                results[position] = result
        return results

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_fleet(
    spec: EnvSpec,
    policy: HostPolicy,
    seeds: Sequence[int],
    imports: Sequence[str],
    workers: int | str,
    keep_hidden: bool = False,
) -> Fleet:
    """The environments of all seeds, in as many processes as the machine has use for.

    `keep_hidden` lets collected episodes carry the hidden rewards of their steps.
    """
    portable = _is_portable(spec.id)
    if workers == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # One seed is hidden behind learning; on two cores learning takes both, and a process would gain nothing.
        workers = min(len(seeds), cores - 1) if len(seeds) > 1 and cores > 2 and portable else 0
    assert isinstance(workers, int)
    if workers == 0:
        return LocalFleet(spec, policy, seeds, keep_hidden)
    if not portable:
        raise DiasterError(
            f"'{spec.id}' cannot be made in other processes; use --workers 0, or register it by a 'module:Class' "
            "text and with arguments that JSON can hold."
        )
    return WorkerFleet(spec, policy, seeds, keep_hidden, imports, min(workers, len(seeds)))


def _is_portable(env_id: str) -> bool:
    spec = gym_spec(env_id)
    if not isinstance(spec.entry_point, str) or spec.entry_point.startswith("__main__:"):
        return False
    try:
        spec.to_json()
    except (TypeError, ValueError):
        return False
    return True


def serve(connection: Connection) -> None:
    """A worker's life: make the environments, answer requests, end when the other side closes."""
    # A terminal or a batch system signals every process; the main one decides when this one ends.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    job: Job = connection.recv()
    envs: SeedEnvs | None = None
    try:
        while True:
            request: Request = connection.recv()
            try:
                if envs is None:
                    import_modules(job.imports)
                    env_spec = gym.envs.registration.EnvSpec.from_json(job.env_json)
                    made = [
                        (make_env(env_spec, job.spec.horizon), make_env(env_spec, job.spec.horizon)) for _ in job.seeds
                    ]
                    envs = SeedEnvs(made, job.spec, POLICIES[job.policy], job.seeds, job.keep_hidden)
                connection.send(envs.answer(request))
            except DiasterError as error:
                connection.send(error)
    except (EOFError, OSError):
        pass  # training is over
    finally:
        if envs is not None:
            envs.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))

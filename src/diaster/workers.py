"""Where environments are stepped: in this process, or in worker processes that hold some seeds each.

A worker acts with its own copy of the policy for a whole chunk, so there is one message per chunk and not one
per step. It can be given the next request before it has answered the last one, and then never waits. Workers are
started as `python -m diaster.workers`, not by multiprocessing: a user's script needs no `__main__` guard, and no JAX
is loaded in them. Results do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from threadpoolctl import threadpool_limits

from diaster.acting import POLICIES, HostParameters, HostPolicy
from diaster.children import line_to_the_parent, start_child
from diaster.collect import ORDINARY, Collector, CollectorState, Handling, MakeEnv, Rollout, evaluation_episodes
from diaster.envs import gym_spec, import_modules, make_env
from diaster.errors import DiasterError
from diaster.isolation import IsolatedEnv
from diaster.types import EnvSpec

MANY_CORES = 8
NICENESS = 10  # of processes that evaluate: nobody waits for them


class Job(NamedTuple):
    """All a worker has to know."""

    env_json: str
    spec: EnvSpec
    imports: tuple[str, ...]
    policy: str  # its name in acting.py
    seeds: tuple[int, ...]
    handling: Handling
    gives_way: bool  # to processes that others wait for


class Request(NamedTuple):
    """Collect so many steps, or evaluate so many episodes, with one policy per seed of the worker.

    `state` asks where every collector stands, `faults` for what it dropped; `restore` brings them to such states, after
    so many steps.
    """

    kind: str  # "collect" | "evaluate" | "state" | "faults" | "restore"
    parameters: Sequence[HostParameters | CollectorState | None]  # of every seed
    number: int = 0  # of the chunk or of the evaluation
    amount: int = 0


class Fleet(Protocol):
    """The environments of all seeds. `start` returns at once where it can; `finish` waits."""

    @property
    def can_queue(self) -> bool:
        """Whether the next request may be started before this one is finished."""

    def wait(self, seconds: float) -> bool:
        """Give it so much time at most; returns whether waiting any longer for the oldest answer gains nothing."""

    def start(self, request: Request) -> None: ...

    def finish(self) -> list[Any]:
        """The oldest answer that is still due."""

    def close(self) -> None: ...


class SeedEnvs:
    """Training and evaluation environment of some seeds, in this process or behind it."""

    def __init__(
        self, make: MakeEnv, spec: EnvSpec, policy: HostPolicy, seeds: Sequence[int], handling: Handling
    ) -> None:
        self._policy, self._seeds, self._retries = policy, seeds, handling.retries
        self._collectors = [Collector(make, spec, policy, seed, handling) for seed in seeds]
        self._evaluations = [Rollout(make, spec, f"seed {seed}'s evaluation") for seed in seeds]

    def answer(self, request: Request) -> list[Any]:
        """One result per seed: finished episodes, those of an evaluation, a state, or whether one was restored."""
        return [self._answer_one(request, position) for position in range(len(self._seeds))]

    def _answer_one(self, request: Request, position: int) -> Any:
        collector, given = self._collectors[position], request.parameters[position]
        if request.kind == "state":
            return collector.state()
        if request.kind == "faults":
            return collector.faults()
        if isinstance(given, CollectorState):
            return collector.restore(given, request.amount)
        if request.kind == "collect":
            return collector.collect(given, request.number, request.amount)
        assert given is not None, "an evaluation needs a policy"
        rollout, seed = self._evaluations[position], self._seeds[position]
        episodes = evaluation_episodes(
            rollout, self._policy, given, seed, request.number, request.amount, self._retries
        )
        return list(episodes)

    def close(self) -> None:
        for collector, evaluation in zip(self._collectors, self._evaluations, strict=True):
            collector.close()
            evaluation.close()


class LocalFleet:
    """All seeds in this process; learning goes on underneath because JAX computes in the background."""

    def __init__(
        self,
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        handling: Handling = ORDINARY,
        imports: Sequence[str] = (),
    ) -> None:
        make: MakeEnv = partial(make_env, spec.id, spec.horizon)
        if handling.isolate:
            make = isolated(gym_spec(spec.id).to_json(), spec.horizon, imports, handling)
        self._envs = SeedEnvs(make, spec, policy, seeds, handling)
        self._request: Request | None = None

    @property
    def can_queue(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return True  # nothing is done before `finish`

    def start(self, request: Request) -> None:
        self._request = request

    def finish(self) -> list[Any]:
        assert self._request is not None
        # The products of one observation are too small to share among threads, and another result with another
        # number of threads would make the run depend on the machine's load.
        with threadpool_limits(limits=1, user_api="blas"):
            return self._envs.answer(self._request)

    def close(self) -> None:
        self._envs.close()


class WorkerFleet:
    """Seeds dealt out to worker processes."""

    def __init__(
        self,
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        handling: Handling,
        imports: Sequence[str],
        n: int,
        gives_way: bool = False,
    ) -> None:
        self._shares = [list(range(first, len(seeds), n)) for first in range(n)]
        self._n_seeds = len(seeds)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._answers: list[deque[Any]] = [deque() for _ in self._shares]
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        # Policies are large; whoever sends them should not have to wait until they are written.
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        env_json = gym_spec(spec.id).to_json()
        for share in self._shares:
            process, connection = start_child("diaster.workers")
            names = tuple(seeds[position] for position in share)
            connection.send(Job(env_json, spec, tuple(imports), policy.name, names, handling, gives_way))
            self._processes.append(process)
            self._connections.append(connection)
        self._sender.start()

    @property
    def can_queue(self) -> bool:
        return True

    def wait(self, seconds: float | None) -> bool:
        silent = {c: answers for c, answers in zip(self._connections, self._answers, strict=True) if not answers}
        for connection in wait(list(silent), seconds) if silent else ():
            assert isinstance(connection, Connection)
            try:
                silent[connection].append(connection.recv())
            except (EOFError, OSError):
                silent[connection].append(EOFError())
        return all(self._answers)

    def start(self, request: Request) -> None:
        self._outbox.put(request)

    def _send_all(self) -> None:
        while (request := self._outbox.get()) is not None:
            for connection, share in zip(self._connections, self._shares, strict=True):
                parameters = [request.parameters[position] for position in share]
                with contextlib.suppress(OSError):  # the worker is gone; finish() says so
                    connection.send(request._replace(parameters=parameters))

    def finish(self) -> list[Any]:
        while not self.wait(None):
            pass
        results: list[Any] = [None] * self._n_seeds
        for answers, share, process in zip(self._answers, self._shares, self._processes, strict=True):
            answer = answers.popleft()
            if isinstance(answer, EOFError):
                raise DiasterError(
                    f"a process that steps environments ended unexpectedly (exit code {process.wait()}); "
                    "run with --workers 0 to see the environment's own message."
                )
            if isinstance(answer, DiasterError):
                raise answer
            for position, result in zip(share, answer, strict=True):
                results[position] = result
        return results

    def close(self) -> None:
        self._outbox.put(None)
        self._sender.join(timeout=1.0)  # it may be writing to a process that reads no more
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
    handling: Handling = ORDINARY,
    evaluates: bool = False,
) -> Fleet:
    """The environments of all seeds, to collect or to evaluate in, in as many processes as the machine has use for."""
    portable = _is_portable(spec.id)
    if workers == "auto":
        cores = available_cores()
        # On two cores learning takes both, and a process would gain nothing.
        workers = 0 if cores <= 2 or not portable else _useful_processes(len(seeds), cores, evaluates)
    assert isinstance(workers, int)
    if (workers > 0 or handling.isolate) and not portable:
        raise DiasterError(
            f"'{spec.id}' cannot be made in other processes; use --workers 0 without --isolate-envs, or register it by "
            "a 'module:Class' text and with arguments that JSON can hold."
        )
    if workers == 0:
        return LocalFleet(spec, policy, seeds, handling, imports)
    return WorkerFleet(spec, policy, seeds, handling, imports, min(workers, len(seeds)), gives_way=evaluates)


def available_cores() -> int:
    """As many as this process may use. XLA takes NPROC for that number, and so does a sweep that shares out a node."""
    told = os.environ.get("NPROC", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _useful_processes(n_seeds: int, cores: int, evaluates: bool) -> int:
    """Collecting for one seed is hidden behind learning, an evaluation is not: it takes as long as many chunks."""
    if n_seeds == 1 and not evaluates:
        return 0
    if n_seeds <= 2 * cores and cores >= MANY_CORES:
        return n_seeds  # the system shares cores out more evenly than whole seeds can be
    most = min(n_seeds, cores // 2 if evaluates else cores - 1)
    each = -(-n_seeds // most)
    return -(-n_seeds // each)  # no more than it takes for nobody to have more seeds than that


def isolated(env_json: str, horizon: int, imports: Sequence[str], handling: Handling) -> MakeEnv:
    """How to make an environment in a process of its own."""
    return partial(IsolatedEnv, env_json, horizon, imports, handling.step_seconds)


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
    job: Job = connection.recv()
    if job.gives_way and hasattr(os, "nice"):
        os.nice(NICENESS)
    requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    # Whoever sends must not have to wait until we have answered: we might be waiting for them to read that answer.
    threading.Thread(target=_take_requests, args=(connection, requests), daemon=True).start()
    envs: SeedEnvs | None = None
    try:
        while (request := requests.get()) is not None:
            try:
                if envs is None:
                    import_modules(job.imports)
                    env_spec = gym.envs.registration.EnvSpec.from_json(job.env_json)
                    make: MakeEnv = partial(make_env, env_spec, job.spec.horizon)
                    if job.handling.isolate:
                        make = isolated(job.env_json, job.spec.horizon, job.imports, job.handling)
                    envs = SeedEnvs(make, job.spec, POLICIES[job.policy], job.seeds, job.handling)
                connection.send(envs.answer(request))
            except DiasterError as error:
                connection.send(error)
    except OSError:
        pass  # training is over
    finally:
        if envs is not None:
            envs.close()


def _take_requests(connection: Connection, requests: queue.SimpleQueue[Request | None]) -> None:
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        requests.put(None)  # training is over


if __name__ == "__main__":
    serve(line_to_the_parent())

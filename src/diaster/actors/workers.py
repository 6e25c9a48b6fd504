"""Where environments are stepped: in this process, or in worker processes that hold some of them each.

A worker acts by itself for a whole chunk, so there is one message per chunk and not one per step; the policies lie in
memory that it shares with us. It can be given the next request before it has answered the last one, and then never
waits; whoever gives it need not wait either, not even for the policies to be there. Workers are started as
`python -m diaster.actors.workers`, not by multiprocessing: a user's script needs no `__main__` guard, and no JAX is
loaded in them. Results do not depend on the number of workers.
"""

from __future__ import annotations

import itertools
import os
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from threadpoolctl import threadpool_limits

from diaster.actors.acting import POLICIES, HostParameters, HostPolicy
from diaster.actors.collect import (
    ALL_OF_IT,
    ORDINARY,
    Collector,
    CollectorState,
    Handling,
    MakeEnv,
    Outcome,
    Part,
    Rollout,
    settle_evaluation,
    try_episodes,
)
from diaster.actors.parcels import Receiver, Sender, make_memory
from diaster.envs.isolation import IsolatedEnv
from diaster.envs.making import gym_spec, import_modules, make_env
from diaster.envs.processes import line_to_the_parent, start_child
from diaster.errors import DiasterError
from diaster.types import EnvSpec, Episode, EvaluationEpisode

MANY_CORES = 8
MOST_BESIDE = 5  # environments that share the evaluation of a seed
# How far processes give way: those that collect to the one that launches learning on a GPU, and those that evaluate,
# for which nobody waits, to both.
NICE_COLLECTING, NICE_EVALUATING = 5, 15
GLANCE_SECONDS = 0.5  # how often to look, while waiting for answers, whether the request could be sent at all


class Job(NamedTuple):
    """All a worker has to know."""

    env_json: str
    spec: EnvSpec
    imports: tuple[str, ...]
    policy: str  # its name in acting.py
    seeds: tuple[int, ...]
    handling: Handling
    parts: tuple[Part, ...]  # of those that share the work of a seed, which each is
    niceness: int
    memory: int | None  # the handle of what it shares with us


class Request(NamedTuple):
    """Collect so many steps, or evaluate numbered episodes, with a policy for each of the worker's environments.

    Episodes are numbered from `first` to `amount`. Where several share the work of a seed, each does its part.
    `state` asks where every collector stands; `restore` brings them to such states, after so many steps.
    """

    kind: str  # "collect" | "evaluate" | "state" | "restore"
    parameters: Sequence[HostParameters | CollectorState | None]  # of every environment
    number: int = 0  # of the chunk or of the evaluation
    amount: int = 0
    first: int = 0


Policies = Callable[[], Sequence[HostParameters | None]]  # of every seed, from whoever waits until they are there


class Fleet(Protocol):
    """The environments of all seeds, one or more of each. `start` returns at once; `finish` waits."""

    @property
    def can_queue(self) -> bool:
        """Whether the next request may be started before this one is finished."""

    def wait(self, seconds: float) -> bool:
        """Give it so much time at most; returns whether waiting any longer for the oldest answer gains nothing."""

    def start(self, make_request: Callable[[], Request]) -> None:
        """Ask for what is asked; that may have to be waited for, which happens in another thread or in `finish`."""

    def finish(self) -> list[Any]:
        """The oldest answer that is still due."""

    def close(self) -> None: ...


class SeedEnvs:
    """Training and evaluation environment of some seeds, in this process or behind it."""

    def __init__(
        self,
        make: MakeEnv,
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        handling: Handling,
        parts: Sequence[Part],
    ) -> None:
        self._policy, self._seeds, self._parts, self._retries = policy, seeds, parts, handling.retries
        self._collectors = [
            Collector(make, spec, policy, seed, handling, part) for seed, part in zip(seeds, parts, strict=True)
        ]
        self._evaluations = [Rollout(make, spec, f"seed {seed}'s evaluation") for seed in seeds]

    def answer(self, request: Request) -> list[Any]:
        """One result for each: finished episodes and faults so far, episodes of an evaluation, a state, …"""
        return [self._answer_one(request, position) for position in range(len(self._seeds))]

    def _answer_one(self, request: Request, position: int) -> Any:
        collector, given = self._collectors[position], request.parameters[position]
        if request.kind == "state":
            return collector.state()
        if isinstance(given, CollectorState):
            return collector.restore(given, request.amount)
        if request.kind == "collect":
            return collector.collect(given, request.number, request.amount), collector.faults()
        if given is None:
            return []
        rollout, seed = self._evaluations[position], self._seeds[position]
        part = self._parts[position]
        numbers = range(request.first + part.number, request.amount, part.of)
        return try_episodes(rollout, self._policy, given, seed, request.number, numbers, self._retries)

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
        parts: Sequence[Part] | None = None,
    ) -> None:
        make: MakeEnv = partial(make_env, spec.id, spec.horizon)
        if handling.isolate:
            make = isolated(gym_spec(spec.id).to_json(), spec.horizon, imports, handling)
        self._envs = SeedEnvs(make, spec, policy, seeds, handling, parts or [ALL_OF_IT] * len(seeds))
        self._make_request: Callable[[], Request] | None = None

    @property
    def can_queue(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return True  # nothing is done before `finish`

    def start(self, make_request: Callable[[], Request]) -> None:
        self._make_request = make_request

    def finish(self) -> list[Any]:
        assert self._make_request is not None
        request = self._make_request()
        # The products of one observation are too small to share among threads, and another result with another
        # number of threads would make the run depend on the machine's load.
        with threadpool_limits(limits=1, user_api="blas"):
            return self._envs.answer(request)

    def close(self) -> None:
        self._envs.close()


class WorkerFleet:
    """Environments dealt out to worker processes."""

    def __init__(
        self,
        spec: EnvSpec,
        policy: HostPolicy,
        seeds: Sequence[int],
        handling: Handling,
        imports: Sequence[str],
        n: int,
        parts: Sequence[Part] | None = None,
        niceness: int = 0,
    ) -> None:
        self._shares = [list(range(first, len(seeds), n)) for first in range(n)]
        self._n_envs = len(seeds)
        parts = parts or [ALL_OF_IT] * len(seeds)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._answers: list[deque[Any]] = [deque() for _ in self._shares]
        self._asked: queue.SimpleQueue[Callable[[], Request] | None] = queue.SimpleQueue()
        self._n_answers = [0] * n  # that have come from each
        memory = make_memory()
        self._failure: Exception | None = None  # of what was to be asked
        env_json = gym_spec(spec.id).to_json()
        for share in self._shares:
            process, connection = start_child("diaster.actors.workers", handles=() if memory is None else [memory])
            names = tuple(seeds[position] for position in share)
            theirs = tuple(parts[position] for position in share)
            connection.send(Job(env_json, spec, tuple(imports), policy.name, names, handling, theirs, niceness, memory))
            self._processes.append(process)
            self._connections.append(connection)
        self._sender = Sender(self._connections, memory)
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    @property
    def can_queue(self) -> bool:
        return True

    def wait(self, seconds: float) -> bool:
        silent = {c: number for number, c in enumerate(self._connections) if not self._answers[number]}
        for connection in wait(list(silent), seconds) if silent else ():
            assert isinstance(connection, Connection)
            number = silent[connection]
            try:
                self._answers[number].append(connection.recv())
                self._n_answers[number] += 1
            except (EOFError, OSError):
                self._answers[number].append(EOFError())
        return self._failure is not None or all(self._answers)

    def start(self, make_request: Callable[[], Request]) -> None:
        self._asked.put(make_request)

    def _send_all(self) -> None:
        """A thread's life: to every worker its share of each request, as soon as that is known."""
        try:
            while (make_request := self._asked.get()) is not None:
                request = make_request()
                shares = [[request.parameters[position] for position in share] for share in self._shares]
                messages = [request._replace(parameters=share) for share in shares]
                is_passing = request.kind in ("collect", "evaluate")  # a worker keeps nothing of those
                self._sender.send(messages, min(self._n_answers), is_passing)
        except Exception as error:  # the device's, if anybody's; finish() raises it
            self._failure = error

    def finish(self) -> list[Any]:
        while not self.wait(GLANCE_SECONDS):
            pass
        if self._failure is not None:
            raise self._failure
        results: list[Any] = [None] * self._n_envs
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
        self._asked.put(None)
        self._thread.join(timeout=1.0)  # it may be writing to a process that reads no more
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # The interpreter must not end while it waits for the device. Nobody reads what it writes; learning ends.
        self._thread.join()
        self._sender.close()


class Collectors:
    """Environments to collect in, so many for each seed."""

    def __init__(self, fleet: Fleet, n_seeds: int, n_beside: int = 1) -> None:
        self._fleet, self._n_seeds, self._n_beside = fleet, n_seeds, n_beside
        self.faults: list[tuple[int, str]] = [(0, "")] * n_seeds
        """How many episodes every seed had lost when the last chunk ended, and what was wrong with one of the last."""
        self._counts = [[0] * n_beside for _ in range(n_seeds)]  # of every environment

    @property
    def can_queue(self) -> bool:
        """Whether the next chunk may be started before this one is finished."""
        return self._fleet.can_queue

    def start(self, policies: Policies, chunk: int, n_steps: int) -> None:
        """Let every seed take so many steps with its policy; returns at once."""
        self._fleet.start(lambda: Request("collect", shared(policies(), self._n_beside), chunk, n_steps))

    def finish(self) -> list[list[Episode]]:
        """The episodes that every seed has finished in the oldest chunk that is still due."""
        episodes = []
        for position, parts in enumerate(together(self._fleet.finish(), self._n_beside)):
            episodes.append([episode for finished, _ in parts for episode in finished])
            counts, before = [count for _, (count, _) in parts], self._counts[position]
            new = [text for (_, (count, text)), known in zip(parts, before, strict=True) if count > known]
            self.faults[position] = sum(counts), new[-1] if new else self.faults[position][1]
            self._counts[position] = counts
        return episodes

    def states(self) -> list[CollectorState]:
        """Where every environment stands, seed by seed."""
        self._fleet.start(lambda: Request("state", [None] * self._n_seeds * self._n_beside))
        return self._fleet.finish()

    def restore(self, states: Sequence[CollectorState], n_steps: int) -> list[bool]:
        """Go back to such states, after so many steps of every seed; whether each seed's environments did so."""
        if len(states) != self._n_seeds * self._n_beside:
            raise ValueError(f"{len(states)} states for {self._n_seeds * self._n_beside} environments")
        self._counts = [[state.faults for state in parts] for parts in together(states, self._n_beside)]
        self.faults = [(sum(counts), "") for counts in self._counts]
        self._fleet.start(lambda: Request("restore", states, 0, n_steps))
        return [all(parts) for parts in together(self._fleet.finish(), self._n_beside)]

    def close(self) -> None:
        self._fleet.close()


def shared(of_seeds: Sequence[Any], n_beside: int) -> list[Any]:
    """The same for all that share the work of a seed."""
    return [of_seed for of_seed in of_seeds for _ in range(n_beside)]


def together(answers: Sequence[Any], n_beside: int) -> list[Sequence[Any]]:
    """The way back: the answers of all that share the work of each seed."""
    return [answers[first : first + n_beside] for first in range(0, len(answers), n_beside)]


class Evaluators:
    """Environments to evaluate in. The episodes of a seed may be shared out; that changes none of them."""

    def __init__(self, fleet: Fleet, retries: int, n_beside: int = 1) -> None:
        self._fleet, self._retries, self._n_beside = fleet, retries, n_beside
        self._make_request: Callable[[], Request] | None = None

    def start(self, policies: Policies, evaluation: int, n_episodes: int) -> None:
        """Evaluate every seed's policy; returns at once."""
        self._make_request = lambda: Request("evaluate", shared(policies(), self._n_beside), evaluation, n_episodes)
        self._fleet.start(self._make_request)

    def wait(self, seconds: float) -> bool:
        """Whether waiting longer than so gains nothing."""
        return self._fleet.wait(seconds)

    def finish(self) -> list[list[EvaluationEpisode]]:
        """The episodes of every seed."""
        outcomes = self._gathered()
        return [
            settle_evaluation(of_seed, partial(self._one_more, position), self._retries)
            for position, of_seed in enumerate(outcomes)
        ]

    def close(self) -> None:
        self._fleet.close()

    def _one_more(self, position: int, numbers: Sequence[int]) -> list[Outcome]:
        assert self._make_request is not None
        [number] = numbers
        request = self._make_request()
        of_seeds = enumerate(request.parameters[:: self._n_beside])
        alone = shared([given if seed == position else None for seed, given in of_seeds], self._n_beside)
        again = request._replace(parameters=alone, first=number, amount=number + 1)
        self._fleet.start(lambda: again)
        return self._gathered()[position]

    def _gathered(self) -> list[list[Outcome]]:
        """What every seed's episodes came to, in the order of their numbers."""
        return [
            [outcome for row in itertools.zip_longest(*parts) for outcome in row if outcome is not None]
            for parts in together(self._fleet.finish(), self._n_beside)
        ]


class Place(NamedTuple):
    """Which environments are to be stepped, with what, and where."""

    spec: EnvSpec
    policy: HostPolicy
    seeds: Sequence[int]
    imports: Sequence[str] = ()
    workers: int | str = "auto"
    handling: Handling = ORDINARY
    is_beside_gpu: bool = False


def make_collectors(place: Place, n_beside: int = 1) -> Collectors:
    """So many environments for each seed to collect in, in as many processes as the machine has use for."""
    n_envs = len(place.seeds) * n_beside
    n_workers = _number_of_processes(place, n_envs, available_cores() - 1)
    if place.workers == "auto" and n_envs == 1:
        n_workers = 0  # collecting in one environment is hidden behind learning
    niceness = NICE_COLLECTING if place.is_beside_gpu else 0
    return Collectors(_make_fleet(place, n_workers, n_beside, niceness), len(place.seeds), n_beside)


def make_evaluators(place: Place, n_episodes: int) -> Evaluators:
    """The same to evaluate in, so many episodes of each seed; that takes as long as many chunks.

    The episodes of a seed are shared out among processes also where there is but one for each seed: some policies last
    a hundred times as long as others, and an evaluation ends with the process that has most to do.
    """
    cores, n_seeds = available_cores(), len(place.seeds)
    n_workers = _number_of_processes(place, n_seeds, cores // 2)
    most = min(n_episodes, MOST_BESIDE)
    n_beside = 1
    if place.workers == "auto" and n_workers == n_seeds and min(cores // n_seeds, most) > 1:
        n_beside = min(cores // n_seeds, most)
        n_workers *= n_beside
    elif place.workers == "auto" and n_workers > 1 and not place.handling.isolate:  # that would be a process for each
        n_beside = most
    fleet = _make_fleet(place, n_workers, n_beside, NICE_EVALUATING)
    return Evaluators(fleet, place.handling.retries, n_beside)


def _make_fleet(place: Place, n_workers: int, n_beside: int, niceness: int) -> Fleet:
    spec, policy, seeds, imports, _, handling, _ = place
    parts = [Part(number, n_beside) for _ in seeds for number in range(n_beside)]
    of_envs = shared(seeds, n_beside)
    if n_workers == 0:
        return LocalFleet(spec, policy, of_envs, handling, imports, parts)
    return WorkerFleet(spec, policy, of_envs, handling, imports, n_workers, parts, niceness)


def _number_of_processes(place: Place, n_envs: int, spare_cores: int) -> int:
    """As many as were asked for, or as are of use; 0 for this process."""
    workers, is_portable, cores = place.workers, _is_portable(place.spec.id), available_cores()
    if workers == "auto":
        # On two cores learning takes both, and a process would gain nothing.
        if cores <= 2 or not is_portable:
            workers = 0
        elif cores >= MANY_CORES and n_envs <= 2 * cores:
            return n_envs  # the system shares cores out more evenly than whole environments can be
        else:
            each = -(-n_envs // min(n_envs, spare_cores))
            return -(-n_envs // each)  # no more than it takes for nobody to have more of them than that
    assert isinstance(workers, int)
    if (workers > 0 or place.handling.isolate) and not is_portable:
        raise DiasterError(
            f"'{place.spec.id}' cannot be made in other processes; use --workers 0 without --isolate-envs, or register "
            "it by a 'module:Class' text and with arguments that JSON can hold."
        )
    return min(workers, n_envs)


def available_cores() -> int:
    """As many as this process may use. XLA takes NPROC for that number, and so does a sweep that shares out a node."""
    told = os.environ.get("NPROC", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    if hasattr(os, "nice"):
        os.nice(job.niceness)
    requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    # Whoever sends must not have to wait until we have answered: we might be waiting for them to read that answer.
    receiver = Receiver(connection, job.memory)
    threading.Thread(target=_take_requests, args=(receiver, requests), daemon=True).start()
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
                    envs = SeedEnvs(make, job.spec, POLICIES[job.policy], job.seeds, job.handling, job.parts)
                connection.send(envs.answer(request))
            except DiasterError as error:
                connection.send(error)
    except OSError:
        pass  # training is over
    finally:
        if envs is not None:
            envs.close()


def _take_requests(receiver: Receiver, requests: queue.SimpleQueue[Request | None]) -> None:
    try:
        while True:
            requests.put(receiver.receive())
    except (EOFError, OSError):
        requests.put(None)  # training is over


if __name__ == "__main__":
    serve(line_to_the_parent())

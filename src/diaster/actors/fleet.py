"""Environments of all seeds behind one small interface: ask for something, go on, take the answer.

A fleet answers one request at a time. `LocalFleet` steps its environments in this process, `WorkerFleet`
(`workers.py`) in processes of its own; the answers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from threadpoolctl import threadpool_limits

from diaster.actors.acting import HostParameters, HostPolicy
from diaster.actors.collector import Collector, CollectorState, Share
from diaster.actors.evaluation import try_episodes
from diaster.actors.rollout import Handling, MakeEnv, Rollout
from diaster.actors.vectors import VectorCollector, VectorEvaluation
from diaster.envs.isolation import IsolatedEnv
from diaster.envs.making import make_env
from diaster.envs.source import EnvSource, PackedSource, pack
from diaster.types import EnvSpec


class Collect(NamedTuple):
    """Take steps of a numbered chunk; environments that share a seed share them. The answer: episodes and faults."""

    of_envs: Sequence[HostParameters | None]  # a policy for each environment; None acts at random
    chunk: int
    n_steps: int


class Evaluate(NamedTuple):
    """Run the episodes `first` … `end − 1` of a numbered evaluation. The answer: what became of each."""

    of_envs: Sequence[HostParameters | None]  # None runs nothing
    evaluation: int
    first: int
    end: int


class TakeStates(NamedTuple):
    """Say where every collector stands."""

    of_envs: Sequence[None]


class RestoreStates(NamedTuple):
    """Bring the collectors to such states, after n steps of the run. The answer: whether each repeated itself."""

    of_envs: Sequence[CollectorState]
    n_steps: int


Request = Collect | Evaluate | TakeStates | RestoreStates


class FleetSpec(NamedTuple):
    """Which environments a fleet steps, and how."""

    source: EnvSource | PackedSource  # packed, where it goes to another process
    spec: EnvSpec
    policy: HostPolicy
    seeds: Sequence[int]  # of every environment
    shares: Sequence[Share]  # of every environment
    handling: Handling


class Fleet(Protocol):
    """Environments that answer one request at a time."""

    def start(self, request: Request) -> None:
        """Ask; returns at once."""

    def is_done(self) -> bool:
        """Whether waiting gains nothing: the answer is there, or is computed by `finish`."""

    def finish(self) -> list[Any]:
        """The answer of every environment; waits for it."""

    def close(self) -> None:
        """End all environments."""


class SeedEnvs:
    """Some environments with what is done in them: collecting and evaluating."""

    def __init__(self, fleet: FleetSpec) -> None:
        source = fleet.source.unpack() if isinstance(fleet.source, PackedSource) else fleet.source
        self._fleet = fleet
        self._collectors: list[Collector | VectorCollector]
        self._evaluations: list[Rollout | VectorEvaluation]
        if fleet.spec.lanes:
            given = source, fleet.spec, fleet.policy
            self._collectors = [VectorCollector(*given, seed, fleet.handling) for seed in fleet.seeds]
            self._evaluations = [VectorEvaluation(*given, seed, fleet.handling) for seed in fleet.seeds]
            return
        make = maker(source, fleet.spec.horizon, fleet.handling)
        self._collectors = [
            Collector(make, fleet.spec, fleet.policy, seed, fleet.handling, share)
            for seed, share in zip(fleet.seeds, fleet.shares, strict=True)
        ]
        feedback = fleet.handling.feedback
        self._evaluations = [Rollout(make, fleet.spec, f"seed {seed}'s evaluation", feedback) for seed in fleet.seeds]

    def answer(self, request: Request) -> list[Any]:
        """One result for each environment."""
        return [self._answer_one(request, position) for position in range(len(self._collectors))]

    def _answer_one(self, request: Request, position: int) -> Any:
        collector = self._collectors[position]
        match request:
            case Collect(of_envs, chunk, n_steps):
                return collector.collect(of_envs[position], chunk, n_steps), collector.faults()
            case TakeStates():
                return collector.state()
            case RestoreStates(of_envs, n_steps):
                return collector.restore(of_envs[position], n_steps)
            case Evaluate(of_envs, evaluation, first, end):
                parameters, share = of_envs[position], self._fleet.shares[position]
                if parameters is None:
                    return []
                numbers = range(first + share.number, end, share.of)
                where, seed = self._evaluations[position], self._fleet.seeds[position]
                policy, retries = self._fleet.policy, self._fleet.handling.retries
                if isinstance(where, VectorEvaluation):
                    return where.try_episodes(parameters, evaluation, numbers)
                return try_episodes(where, policy, parameters, seed, evaluation, numbers, retries)

    def close(self) -> None:
        for collector, evaluation in zip(self._collectors, self._evaluations, strict=True):
            collector.close()
            evaluation.close()


class LocalFleet:
    """All environments in this process. Learning goes on meanwhile, because JAX computes in the background."""

    def __init__(self, fleet: FleetSpec) -> None:
        self._envs = SeedEnvs(fleet)
        self._request: Request | None = None

    def start(self, request: Request) -> None:
        self._request = request

    def is_done(self) -> bool:
        return True

    def finish(self) -> list[Any]:
        assert self._request is not None, "start comes first"
        # The products of one observation are too small to share among threads, and another result with another
        # number of threads would make the run depend on the machine's load.
        with threadpool_limits(limits=1, user_api="blas"):
            return self._envs.answer(self._request)

    def close(self) -> None:
        self._envs.close()


def maker(source: EnvSource, horizon: int, handling: Handling) -> MakeEnv:
    """How to make an environment: in this process or, on demand, in one of its own."""
    if handling.isolate:
        return partial(IsolatedEnv, pack(source), horizon, handling.step_seconds, handling.feedback)
    return partial(make_env, source, horizon, handling.feedback)

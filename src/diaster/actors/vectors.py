"""Collecting and evaluating in vector environments: all environments of a seed are stepped at once.

A vector resets its environments itself, with random numbers of its own. So its episodes follow from the whole of its
past, and a run that was cut off goes on in a new vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from diaster.actors.acting import HostParameters, HostPolicy
from diaster.actors.collector import Collector, CollectorState, Share
from diaster.actors.evaluation import Outcome
from diaster.actors.rollout import Handling, Rollout
from diaster.envs.creating import close_env, created
from diaster.envs.delayed import TRUE_REWARD
from diaster.envs.making import as_learnt
from diaster.envs.source import EnvSource
from diaster.envs.vector import FirstOf, Lanes
from diaster.errors import EnvironmentFault
from diaster.types import EnvSpec, Episode, EvaluationEpisode, Feedback, FloatArray, Stream, reset_seed


class Vector:
    """A vector environment, made when it is needed, whose lanes are given out as environments."""

    def __init__(self, source: EnvSource, spec: EnvSpec, feedback: Feedback) -> None:
        self._source, self._spec, self._feedback = source, spec, feedback
        self._lanes: Lanes | None = None

    def reset(self, seed: int) -> None:
        """Begin an episode in every lane."""
        if self._lanes is None:
            env = created(self._source).unwrapped
            assert isinstance(env, FirstOf), "what made a vector before"
            self._lanes = Lanes(env.vector, self._source.name, self._spec.horizon)
        self._lanes.reset(seed)

    @property
    def lanes(self) -> Lanes:
        assert self._lanes is not None, "reset first"
        return self._lanes

    @property
    def is_made(self) -> bool:
        return self._lanes is not None

    def lane(self, number: int) -> Any:
        """One of its environments, as learning sees it."""
        return as_learnt(self.lanes.each[number], self._source, self._feedback)

    def step(self, actions: Sequence[FloatArray | None]) -> None:
        """Step all lanes; those without an action take any."""
        any_action = np.zeros(self._spec.action_dim, np.float32)
        self.lanes.step([self._spec.to_env(any_action if action is None else action) for action in actions])

    def close(self) -> None:
        """Let it go; the next reset makes a new one."""
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            close_env(lanes)


class VectorCollector:
    """The training environments of one seed in one vector. To its fleet it is a single `Collector`.

    The vector takes whole steps of all lanes. What a chunk's steps leave over is taken in the next chunk. A lane that
    is reset by a step, as `NEXT_STEP` does it, takes none of its own in it.
    """

    def __init__(self, source: EnvSource, spec: EnvSpec, policy: HostPolicy, seed: int, handling: Handling) -> None:
        self._vector, self._spec, self._seed = Vector(source, spec, handling.feedback), spec, seed
        self._retries, self._faults, self._in_a_row, self._last_fault = handling.retries, 0, 0, ""
        self._resets = 0  # of the whole vector
        self._left_over = 0
        self._collectors = [
            Collector(partial(self._vector.lane, number), spec, policy, seed, handling, Share(number, spec.lanes))
            for number in range(spec.lanes)
        ]

    def collect(self, parameters: HostParameters | None, chunk: int, n_steps: int) -> list[Episode]:
        """Take n steps in all lanes together; a fault of one of them drops the episodes of all, and the vector."""
        n_each, self._left_over = divmod(self._left_over + n_steps, self._spec.lanes)
        draws = [collector.draws(parameters, chunk, n_each) for collector in self._collectors]
        finished = []
        for step in range(n_each):
            try:
                episodes = self._step(parameters, [of_lane[step] for of_lane in draws])
            except EnvironmentFault as fault:
                self._faults, self._in_a_row, self._last_fault = self._faults + 1, self._in_a_row + 1, str(fault)
                if self._in_a_row > self._retries:
                    raise
                self._drop()
                continue
            self._in_a_row = 0 if episodes else self._in_a_row
            finished += episodes
        return finished

    def _step(self, parameters: HostParameters | None, draws: Sequence[FloatArray]) -> list[Episode]:
        if not self._vector.is_made:
            number, self._resets = self._resets, self._resets + 1
            self._vector.reset(reset_seed(self._seed, Stream.COLLECT_RESET, number))
        idle = self._vector.lanes.prepare()
        actions = [
            None if is_idle else collector.choose(parameters, draw)
            for collector, draw, is_idle in zip(self._collectors, draws, idle, strict=True)
        ]
        self._vector.step(actions)
        episodes = [
            collector.take(action)
            for collector, action in zip(self._collectors, actions, strict=True)
            if action is not None
        ]
        return [episode for episode in episodes if episode is not None]

    def _drop(self) -> None:
        for collector in self._collectors:
            collector.drop()
        self._vector.close()

    def faults(self) -> tuple[int, str]:
        """How many times the vector was dropped, and what was wrong the last time."""
        return self._faults, self._last_fault

    def close(self) -> None:
        """Let the vector go."""
        self._drop()

    def state(self) -> CollectorState:
        """The counts alone: unfinished episodes of a vector cannot be brought back."""
        return _nothing_under_way(self._spec)._replace(
            episodes=self._resets, faults=self._faults, in_a_row=self._in_a_row
        )

    def restore(self, state: CollectorState, n_steps: int = 0) -> bool:
        """Go on after n steps in a new vector. Returns whether there was none before it."""
        self._drop()
        self._resets, self._faults, self._in_a_row = state.episodes, state.faults, state.in_a_row
        self._left_over = n_steps % self._spec.lanes
        for collector in self._collectors:
            collector.restore(_nothing_under_way(self._spec), n_steps)
        return self._resets == 0


def _nothing_under_way(spec: EnvSpec) -> CollectorState:
    none = np.zeros((0, spec.obs_dim), spec.obs_dtype), np.zeros((0, spec.action_dim), np.float32)
    return CollectorState(0, 0, 0, *none, np.zeros(0, np.float32))


class VectorEvaluation:
    """The evaluation episodes of one seed, as many at a time as the vector has lanes: each lane runs one."""

    def __init__(self, source: EnvSource, spec: EnvSpec, policy: HostPolicy, seed: int, handling: Handling) -> None:
        feedback = handling.feedback
        self._vector, self._spec, self._policy, self._seed = Vector(source, spec, feedback), spec, policy, seed
        self._retries = handling.retries
        self._rollouts = [
            Rollout(partial(self._vector.lane, number), spec, f"seed {seed}'s evaluation (lane {number + 1})", feedback)
            for number in range(spec.lanes)
        ]

    def try_episodes(self, parameters: HostParameters, evaluation: int, numbers: Sequence[int]) -> list[Outcome]:
        """Numbered episodes of an evaluation. A fault costs those that run with it, and counts once."""
        outcomes: list[Outcome] = []
        faults = 0
        for first in range(0, len(numbers), self._spec.lanes):
            together = numbers[first : first + self._spec.lanes]
            finished: list[Outcome] = []
            try:
                start = reset_seed(self._seed, Stream.EVALUATE_RESET, evaluation, together[0])
                self._run(parameters, start, len(together), finished)
            except EnvironmentFault as fault:
                finished.append(fault)
                faults += 1
                self.close()
            outcomes += finished
            if faults > self._retries:
                break
        return outcomes

    def _run(self, parameters: HostParameters, start: int, n_episodes: int, finished: list[Outcome]) -> None:
        """Let the first n lanes run an episode each; one that has ended waits for the others."""
        self._vector.reset(start)
        running = {number: self._rollouts[number].reset(start) for number in range(n_episodes)}
        hidden: dict[int, list[float]] = {number: [] for number in running}
        while running:
            actions: list[FloatArray | None] = [None] * self._spec.lanes
            for number, obs in running.items():
                actions[number] = self._policy.act(parameters, obs, None)
            self._vector.step(actions)
            for number in list(running):
                action = actions[number]
                assert action is not None
                running[number], episode = self._rollouts[number].step(action)
                hidden[number].append(self._rollouts[number].info[TRUE_REWARD])
                if episode is not None:
                    del running[number]
                    finished.append(EvaluationEpisode(episode, np.asarray(hidden[number], np.float32)))

    def close(self) -> None:
        """Let the vector go."""
        for rollout in self._rollouts:
            rollout.close()
        self._vector.close()

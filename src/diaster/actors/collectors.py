"""Collecting for all seeds: chunks of steps, in one environment of each seed or in several that share its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diaster.actors.acting import HostParameters
from diaster.actors.collector import CollectorState
from diaster.actors.fleet import Collect, Fleet, RestoreStates, TakeStates
from diaster.types import Episode


class Collectors:
    """The environments that all seeds collect in."""

    def __init__(self, fleet: Fleet, n_seeds: int, envs_per_seed: int = 1) -> None:
        self._fleet, self._n_seeds, self._per_seed = fleet, n_seeds, envs_per_seed
        self.faults: list[tuple[int, str]] = [(0, "")] * n_seeds
        """How many episodes every seed had lost when the last chunk ended, and what was wrong with one of the last."""
        self._counts = [[0] * envs_per_seed for _ in range(n_seeds)]  # of every environment

    def collect(self, policies: Sequence[HostParameters | None], chunk: int, n_steps: int) -> list[list[Episode]]:
        """Let every seed take n steps with its policy, or at random; the episodes that each has finished."""
        self._fleet.start(Collect(repeated(policies, self._per_seed), chunk, n_steps))
        episodes = []
        for position, answers in enumerate(grouped(self._fleet.finish(), self._per_seed)):
            episodes.append([episode for finished, _ in answers for episode in finished])
            counts, before = [count for _, (count, _) in answers], self._counts[position]
            new = [text for (_, (count, text)), known in zip(answers, before, strict=True) if count > known]
            self.faults[position] = sum(counts), new[-1] if new else self.faults[position][1]
            self._counts[position] = counts
        return episodes

    def states(self) -> list[CollectorState]:
        """Where every environment stands, seed by seed."""
        self._fleet.start(TakeStates([None] * self._n_seeds * self._per_seed))
        return self._fleet.finish()

    def restore(self, states: Sequence[CollectorState], n_steps: int) -> list[bool]:
        """Bring the environments to such states, after n steps of every seed; whether each seed's repeated itself."""
        assert len(states) == self._n_seeds * self._per_seed, "a state for each environment"
        self._counts = [[state.faults for state in of_seed] for of_seed in grouped(states, self._per_seed)]
        self.faults = [(sum(counts), "") for counts in self._counts]
        self._fleet.start(RestoreStates(states, n_steps))
        return [all(of_seed) for of_seed in grouped(self._fleet.finish(), self._per_seed)]

    def close(self) -> None:
        self._fleet.close()


def repeated(of_seeds: Sequence[Any], per_seed: int) -> list[Any]:
    """What belongs to a seed, for each of its environments."""
    return [of_seed for of_seed in of_seeds for _ in range(per_seed)]


def grouped(of_envs: Sequence[Any], per_seed: int) -> list[Sequence[Any]]:
    """The inverse: what the environments of each seed have answered."""
    return [of_envs[first : first + per_seed] for first in range(0, len(of_envs), per_seed)]

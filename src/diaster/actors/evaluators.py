"""Evaluating for all seeds, while the caller goes on with something else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from diaster.actors.acting import HostParameters
from diaster.actors.collectors import grouped, repeated
from diaster.actors.evaluation import Outcome, settle_evaluation
from diaster.actors.fleet import Evaluate, Fleet
from diaster.types import EvaluationEpisode


class Evaluators:
    """Environments to evaluate in. The episodes of a seed may be shared out; that changes none of them."""

    def __init__(self, fleet: Fleet, retries: int, envs_per_seed: int = 1) -> None:
        self._fleet, self._retries, self._per_seed = fleet, retries, envs_per_seed
        self._policies: Sequence[HostParameters] = ()
        self._evaluation = 0

    def start(self, policies: Sequence[HostParameters], evaluation: int, n_episodes: int) -> None:
        """Evaluate every seed's policy; returns at once."""
        self._policies, self._evaluation = policies, evaluation
        self._fleet.start(Evaluate(repeated(policies, self._per_seed), evaluation, 0, n_episodes))

    def is_done(self) -> bool:
        """Whether waiting gains nothing."""
        return self._fleet.is_done()

    def finish(self) -> list[list[EvaluationEpisode]]:
        """The episodes of every seed."""
        return [
            settle_evaluation(outcomes, partial(self._one_more, position), self._retries)
            for position, outcomes in enumerate(self._gathered())
        ]

    def close(self) -> None:
        self._fleet.close()

    def _one_more(self, position: int, numbers: Sequence[int]) -> list[Outcome]:
        """A further episode of one seed, of which none has ended well."""
        [number] = numbers
        alone = [policy if seed == position else None for seed, policy in enumerate(self._policies)]
        self._fleet.start(Evaluate(repeated(alone, self._per_seed), self._evaluation, number, number + 1))
        return self._gathered()[position]

    def _gathered(self) -> list[list[Outcome]]:
        """What every seed's episodes came to, in the order of their numbers."""
        return [
            [outcome for row in itertools.zip_longest(*answers) for outcome in row if outcome is not None]
            for answers in grouped(self._fleet.finish(), self._per_seed)
        ]

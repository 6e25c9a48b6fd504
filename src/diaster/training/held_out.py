"""Which evaluation episodes of a run the decomposition is measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diaster.types import EvaluationEpisode

OfSeeds = Sequence[Sequence[EvaluationEpisode]]


class HeldOut:
    """Evaluations spread evenly over a run, from poor policies and good ones, so that returns differ.

    The same evaluations serve all seeds. They are counted by the episodes they ask for, not by those that faults of an
    environment left over: seeds stay comparable.
    """

    def __init__(self, most: int, episodes_each: int) -> None:
        self._most, self._each = most, episodes_each
        self.stride = 1
        """Evaluations whose numbers are multiples of this are kept."""
        self._kept: dict[int, OfSeeds] = {}  # by the number of the evaluation

    def add(self, evaluation: int, of_seeds: OfSeeds) -> list[list[EvaluationEpisode]]:
        """Add a numbered evaluation, drop others where they are too many, and return what is kept of every seed."""
        self._thin_out(evaluation)
        self._kept[evaluation] = of_seeds
        while self.stride <= evaluation and len(self._kept) * self._each > self._most:
            self.stride *= 2
            self._thin_out(evaluation)
        if len(self._kept) * self._each > self._most:
            self._kept = {evaluation: of_seeds}
        return [
            [episode for kept in self._kept.values() for episode in kept[position]] for position in range(len(of_seeds))
        ]

    @property
    def evaluations(self) -> list[int]:
        """The numbers of the evaluations that are kept."""
        return sorted(self._kept)

    def restore(self, stride: int, kept: Mapping[int, OfSeeds]) -> None:
        """Go on with what was kept before."""
        self.stride = stride
        self._kept = {number: kept[number] for number in sorted(kept)}

    def _thin_out(self, newest: int) -> None:
        self._kept = {n: of_seeds for n, of_seeds in self._kept.items() if n % self.stride == 0 or n == newest}

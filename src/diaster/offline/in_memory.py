"""Episodes that a program has at hand: one record per episode, or the arrays of an .npz file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.columns import PER_EPISODE, columns_of, required
from diaster.offline.episodes import Recorded
from diaster.offline.faults import Faults
from diaster.offline.flat import Column, FlatData, check_rows, flat_episodes
from diaster.offline.json_lines import recorded

NAME = "the data set"


class RecordsSource:
    """A mapping for each episode, with the fields of a line of JSON Lines."""

    def __init__(self, episodes: Iterable[Mapping[str, Any]], faults: Faults) -> None:
        self.name, self.faults = NAME, faults
        self._episodes: Sequence[Mapping[str, Any]] = list(episodes)
        for one in self._episodes:
            if not isinstance(one, Mapping):
                raise DiasterError(
                    "an episode is a mapping with observations, actions and return, or with turns and outcome, not "
                    f"data of the type {type(one).__name__}."
                )

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        for number, episode in enumerate(self._episodes):
            if wanted is None or wanted[number]:
                yield recorded(number, f"episode {number}", episode, self.name, self.faults)

    def close(self) -> None:
        """There is nothing to let go of."""


class ArraysSource:
    """The arrays of an .npz file, by name."""

    def __init__(self, arrays: Mapping[str, Any], faults: Faults) -> None:
        self.name, self.faults = NAME, faults
        columns = columns_of(arrays, self.name, faults)
        required(columns, ("observations", "actions", "lengths"), self.name)
        found = {name: self._array(stored, arrays[stored]) for name, stored in columns.items()}
        lengths = found.pop("lengths")
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths):
            raise DiasterError(f"'lengths' in {self.name} are not whole numbers, one per episode; put them right.")
        lengths = lengths.astype(np.int64)
        per_episode = {name: values for name, values in found.items() if name in PER_EPISODE}
        for name, values in per_episode.items():
            if values.shape[:1] != lengths.shape:
                raise DiasterError(
                    f"{self.name} has {len(lengths):,} lengths and {name} of the shape {values.shape}; one of each "
                    "belongs to an episode."
                )
        single = next((name for name, values in found.items() if not values.ndim), None)
        if single is not None:
            raise DiasterError(f"'{single}' in {self.name} is a single number; give one row per step.")
        steps = {name: _column(values) for name, values in found.items() if name not in PER_EPISODE}
        n_steps, n_episodes = int(np.maximum(lengths, 0).sum()), len(lengths)
        has_last = steps["observations"].n_rows == n_steps + n_episodes
        check_rows(steps, n_steps, n_episodes if has_last else 0, self.name)
        self._data = FlatData(lengths, steps, per_episode, "episode {}".format, has_last)

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        return flat_episodes(self._data, wanted)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _array(self, name: str, values: Any) -> NDArray[Any]:
        try:
            return np.asarray(values)
        except ValueError:  # rows of other widths
            raise DiasterError(f"'{name}' in {self.name} is no table of numbers; give rows of one width.") from None


def _column(values: NDArray[Any]) -> Column:
    return Column(len(values), 1, lambda: lambda first, end: values[first:end])

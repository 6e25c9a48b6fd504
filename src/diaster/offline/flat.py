"""Data sets whose steps lie end to end in columns: .npz, D4RL's HDF5, Parquet. They are read forwards, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.episodes import Recorded

PIECE_BYTES = 2**22  # of a column that are read at a time

Fetch = Callable[[int, int], NDArray[Any]]
"""Rows first … end − 1 of a column. Each call begins at or after the end of the one before."""


class BadRowsError(DiasterError):
    """A column cannot be read from this row on."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


class Column(NamedTuple):
    """One number, or a vector of them, for each step."""

    n_rows: int
    row_bytes: int
    open: Callable[[], Fetch]
    wrong: dict[int, str] | None = None
    """Rows, of those read so far, that are not what the others are, and why."""


class Window:
    """A column read forwards: any stretch that does not begin before the one asked for last."""

    def __init__(self, column: Column) -> None:
        self._column, self._fetch = column, column.open()
        self._rows = max(1, PIECE_BYTES // max(column.row_bytes, 1))
        self._first = self._end = 0
        self._piece: NDArray[Any] | None = None
        self.wrong = {} if column.wrong is None else column.wrong

    def between(self, first: int, end: int) -> NDArray[Any]:
        """Rows first … end − 1."""
        if self._piece is None or end > self._end:
            begin = max(first, self._end)
            stop = min(max(end, begin + self._rows), self._column.n_rows)
            new = self._fetch(begin, stop)
            if self._piece is not None and first < self._end:
                new = np.concatenate([self._piece[first - self._first :], new])
            self._piece, self._first, self._end = new, first, stop
        return self._piece[first - self._first : end - self._first]


class FlatData(NamedTuple):
    """Columns of steps, and where episodes end."""

    lengths: NDArray[np.int64]  # [E]
    steps: Mapping[str, Column]
    per_episode: Mapping[str, NDArray[Any]]
    labels: Callable[[int], str]
    has_last_observation: bool  # each episode has one row of observations more than it has steps

    def kept_rows(self, is_kept: NDArray[np.bool_], name: str = "") -> NDArray[np.bool_]:
        """Which rows of a column belong to some episodes."""
        n_extra = int(name == "observations" and self.has_last_observation)
        return np.repeat(is_kept, np.maximum(self.lengths, 0) + n_extra)


def flat_episodes(data: FlatData, wanted: NDArray[np.bool_] | None) -> Iterator[Recorded]:
    """The episodes, in order."""
    windows = {name: Window(column) for name, column in data.steps.items()}
    extra = int(data.has_last_observation)
    step = 0
    for number, length in enumerate(data.lengths.tolist()):
        first, step = step, step + max(length, 0)
        if wanted is not None and not wanted[number]:
            continue
        found: dict[str, Any] = {}
        fault = "it has no steps" if length == 0 else f"its length is {length}" if length < 0 else None
        for name, window in windows.items():
            shift = extra * number if name == "observations" else 0
            begin, end = first + shift, step + shift + (extra if name == "observations" else 0)
            if end > data.steps[name].n_rows:
                fault = f"it ends at row {end:,} of '{name}', which has {data.steps[name].n_rows:,}"
            if fault is None:
                found[name], fault = _read(window, name, begin, end)
        per_episode = {name: values[number] for name, values in data.per_episode.items()}
        yield _recorded(number, data.labels(number), found, per_episode, fault)


def _read(window: Window, name: str, first: int, end: int) -> tuple[NDArray[Any] | None, str | None]:
    """Rows of a column, or what is wrong with them."""
    try:
        rows = window.between(first, end)
    except BadRowsError as error:
        return None, f"row {max(error.row - first, 0)} of its {name} {error.why}"
    wrong = min((row for row in window.wrong if first <= row < end), default=None)
    return rows, None if wrong is None else f"row {wrong - first} of its {name} {window.wrong[wrong]}"


def _recorded(
    number: int, label: str, steps: Mapping[str, Any], per_episode: Mapping[str, Any], fault: str | None
) -> Recorded:
    terminals = steps.get("terminals")
    terminated = per_episode.get("terminated", False) if terminals is None else terminals[-1]
    return Recorded(
        number=number,
        label=label,
        actions=steps.get("actions"),
        observations=steps.get("observations"),
        next_observations=steps.get("next_observations"),
        # A data set that has been relabelled keeps what it had before: returns are sums of those.
        rewards=steps.get("original_rewards", steps.get("rewards")),
        outcome=per_episode.get("returns"),
        terminated=bool(terminated),
        group=per_episode.get("groups"),
        fault=fault,
    )


def check_rows(columns: Mapping[str, Column], n_steps: int, n_last: int, where: str) -> None:
    """Refuse columns with more rows than there are steps; with fewer, the first episode that lacks one is named."""
    for name, column in columns.items():
        expected = n_steps + (n_last if name == "observations" else 0)
        if column.n_rows > expected:
            raise DiasterError(
                f"{where} has {n_steps:,} steps by its lengths and {column.n_rows:,} rows in '{name}'; cut it to "
                f"{expected:,}, or put the lengths right."
            )

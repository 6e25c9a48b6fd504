"""progress.csv: the results of a run, a row per seed and evaluation."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.rundir.files import MissingFileError, damaged, read_bytes
from diaster.rundir.records import PROGRESS, no_run

RESULTS = (
    "step", "seed", "episodes",
    "return_mean", "return_std", "return_min", "return_max", "length_mean",
    "fit_r2", "reward_correlation", "return_gap",
    "training_return",
)  # fmt: skip
# Which of these have numbers depends on the method and the agent; a table of an earlier version may lack some.
METRICS = (
    "within_correlation", "reward_slope",
    "return_scale", "base_r2", "net_share", "disagreement", "feature_loss",
    "sub_loss", "step_loss", "return_loss", "auxiliary_loss",
    "critic_loss", "actor_loss", "q_value", "entropy", "temperature", "clipped", "reward_size",
    "variance_kept", "exploration",
    "faults",
)  # fmt: skip
COLUMNS = RESULTS + METRICS
WHOLE_NUMBERS = {"step": range(2**63), "seed": range(2**32), "episodes": range(2**63)}
# Far above what a run writes, and little enough to be held in memory.
MOST_PROGRESS_BYTES = 256 * 2**20
MOST_LINE = 2**16
MOST_ROWS = 1_000_000  # five seeds, evaluated 200,000 times
ResultRow = Mapping[str, float | int]


class Table(Mapping[str, NDArray[Any]]):
    """Columns by name, in order; rows by iteration over `rows()`."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def n_rows(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def rows(self) -> list[dict[str, Any]]:
        return [{name: column[i].item() for name, column in self.items()} for i in range(self.n_rows)]

    def where(self, **equals: float) -> Table:
        """The rows in which the named columns have the given values."""
        keep = np.ones(self.n_rows, bool)
        for name, value in equals.items():
            keep &= self[name] == value
        return Table({name: column[keep] for name, column in self.items()})

    def to_pandas(self) -> Any:
        """The table as a DataFrame of pandas, where that is installed."""
        try:
            import pandas
        except ImportError:
            raise DiasterError("to_pandas needs the package 'pandas'; run pip install pandas.") from None
        return pandas.DataFrame(dict(self))

    def __repr__(self) -> str:
        shown = [name for name in self if not np.isnan(np.asarray(self[name], float)).all()]
        lines = ["  ".join(f"{name:>12.12}" for name in shown)]
        lines += ["  ".join(f"{row[name]:>12.6g}" for name in shown) for row in self.rows()]
        return "\n".join(lines)


def progress_csv(rows: Sequence[ResultRow]) -> str:
    """The table as text; a number without a meaning is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = [row.get(name, float("nan")) for name in COLUMNS]
        writer.writerow(["" if value != value else repr(value) for value in values])
    return text.getvalue()


def read_progress(path: Path) -> Table:
    """The table of a run directory."""
    try:
        content = read_bytes(path / PROGRESS, MOST_PROGRESS_BYTES)
    except MissingFileError:
        raise no_run(path) from None
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    try:
        # The table has names and numbers alone, so a quote means nothing and a line is a row.
        return _parse_progress(csv.reader(_short_lines(text), quoting=csv.QUOTE_NONE))
    except UnicodeDecodeError:
        raise damaged(path / PROGRESS, "it is not text") from None
    except (csv.Error, ValueError, OverflowError) as error:
        raise damaged(path / PROGRESS, str(error)) from None


def _short_lines(text: TextIO) -> Iterator[str]:
    """The lines of a file, as long as none is endless."""
    while line := text.readline(MOST_LINE):
        if len(line) == MOST_LINE:
            raise ValueError(f"it has a line of more than {MOST_LINE:,} signs")
        yield line


def _parse_progress(lines: Iterator[list[str]]) -> Table:
    """The known columns of a CSV file, row by row: its cells as text would take many times the memory."""
    header = next(lines, [])
    missing = [name for name in RESULTS if name not in header]
    if missing or len(set(header)) < len(header):
        raise ValueError(f"the column '{missing[0]}' is missing" if missing else "it has one column twice")
    # Tables without rows have all columns; an earlier version may have had fewer metrics.
    places = {name: header.index(name) for name in COLUMNS if name in header}
    columns: dict[str, array[Any]] = {name: array("q" if name in WHOLE_NUMBERS else "d") for name in places}
    cells = [(columns[name].append, place, WHOLE_NUMBERS.get(name)) for name, place in places.items()]
    for number, row in enumerate(filter(None, lines), start=1):
        if number > MOST_ROWS:
            raise ValueError(f"it has more than {MOST_ROWS:,} rows")
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells and the header {len(header)}")
        try:
            for append, place, allowed in cells:
                text = row[place]
                append(_whole(text, allowed) if allowed else float(text) if text else math.nan)
        except ValueError:
            raise ValueError(f"row {number} has the cell '{text[:50]}', which is no number of its column") from None
    if not columns["step"]:
        columns |= {name: array("d") for name in COLUMNS if name not in columns}
    return Table({name: np.array(columns[name]) for name in COLUMNS if name in columns})


def _whole(text: str, allowed: range) -> int:
    """The whole number in a cell, if it is one that its column can have."""
    value = int(text)
    if value not in allowed:
        raise ValueError
    return value

"""A run directory: written atomically while training runs, read back as a `Run`.

config.toml              every setting, resolved; loads back into the same run
progress.csv             a row per seed and evaluation
metadata.json            versions, device, command, wall time, commit
policy.safetensors       the policies of all seeds
decomposer.safetensors   the decomposers of all seeds
DONE                     present when the run is complete
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from diaster.config import RunConfig, combine, parse_toml, validate, write_toml
from diaster.config.toml import MOST_BYTES as MOST_CONFIG_BYTES
from diaster.errors import DiasterError
from diaster.rundir import files
from diaster.rundir.files import (
    MOST_TENSOR_BYTES,
    Form,
    MissingFileError,
    check_tensors,
    damaged,
    parse_json,
    read_bytes,
    tensor_bytes,
    write_atomically,
)
from diaster.rundir.lock import RunLock

CONFIG, PROGRESS, METADATA, DONE = "config.toml", "progress.csv", "metadata.json", "DONE"
POLICY, DECOMPOSER = "policy.safetensors", "decomposer.safetensors"
RESULTS = (
    "step", "seed", "episodes",
    "return_mean", "return_std", "return_min", "return_max", "length_mean",
    "fit_r2", "reward_correlation", "return_gap",
    "training_return",
)  # fmt: skip
# Which of these have numbers depends on the method and the learner; a table of an earlier version may lack some.
METRICS = (
    "return_scale", "sub_loss", "step_loss", "return_loss", "auxiliary_loss",
    "critic_loss", "actor_loss", "q_value", "entropy", "temperature", "exploration",
    "faults",
)  # fmt: skip
COLUMNS = RESULTS + METRICS
WHOLE_NUMBERS = {"step": range(2**63), "seed": range(2**32), "episodes": range(2**63)}
# Far above what a run writes, and little enough to be held in memory.
MOST_METADATA_BYTES = 2**20
MOST_PROGRESS_BYTES = 256 * 2**20
MOST_LINE = 2**16
MOST_ROWS = 1_000_000  # five seeds, evaluated 200,000 times
Row = Mapping[str, float | int]


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

    def __repr__(self) -> str:
        shown = [name for name in self if not np.isnan(np.asarray(self[name], float)).all()]
        lines = ["  ".join(f"{name:>12.12}" for name in shown)]
        lines += ["  ".join(f"{row[name]:>12.6g}" for name in shown) for row in self.rows()]
        return "\n".join(lines)


class RunWriter:
    """Writes a run directory: claimed and locked when training starts, released when it ends.

    Settings are written first, so that a run that is cut off can be resumed. A run that fails before its first
    result leaves nothing behind.
    """

    def __init__(self, path: Path, config: RunConfig, metadata: Mapping[str, Any], is_resumed: bool = False) -> None:
        self.path = path
        self.rows: list[Row] = []
        self.before: Mapping[str, Any] = {}  # the metadata of a run that is resumed
        self._config, self._metadata = config, dict(metadata)
        self._made: list[Path] = []
        self._unwritten: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]] | None = None
        self._is_resumed = self._is_kept = is_resumed
        self._lock = RunLock(path)
        if not is_resumed:
            refuse_existing_run(path)
        self._missing = [folder for folder in (path, *path.parents) if not folder.exists()]

    def claim(self) -> None:
        """Make the directory and lock it, so that no other run can take it."""
        for folder in reversed(self._missing):
            if folder == self.path or not folder.exists():
                make_directory(folder, exclusively=folder == self.path)
                self._made.append(folder)
        self._missing = []
        self._lock.take()
        if not self._is_resumed:
            write_atomically(self.path / CONFIG, write_toml(self._config).encode())
        elif os.path.lexists(self.path / METADATA):  # else it was cut off here, with its settings written alone
            self.before = read_metadata(self.path)
            self._metadata = {**self.before, "resumed": self._metadata}
        self._write_metadata({})

    def keep(self) -> None:
        """What is there so far is worth keeping, though it may be no result yet."""
        self._is_kept = True

    def release(self) -> None:
        """Unlock the directory; where nothing came of the run, take back what `claim` made."""
        self._lock.release()
        with contextlib.suppress(OSError):
            if not self._is_kept and {item.name for item in self.path.iterdir()} <= {CONFIG, METADATA}:
                for name in (CONFIG, METADATA):
                    (self.path / name).unlink(missing_ok=True)
                for folder in reversed(self._made):
                    folder.rmdir()

    def record(
        self, rows: Sequence[Row], policy: Mapping[str, NDArray[Any]], decomposer: Mapping[str, NDArray[Any]]
    ) -> None:
        """Add the rows of an evaluation and renew the nets beside them.

        What cannot be written now is kept, and written with the next evaluation or at the end.
        """
        self.keep()
        self.rows += rows
        self._unwritten = dict(policy), dict(decomposer)
        self._write_results()

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Mark the run as complete."""
        self._write_results()
        self._write_metadata(metadata)
        write_atomically(self.path / DONE, b"")

    def _write_results(self) -> None:
        if self._unwritten is not None:
            policy, decomposer = self._unwritten
            write_atomically(self.path / PROGRESS, progress_csv(self.rows).encode())
            write_atomically(self.path / POLICY, safetensors.numpy.save(policy))
            write_atomically(self.path / DECOMPOSER, safetensors.numpy.save(decomposer))
            self._unwritten = None

    def _write_metadata(self, more: Mapping[str, Any]) -> None:
        text = json.dumps({**self._metadata, **more}, indent=2) + "\n"
        write_atomically(self.path / METADATA, text.encode())


def refuse_existing_run(path: Path) -> None:
    """A directory that holds something is never written into, and one that cannot be made is found out now."""
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        where = "" if nearest == path else f", so '{path}' cannot be made"
        raise DiasterError(f"'{nearest}' is a file{where}; give a new directory with --out.")
    if not os.access(nearest, os.W_OK):
        raise DiasterError(f"'{nearest}' cannot be written to; give another directory with --out.")
    if (path / CONFIG).exists():
        raise DiasterError(f"'{path}' already holds a run; give another directory with --out, or remove it.")
    if path.is_dir() and any(path.iterdir()):
        raise DiasterError(f"'{path}' is not empty; give a new directory with --out.")


def make_directory(path: Path, exclusively: bool) -> None:
    """Create a directory; exclusively: it is an error if another process was faster."""
    try:
        path.mkdir(exist_ok=not exclusively)
    except FileExistsError:
        raise DiasterError(f"'{path}' was taken by another run just now; give another directory with --out.") from None
    except OSError as error:
        raise DiasterError(f"the directory '{path}' cannot be made: {error.strerror}; choose another.") from None


def free_directory(parent: Path, name: str) -> Path:
    """parent/name, or the first of parent/name-2, -3, … that does not exist."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def progress_csv(rows: Sequence[Row]) -> str:
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
    """The known columns of a CSV file, row by row: its cells as text would take many times the room."""
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


def no_run(path: Path) -> DiasterError:
    """The error for a directory without a run."""
    return DiasterError(f"'{path}' holds no run; give a directory that 'diaster train --out' has written.")


def read_config(path: Path) -> RunConfig:
    """The settings of a run directory."""
    file = path / CONFIG
    try:
        content = read_bytes(file, MOST_CONFIG_BYTES)
    except MissingFileError:
        raise no_run(path) from None
    config = combine(None, parse_toml(content, file), str(file))
    validate(config)
    return config


def read_settings(path: Path) -> str:
    """The text of a run's settings as it was written when the run began."""
    return read_bytes(path / CONFIG, MOST_CONFIG_BYTES).decode(errors="replace")


def read_metadata(path: Path) -> dict[str, Any]:
    """What a run directory says of how it was made."""
    file, content = path / METADATA, b""
    with contextlib.suppress(MissingFileError):
        content = read_bytes(file, MOST_METADATA_BYTES)
    try:
        return parse_json(content, file)
    except DiasterError:
        raise DiasterError(f"'{file}' is missing or damaged; train the run again.") from None


def read_tensors(path: Path, expected: Mapping[str, Form] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays in a safetensors file of a run directory; on demand, only if they are those expected."""
    most = MOST_TENSOR_BYTES if expected is None else min(tensor_bytes(expected), MOST_TENSOR_BYTES)
    try:
        found = files.read_tensors(path, most)
    except MissingFileError:
        raise no_run(path.parent) from None
    if expected is not None:
        check_tensors(found, expected, path)
    return found

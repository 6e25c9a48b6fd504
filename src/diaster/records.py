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
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from diaster.config import RunConfig, build_config, write_toml
from diaster.errors import DiasterError

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
)  # fmt: skip
COLUMNS = RESULTS + METRICS
WHOLE_NUMBERS = ("step", "seed", "episodes")
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
    """Writes a run directory: claimed when training starts, empty before the first `record`."""

    def __init__(self, path: Path, config: RunConfig, metadata: Mapping[str, Any]) -> None:
        self._path, self._config, self._metadata = path, config, dict(metadata)
        self._rows: list[Row] = []
        self._made: list[Path] = []
        refuse_existing_run(path)
        self._missing = [folder for folder in (path, *path.parents) if not folder.exists()]

    def claim(self) -> None:
        """Make the directory, so that no other run can take it."""
        for folder in reversed(self._missing):
            if folder == self._path or not folder.exists():
                make_directory(folder, exclusively=folder == self._path)
                self._made.append(folder)
        self._missing = []

    def release(self) -> None:
        """Take back what `claim` made, where nothing was recorded."""
        with contextlib.suppress(OSError):  # no longer empty
            for folder in reversed(self._made):
                folder.rmdir()

    def record(
        self, rows: Sequence[Row], policy: Mapping[str, NDArray[Any]], decomposer: Mapping[str, NDArray[Any]]
    ) -> None:
        """Add the rows of an evaluation and renew the nets beside them."""
        if not self._rows:
            self.claim()
            write_atomically(self._path / CONFIG, write_toml(self._config).encode())
            self._write_metadata({})
        self._rows += rows
        write_atomically(self._path / PROGRESS, progress_csv(self._rows).encode())
        write_atomically(self._path / POLICY, safetensors.numpy.save(dict(policy)))
        write_atomically(self._path / DECOMPOSER, safetensors.numpy.save(dict(decomposer)))

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Mark the run as complete."""
        self._write_metadata(metadata)
        write_atomically(self._path / DONE, b"")

    def _write_metadata(self, more: Mapping[str, Any]) -> None:
        text = json.dumps({**self._metadata, **more}, indent=2) + "\n"
        write_atomically(self._path / METADATA, text.encode())


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


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror}.") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


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
        with (path / PROGRESS).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        raise no_run(path) from None
    except (csv.Error, UnicodeDecodeError):
        raise DiasterError(f"'{path / PROGRESS}' is damaged: it is not a CSV file.") from None
    try:
        return Table(
            {
                name: np.array([int(row[name]) for row in rows], np.int64)
                if name in WHOLE_NUMBERS
                else np.array([float(row[name]) if row[name] != "" else np.nan for row in rows], np.float64)
                for name in COLUMNS
                if name in RESULTS or not rows or name in rows[0]
            }
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DiasterError(f"'{path / PROGRESS}' is damaged: not every row has the known columns.") from None


def no_run(path: Path) -> DiasterError:
    """The error for a directory without a run."""
    return DiasterError(f"'{path}' holds no run; give a directory that 'diaster train --out' has written.")


def read_config(path: Path) -> RunConfig:
    """The settings of a run directory."""
    if not (path / CONFIG).is_file():
        raise no_run(path)
    return build_config(file=path / CONFIG)


def read_metadata(path: Path) -> dict[str, Any]:
    """What a run directory says of how it was made."""
    try:
        found = json.loads((path / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise DiasterError(f"'{path / METADATA}' is missing or damaged; train the run again.")
    return found


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in a safetensors file; nothing in it can execute code."""
    try:
        return dict(safetensors.numpy.load_file(path))
    except FileNotFoundError:
        raise no_run(path.parent) from None
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DiasterError(f"'{path}' is damaged: {error}.") from None

"""Writes a run directory while training runs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from diaster.config import RunConfig, write_toml
from diaster.errors import DiasterError
from diaster.rundir.files import typed, write_atomically
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, DECOMPOSER, DONE, METADATA, POLICY, PROGRESS, read_metadata
from diaster.rundir.results import ResultRow, progress_csv
from diaster.rundir.tidying import remove_leftovers
from diaster.rundir.trust import SIGNATURE, sign


class RunWriter:
    """Writes a run directory: claimed and locked when training starts, released when it ends.

    Settings are written first, so that a run that was killed can be resumed. A run that fails before its first
    result leaves nothing behind.
    """

    def __init__(self, path: Path, config: RunConfig, metadata: Mapping[str, Any], is_resumed: bool = False) -> None:
        self.path = path
        self.rows: list[ResultRow] = []
        self.before: Mapping[str, Any] = {}  # the metadata of a run that is resumed
        self._config, self._metadata = config, dict(metadata)
        self._made: list[Path] = []
        self._unwritten: tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]] | None = None
        self._is_resumed = self._is_kept = is_resumed
        self._is_claimed = False
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
        self._refuse_what_came_meanwhile()
        self._is_claimed = True
        remove_leftovers(self.path)
        if not self._is_resumed:
            sign(self.path, self._config)
            write_atomically(self.path / CONFIG, write_toml(self._config).encode())
        elif os.path.lexists(self.path / METADATA):  # else it was killed here, with only its settings written
            self.before = read_metadata(self.path)
            self._metadata = {**self.before, "resumed": self._metadata}
        self._write_metadata({})

    def _refuse_what_came_meanwhile(self) -> None:
        """Between a first look at the directory and the lock another process may have trained in it."""
        if self._is_resumed and (self.path / DONE).exists():
            raise already_complete(self.path)
        if not self._is_resumed:
            refuse_existing_run(self.path)

    def keep(self) -> None:
        """Keep the directory, even without results."""
        self._is_kept = True

    def release(self) -> None:
        """Unlock the directory; if the run has no results, remove what `claim` made."""
        with contextlib.suppress(OSError):
            is_empty = {item.name for item in self.path.iterdir()} <= {CONFIG, METADATA, SIGNATURE, LOCK}
            if self._is_claimed and not self._is_kept and is_empty:
                for name in (CONFIG, METADATA, SIGNATURE):
                    (self.path / name).unlink(missing_ok=True)
        self._lock.release()
        if not self._is_kept:
            with contextlib.suppress(OSError):  # one that is not empty stays
                for folder in reversed(self._made):
                    folder.rmdir()

    def record(
        self, rows: Sequence[ResultRow], policy: Mapping[str, NDArray[Any]], decomposer: Mapping[str, NDArray[Any]]
    ) -> None:
        """Add the rows of an evaluation and write the nets again.

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


def already_complete(path: Path) -> DiasterError:
    """The error for a run that is finished."""
    return DiasterError(f"'{path}' is complete; there is nothing left to train.")


def refuse_killed_at_the_start(path: Path) -> None:
    """A run that was killed before its settings were written cannot be resumed, and has lost nothing."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # then it holds no run, or one that cannot be read
        names = [item.name for item in path.iterdir()]
    if names and all(map(is_leftover, names)):
        raise DiasterError(
            f"the run in '{path}' was killed before it wrote its settings, so nothing is lost; "
            f"begin it with the same command as before: 'diaster train … --out {typed(path)}'."
        )


def refuse_existing_run(path: Path) -> None:
    """Refuse a directory that holds more than a killed run's leftovers, and one that cannot be made."""
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        where = "" if nearest == path else f", so '{path}' cannot be made"
        raise DiasterError(f"'{nearest}' is a file{where}; give a new directory with --out.")
    if not os.access(nearest, os.W_OK):
        raise DiasterError(f"'{nearest}' cannot be written to; give another directory with --out.")
    if (path / CONFIG).exists():
        raise DiasterError(f"'{path}' already holds a run; give another directory with --out, or remove it.")
    if path.is_dir() and any(not is_leftover(item.name) for item in path.iterdir()):
        raise DiasterError(f"'{path}' is not empty; give a new directory with --out.")


def is_leftover(name: str) -> bool:
    """Whether a file was left by a run that was killed before its settings were written."""
    return name in (LOCK, SIGNATURE) or name.startswith((f".{CONFIG}.", f".{METADATA}.", f".{SIGNATURE}."))


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

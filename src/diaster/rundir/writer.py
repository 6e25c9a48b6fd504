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
from diaster.rundir.checkpoint import checksum
from diaster.rundir.files import sync_folder, typed, write_atomically
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import (
    BEST,
    CONFIG,
    DECOMPOSER,
    DONE,
    EXTENDED,
    METADATA,
    NETS,
    OF_AN_END,
    POLICY,
    PROGRESS,
    former_settings,
    read_config,
    read_metadata,
    read_settings,
)
from diaster.rundir.results import ResultRow, progress_csv
from diaster.rundir.tidying import remove_leftovers
from diaster.rundir.trust import SIGNATURE, sign

Tensors = Mapping[str, NDArray[Any]]


class RunWriter:
    """Writes a run directory: claimed and locked when training starts, released when it ends.

    Settings are written first, so that a run that was killed can be resumed. A run that fails before its first
    result leaves nothing behind. With `is_extended` the directory is that of a shorter run, complete or not.
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        metadata: Mapping[str, Any],
        is_resumed: bool = False,
        is_extended: bool = False,
    ) -> None:
        self.path = path
        self.rows: list[ResultRow] = []
        self.before: Mapping[str, Any] = {}  # the metadata of a run that is resumed
        self._config, self._metadata = config, dict(metadata)
        self._made: list[Path] = []
        self._unwritten: dict[str, Tensors] = {}  # by the name of their file
        self._is_resumed = self._is_kept = is_resumed or is_extended
        self._is_extended = is_extended
        self._is_claimed = False
        self._lock = RunLock(path)
        if not self._is_resumed:
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
        if not self._is_extended:  # a complete run stays as it is until it is known that it can go on
            self._write_metadata()

    def _refuse_what_came_meanwhile(self) -> None:
        """Between a first look at the directory and the lock another process may have trained in it."""
        if self._is_resumed and not self._is_extended and (self.path / DONE).exists():
            raise already_complete(self.path)
        if not self._is_resumed:
            refuse_existing_run(self.path)

    def extend(self) -> None:
        """Make the directory that of the longer run. Killed at any point, it is a run that can go on or be extended."""
        before = {"steps": read_config(self.path).steps, "settings": checksum(read_settings(self.path).encode())}
        self._metadata[EXTENDED] = [*former_settings(self.before), before]
        self._write_metadata()
        (self.path / DONE).unlink(missing_ok=True)
        sync_folder(self.path)
        write_atomically(self.path / CONFIG, write_toml(self._config).encode())

    def note(self, name: str, facts: Any, now: bool = False) -> None:
        """Add something to the metadata; they are written when the directory is claimed, at the end, and `now`."""
        self._metadata[name] = facts
        if now:
            with contextlib.suppress(DiasterError):  # a full disk, say: the end writes them again
                self._write_metadata()

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
        self, rows: Sequence[ResultRow], policy: Tensors, decomposer: Tensors, best: Tensors | None = None
    ) -> None:
        """Add the rows of an evaluation and write the nets again, the best policies where they have changed.

        What cannot be written now is kept, and written with the next evaluation or at the end.
        """
        self.keep()
        self.rows += rows
        self._unwritten |= {POLICY: dict(policy), DECOMPOSER: dict(decomposer)}
        if best is not None:
            self._unwritten[BEST] = dict(best)
        self._write_results()

    def finish(self, metadata: Mapping[str, Any], nets: Tensors) -> None:
        """Mark the run as complete. What it said of an earlier end, when it was shorter, is no longer true."""
        self._unwritten[NETS] = dict(nets)
        self._write_results()
        for name in OF_AN_END:
            self._metadata.pop(name, None)
        self._metadata |= metadata
        self._write_metadata()
        write_atomically(self.path / DONE, b"")

    def _write_results(self) -> None:
        if POLICY in self._unwritten:
            write_atomically(self.path / PROGRESS, progress_csv(self.rows).encode())
        for name, tensors in self._unwritten.items():
            write_atomically(self.path / name, safetensors.numpy.save(dict(tensors)))
        self._unwritten = {}

    def _write_metadata(self) -> None:
        text = json.dumps(self._metadata, indent=2) + "\n"
        write_atomically(self.path / METADATA, text.encode())


def already_complete(path: Path) -> DiasterError:
    """The error for a run that is finished."""
    longer = f"'diaster resume {typed(path)} --steps N' makes it longer"
    return DiasterError(f"'{path}' is complete; there is nothing left to train. {longer}.")


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

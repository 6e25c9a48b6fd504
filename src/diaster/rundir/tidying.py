"""Removes what killed runs have left in a run directory, under the lock and by names of our own alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from diaster.errors import DiasterError
from diaster.rundir.checkpoint import DIRECTORY, remove_all
from diaster.rundir.files import is_file, is_temporary
from diaster.rundir.lock import RunLock
from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import (
    BEST,
    CHECKPOINT,
    CONFIG,
    DECOMPOSER,
    DONE,
    METADATA,
    NETS,
    POLICY,
    PROGRESS,
    read_metadata,
)
from diaster.rundir.trust import SIGNATURE

WRITTEN = (CONFIG, PROGRESS, METADATA, DONE, POLICY, BEST, DECOMPOSER, NETS, ROLLOUTS, SIGNATURE)


def tidy(path: Path) -> None:
    """Remove what is left, if nobody holds the lock; what cannot be removed stays."""
    with locked_if_free(path) as is_locked:
        if is_locked:
            remove_leftovers(path)


@contextlib.contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of a run directory, unless another process has it or nothing can be written there."""
    lock, is_locked = RunLock(path), False
    with contextlib.suppress(DiasterError):
        lock.take()
        is_locked = True
    try:
        yield is_locked
    finally:
        lock.release()


def remove_leftovers(path: Path) -> None:
    """Temporary files of killed runs, and checkpoints that a complete run does not keep. The caller holds the lock."""
    remove_temporary(path, WRITTEN)
    if is_file(path / DONE):  # else it goes on from them
        with contextlib.suppress(OSError, DiasterError):
            kept = read_metadata(path).get(CHECKPOINT) if is_file(path / METADATA) else None
            remove_all(path / DIRECTORY, but=kept if type(kept) is int else None)


def remove_temporary(folder: Path, of: Collection[str]) -> None:
    """What writing these files has left in a folder when it was cut off."""
    with contextlib.suppress(OSError):
        for item in folder.iterdir():
            if is_temporary(item.name, of) and is_file(item):
                item.unlink(missing_ok=True)

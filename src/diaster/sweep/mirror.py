"""Keeps a copy of a run directory on a machine that shares no disk with the original.

The side that trains sends what is new, in pieces; the other side writes each file under another name, compares its
checksum and renames it. Settings come first, a checkpoint's manifest after the files that it names, `DONE` after
everything, and removals last: whenever the sender dies, what has arrived is a run that can be resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diaster.errors import DiasterError
from diaster.rundir.checkpoint import DIRECTORY
from diaster.rundir.files import is_file, refuse_detours, sync_folder
from diaster.rundir.lock import LOCK
from diaster.rundir.records import CONFIG, DONE, METADATA
from diaster.rundir.trust import SIGNATURE

PIECE_BYTES = 8 << 20
UNFINISHED = ".part"
Version = tuple[int, int, int]  # a file that is replaced has another one of these


class Piece(NamedTuple):
    """A part of a file; the last one carries the checksum of the whole."""

    name: str  # from the run directory on, with slashes
    content: bytes
    sha256: str | None


class Gone(NamedTuple):
    """Files that have been removed."""

    names: tuple[str, ...]


class DirectorySender:
    """The side that trains. The other side has what is there at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent = versions(path)

    def changes(self) -> Iterator[Piece | Gone]:
        """Everything that is new since the last time."""
        manifests = {name for name in versions(self._path) if rank(name) == MANIFEST}
        found = versions(self._path)
        try:
            for name in sorted(found, key=lambda name: (rank(name), name)):
                # A manifest that was written during the listing may name files that are not in it.
                is_early = rank(name) == MANIFEST and name not in manifests
                if self._sent.get(name) != found[name] and not is_early:
                    yield from pieces(self._path, name)
                    self._sent[name] = found[name]
        except FileNotFoundError:
            return  # a checkpoint has been replaced meanwhile; the next one is sent instead
        gone = tuple(sorted(self._sent.keys() - found.keys()))
        if gone:
            yield Gone(gone)
            for name in gone:
                del self._sent[name]


class DirectoryReceiver:
    """The side that keeps a copy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sums: dict[str, hashlib._Hash] = {}
        for item in path.rglob(f".*{UNFINISHED}") if path.is_dir() else ():
            item.unlink(missing_ok=True)

    def take(self, message: Piece | Gone) -> None:
        """Write or remove what a message says."""
        try:
            if isinstance(message, Gone):
                self._remove(message)
            else:
                self._write(message)
        except OSError as error:
            raise DiasterError(f"'{self._path}' cannot be written: {error.strerror}.") from None

    def _write(self, piece: Piece) -> None:
        target = self._path / piece.name
        refuse_detours(target, self._path)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}{UNFINISHED}")
        is_first = piece.name not in self._sums
        checksum = self._sums.setdefault(piece.name, hashlib.sha256())
        checksum.update(piece.content)
        with unfinished.open("wb" if is_first else "ab") as file:
            file.write(piece.content)
            file.flush()
            if piece.sha256 is not None:
                os.fsync(file.fileno())
        if piece.sha256 is None:
            return
        del self._sums[piece.name]
        if checksum.hexdigest() != piece.sha256:
            unfinished.unlink()
            raise DiasterError(f"'{target}' arrived damaged: its checksum is wrong.")
        unfinished.replace(target)
        sync_folder(target.parent)

    def _remove(self, gone: Gone) -> None:
        for name in gone.names:
            target = self._path / name
            refuse_detours(target, self._path)
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is not empty
                if target.parent != self._path:
                    target.parent.rmdir()


BEGINNING, OF_CHECKPOINTS, MANIFEST, RESULT, LAST = range(5)


def rank(name: str) -> int:
    """In which order files are sent."""
    if name in (CONFIG, METADATA):
        return BEGINNING
    if name.startswith(f"{DIRECTORY}/"):
        return MANIFEST if name.startswith(f"{DIRECTORY}/manifest-") else OF_CHECKPOINTS
    return LAST if name == DONE else RESULT


def versions(path: Path) -> dict[str, Version]:
    """The files of a run directory; not its lock, nor what is being written. Each machine signs with its own key."""
    found = {}
    for item in path.rglob("*") if path.is_dir() else ():
        name = item.relative_to(path).as_posix()
        if name in (LOCK, SIGNATURE) or item.name.startswith(".") or not is_file(item):
            continue
        with contextlib.suppress(FileNotFoundError):
            state = item.stat()
            found[name] = state.st_mtime_ns, state.st_size, state.st_ino
    return found


def pieces(path: Path, name: str) -> Iterator[Piece]:
    """A file in pieces."""
    checksum = hashlib.sha256()
    with (path / name).open("rb") as file:
        content = file.read(PIECE_BYTES)
        while True:
            checksum.update(content)
            following = file.read(PIECE_BYTES)
            yield Piece(name, content, None if following else checksum.hexdigest())
            if not following:
                return
            content = following


def all_pieces(path: Path) -> Iterator[Piece]:
    """A whole run directory; wherever the sequence ends, what has arrived can be resumed."""
    for name in sorted(versions(path), key=lambda name: (rank(name), name)):
        yield from pieces(path, name)

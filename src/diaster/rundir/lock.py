"""One process per run directory: a lock that dies with its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import stat
import time
from pathlib import Path

from diaster.errors import DiasterError

LOCK = "lock"
_HELD: set[int] = set()  # handles of the locks of this process


def _let_go() -> None:
    """A forked process shares the locks of its parent, and would hold them after its death."""
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


# Not the package filelock: it leaves the file behind, does not say who holds the lock, and falls back to weaker ones.
class RunLock:
    """Held from `take` to `release`. The system releases it when the process dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._handle: int | None = None

    def take(self) -> None:
        """Refuse if another process holds it; a file that a killed process left behind is taken over."""
        while self._handle is None:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            except OSError as error:
                raise DiasterError(f"'{self._path}' cannot be opened: {error.strerror}.") from None
            found = os.fstat(handle)
            # Its owner's name is written into it: a file with a second name may be anyone's, anywhere.
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                os.close(handle)
                raise DiasterError(f"'{self._path}' is no regular file of its own; remove it.")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise DiasterError(
                    f"'{self._path.parent}' is being trained by {owner}; wait for it, or stop it first."
                ) from None
            if not self._is_still_there(handle):  # its owner has just released it and removed the file
                os.close(handle)
                continue
            text = f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            with contextlib.suppress(OSError):  # a full disk has no room for the name; the lock holds all the same
                os.ftruncate(handle, 0)
                os.write(handle, text.encode())
            self._handle = handle
            _HELD.add(handle)

    def release(self) -> None:
        """Unlock, and remove the file."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            _HELD.discard(self._handle)
            os.close(self._handle)
            self._handle = None

    def _is_still_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.lstat())
        except OSError:
            return False

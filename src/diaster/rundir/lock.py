"""One process per run directory: a lock that dies with its owner."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import time
from pathlib import Path

from diaster.errors import DiasterError

try:
    import fcntl
except ImportError:  # no such locks on this platform: the directory is then guarded when it is made, and no further
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


class RunLock:
    """Held from `take` to `release`. The system lets it go when the process dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._handle: int | None = None

    def take(self) -> None:
        """Refuse where another process holds it; a file that nobody holds is left over and taken."""
        while fcntl is not None and self._handle is None:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            except OSError as error:
                raise DiasterError(f"'{self._path}' cannot be opened: {error.strerror}.") from None
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise DiasterError(f"'{self._path}' is no regular file; remove it.")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise DiasterError(
                    f"'{self._path.parent}' is being trained by {owner}; wait for it, or stop it first."
                ) from None
            if not self._is_still_there(handle):  # its owner ended just now and took the file along
                os.close(handle)
                continue
            text = f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            with contextlib.suppress(OSError):  # a full disk has no room for the owner's name; the lock holds without
                os.ftruncate(handle, 0)
                os.write(handle, text.encode())
            self._handle = handle

    def release(self) -> None:
        """Let others in; nothing of the lock stays behind."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = None

    def _is_still_there(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.lstat())
        except OSError:
            return False

"""Messages with large arrays to worker processes: the arrays lie in memory that all see, and only the rest is sent.

The policies of twenty seeds are megabytes, a dozen times a second. Through sockets each of them is copied several times
by processes that take turns, and the last one starts to work late (docs/explanation/performance.md has the
measurement).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes
LAST_STANDARD_HANDLE = 2  # the one of standard error

Span = tuple[int, int]  # the first byte, and that after the last


def make_memory() -> int | None:
    """A handle of memory without a name, which ends with the processes that know it; None where the system has none."""
    try:
        handle = os.memfd_create("diaster")
    except (AttributeError, OSError):  # not Linux, or a sandbox
        return None
    if handle > LAST_STANDARD_HANDLE:
        return handle
    # Where standard input was closed it has taken its number, under which a child has something else.
    moved: int = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, LAST_STANDARD_HANDLE + 1)
    os.close(handle)
    return moved


class ArraySender:
    """The end that writes, to several receivers. Each has answered its last message before it is sent the next.

    Without memory, or where an array has no room, it goes through the connections; the next round has room for it.
    """

    def __init__(self, connections: Sequence[Connection], handle: int | None) -> None:
        self._connections, self._handle = connections, handle
        self._memory: mmap.mmap | None = None
        self._wanted = 0  # bytes that the largest round has had

    def send(self, messages: Sequence[Any]) -> None:
        """A message for each receiver. Its arrays stay as they are until the next round."""
        self._enlarge()
        shelf = Shelf(self._memory)
        for connection, message in zip(self._connections, messages, strict=True):
            packed = _pack(message, shelf)
            with contextlib.suppress(OSError):  # a receiver that is gone: the caller finds out when it waits for it
                connection.send(packed)
        self._wanted = max(self._wanted, shelf.wanted)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.close()
        if self._handle is not None:
            os.close(self._handle)
        self._memory = self._handle = None

    def _enlarge(self) -> None:
        if self._handle is None or self._wanted <= (0 if self._memory is None else len(self._memory)):
            return
        try:
            os.ftruncate(self._handle, self._wanted)
            memory = mmap.mmap(self._handle, self._wanted)
        except (OSError, ValueError):  # there is a limit on files or on memory: from now on without
            self.close()
            return
        if self._memory is not None:
            self._memory.close()
        self._memory = memory


class Shelf:
    """Lays the arrays of a round side by side, each of them once however many messages have it."""

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self._spans: dict[tuple[int, int], Span | None] = {}  # by where an array is and how many bytes it has
        self.wanted = 0  # bytes, of all that was to be laid

    def lay(self, part: memoryview) -> Span | None:
        """Where it lies; None if there is no room left."""
        what = np.frombuffer(part, np.uint8).ctypes.data, part.nbytes
        if what not in self._spans:
            first, last = self.wanted, self.wanted + part.nbytes
            self.wanted += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
            fits = self._memory is not None and last <= len(self._memory)
            if self._memory is not None and fits:
                self._memory[first:last] = part
            self._spans[what] = (first, last) if fits else None
        return self._spans[what]


def _pack(message: Any, shelf: Shelf) -> tuple[bytes, list[Span]]:
    """What goes through the connection: the message without its arrays, and where they lie; or all of it."""
    spans: list[Span] = []

    def lay(buffer: pickle.PickleBuffer) -> bool:
        """Returns whether it has to go through the connection after all."""
        part = buffer.raw()
        span = shelf.lay(part) if part.nbytes > 0 else None
        if span is None:
            return True
        spans.append(span)
        return False

    return pickle.dumps(message, protocol=5, buffer_callback=lay), spans


class ArrayReceiver:
    """The end that reads. Arrays of a message stay as they are until it is answered, and cannot be written to."""

    def __init__(self, connection: Connection, handle: int | None) -> None:
        self._connection, self._handle = connection, handle
        self._memory = memoryview(b"")

    def receive(self) -> Any:
        body, spans = self._connection.recv()
        if max((end for _, end in spans), default=0) > len(self._memory):
            assert self._handle is not None
            self._memory = memoryview(mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ))
        return pickle.loads(body, buffers=[self._memory[start:end] for start, end in spans])

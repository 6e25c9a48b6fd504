"""Messages with large arrays to other processes: the arrays lie in memory that all see, and only the rest is sent.

The policies of twenty seeds are megabytes, a dozen times a second. Through sockets each of them is copied four times by
processes that have to take turns, and whoever comes last starts to work late.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

SLOTS = 3  # rounds of messages whose arrays can lie there: one is worked on, one waits, one is being written
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
    fcntl = importlib.import_module("fcntl")
    moved: int = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, LAST_STANDARD_HANDLE + 1)
    os.close(handle)
    return moved


class Sender:
    """The end that writes, to several receivers.

    Without memory, or where an array has no room, it goes through the connections; the next round has room for it.
    """

    def __init__(self, connections: Sequence[Connection], handle: int | None) -> None:
        self._connections, self._handle = connections, handle
        self._memory: mmap.mmap | None = None
        self._first, self._slot_bytes, self._wanted = 0, 0, 0  # where slots begin, what one holds and should hold
        self._n_rounds = 0
        self._last_in = [-1] * SLOTS  # the number of the round whose arrays lie there

    def send(self, messages: Sequence[Any], n_done: int, are_passing: bool = True) -> None:
        """Send a message to each receiver, all of them having done with so many rounds.

        What one keeps of a message beyond that has to go through the connection: such messages are not passing.
        """
        number, self._n_rounds = self._n_rounds, self._n_rounds + 1
        shelf = self._free_shelf(number, n_done) if are_passing and self._handle is not None else None
        for connection, message in zip(self._connections, messages, strict=True):
            packed = _pack(message, shelf)
            # If this receiver is gone, whoever waits for its answer finds that out; a connection that is closed in the
            # middle of this is a TypeError.
            with contextlib.suppress(OSError, TypeError):
                connection.send(packed)
        if shelf is not None:
            self._wanted = max(self._wanted, shelf.wanted)

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.close()
        if self._handle is not None:
            os.close(self._handle)
        self._memory = self._handle = None

    def _free_shelf(self, number: int, n_done: int) -> Shelf | None:
        """A place for the arrays of a round, unless all are in use."""
        if self._wanted > self._slot_bytes:
            try:
                self._enlarge()
            except (OSError, ValueError):  # there is a limit on files or on memory: from now on without
                self.close()
                return None
        slot = number % SLOTS
        if self._last_in[slot] >= n_done:
            return None
        self._last_in[slot] = number
        return Shelf(self._memory, self._first + slot * self._slot_bytes, self._slot_bytes)

    def _enlarge(self) -> None:
        """New slots behind the old ones, in which something may still be read."""
        assert self._handle is not None
        self._first += SLOTS * self._slot_bytes
        self._slot_bytes = max(self._wanted, 2 * self._slot_bytes)
        self._last_in = [-1] * SLOTS
        end = self._first + SLOTS * self._slot_bytes
        os.ftruncate(self._handle, end)
        if self._memory is not None:
            self._memory.close()
        self._memory = mmap.mmap(self._handle, end)


class Shelf:
    """Lays arrays side by side, each of them once however many messages have it."""

    def __init__(self, memory: mmap.mmap | None, start: int, size: int) -> None:
        self._memory, self._start, self._size = memory, start, size
        self._spans: dict[tuple[int, int], Span | None] = {}  # by where an array is and how many bytes it has
        self.wanted = 0  # bytes, of all that was to be laid

    def lay(self, part: memoryview) -> Span | None:
        """Where it lies; None if there is no room left."""
        what = np.frombuffer(part, np.uint8).ctypes.data, part.nbytes
        if what not in self._spans:
            first, last = self._start + self.wanted, self._start + self.wanted + part.nbytes
            self.wanted += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
            fits = self._memory is not None and self.wanted <= self._size
            if self._memory is not None and fits:
                self._memory[first:last] = part
            self._spans[what] = (first, last) if fits else None
        return self._spans[what]


def _pack(message: Any, shelf: Shelf | None) -> tuple[bytes, list[Span]]:
    """What goes through the connection: the message without its arrays, and where they lie; or all of it."""
    spans: list[Span] = []

    def lay(buffer: pickle.PickleBuffer) -> bool:
        """Returns whether it has to go through the connection after all."""
        part = buffer.raw()
        span = shelf.lay(part) if shelf is not None and part.nbytes > 0 else None
        if span is None:
            return True
        spans.append(span)
        return False

    return pickle.dumps(message, protocol=5, buffer_callback=lay), spans


class Receiver:
    """The end that reads. Arrays of a message stay as they are until it is done with, and cannot be written to."""

    def __init__(self, connection: Connection, handle: int | None) -> None:
        self._connection, self._handle = connection, handle
        self._memory = memoryview(b"")

    def receive(self) -> Any:
        body, spans = self._connection.recv()
        if max((end for _, end in spans), default=0) > len(self._memory):
            assert self._handle is not None
            self._memory = memoryview(mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ))
        return pickle.loads(body, buffers=[self._memory[start:end] for start, end in spans])

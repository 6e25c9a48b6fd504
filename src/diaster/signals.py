"""Ctrl-C, SIGTERM and a closed terminal: after the first signal a run ends in order, the second stops it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NoReturn

# By name: Windows, where the command line says that it cannot run, has no SIGHUP.
SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))
INTERRUPTED = 130  # the exit code after Ctrl-C
INTERRUPTION = "diaster: interrupted; what was recorded so far, if anything, stays in the run directory."
SECONDS_TO_QUIT = 3.0  # that the main thread has after the second signal


def interrupts_raise() -> bool:
    """Whether Ctrl-C may raise KeyboardInterrupt here and now; where it cannot, only code can have raised one."""
    handler = signal.getsignal(signal.SIGINT)
    return callable(handler) and not isinstance(getattr(handler, "__self__", None), Interruption)


def _nothing(*_: object) -> None: ...


class Interruption:
    """Within `with`, the first signal is noted, and answered at once; later ones do what they did before.

    Python runs handlers in the main thread, and there only between two of its own steps: not while a program is
    compiled or computed. So a thread hears of signals as they arrive, and answers. Where a second signal would end the
    process and the main thread does not get to it, that thread ends it.
    """

    def __init__(
        self,
        answer: Callable[[int], None] = _nothing,
        at_the_second: Callable[[], None] = _nothing,
        ends_process: bool = True,
    ) -> None:
        self.signal: int | None = None
        self._answer, self._at_the_second = answer, at_the_second
        self._before: dict[int, Any] = {}
        self._may_end, self._ends = ends_process, frozenset[int]()  # signals of which a second one ends the process
        self._listener: Listener | None = None
        self._heard = 0
        self._is_over = threading.Event()

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: the run is to outlive its terminal
                self._before[number] = signal.signal(number, self._note)
            if self._may_end:
                found = (number for number, was in self._before.items() if was in (signal.SIG_DFL, _interrupt))
                self._ends = frozenset(found)
            self._listener = Listener.start(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        self._is_over.set()
        if self._listener is not None:
            self._listener.close()
        self._answer = self._at_the_second = _nothing

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        if self._listener is None:
            with contextlib.suppress(RuntimeError):  # the signal came in the middle of other output
                self._answer(number)

    def _restore(self) -> None:
        for number, before in self._before.items():
            if before is not None:  # what was set from C cannot be set again from here
                signal.signal(number, before)
        self._before = {}

    def _hear(self, number: int) -> None:
        """Called by the thread that listens."""
        if number not in SIGNALS:
            return
        self._heard += 1
        if self._heard == 1:
            self._answer(number)
        elif self._heard == 2 and number in self._ends:
            threading.Thread(target=self._end, args=(number,), daemon=True).start()
            self._at_the_second()

    def _end(self, number: int) -> None:
        if not self._is_over.wait(SECONDS_TO_QUIT):
            _leave(number)


class Listener:
    """A thread that is told of every signal which has a handler in Python, when it arrives."""

    def __init__(self, ends: tuple[int, int], hear: Callable[[int], None]) -> None:
        self._ends, self._hear = ends, hear
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, hear: Callable[[int], None]) -> Listener | None:
        """None where somebody else listens."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(read)
            os.close(write)
            return None
        # An environment may fork this process, and what its process hears is none of ours.
        os.register_at_fork(after_in_child=partial(_leave_pipe, write))
        return cls((read, write), hear)

    def _listen(self) -> None:
        while number := os.read(self._ends[0], 1)[0]:
            self._hear(number)

    def close(self) -> None:
        """Hear no more."""
        read, write = self._ends
        _leave_pipe(write)
        os.write(write, b"\0")
        self._thread.join()
        os.close(read)
        os.close(write)


def _leave_pipe(write: int) -> None:
    if (found := signal.set_wakeup_fd(-1)) not in (write, -1):
        signal.set_wakeup_fd(found)


@contextlib.contextmanager
def owning_the_process() -> Iterator[None]:
    """Within `with`, for commands: a second Ctrl-C ends the process, also where the main thread does not get to it."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within `with`, while modules are imported, Ctrl-C says so and ends the process.

    Modules that are half imported turn KeyboardInterrupt into errors of their own, and fail again when Python ends.
    """
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if usual not in (signal.default_int_handler, _interrupt) or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    except KeyboardInterrupt:
        _leave()
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(number: int = signal.SIGINT, *_: object) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"{INTERRUPTION}\n".encode())  # the parser holds what is printed back
    os._exit(128 + number)

"""Ctrl-C, SIGTERM and a closed terminal: after the first signal a run ends in order, the second stops it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

# By name: Windows, where the command line says that it cannot run, has no SIGHUP.
SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))
INTERRUPTED = 130  # the exit code after Ctrl-C
INTERRUPTION = "diaster: interrupted; what was recorded so far, if anything, stays in the run directory."


def interrupts_raise() -> bool:
    """Whether Ctrl-C may raise KeyboardInterrupt here and now; where it cannot, only code can have raised one."""
    handler = signal.getsignal(signal.SIGINT)
    return callable(handler) and not isinstance(getattr(handler, "__self__", None), Interruption)


class Interruption:
    """Within `with`, the first signal is noted; later ones do what they did before."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: the run is to outlive its terminal
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            if before is not None:  # what was set from C cannot be set again from here
                signal.signal(number, before)
        self._before = {}


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within `with`, while modules are imported, Ctrl-C says so and ends the process.

    Modules that are half imported turn KeyboardInterrupt into errors of their own, and fail again when Python ends.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    except KeyboardInterrupt:
        _leave()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"{INTERRUPTION}\n".encode())  # the parser holds what is printed back
    os._exit(INTERRUPTED)

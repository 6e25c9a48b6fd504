"""Ctrl-C, SIGTERM and a closed terminal: after the first signal a run ends in order, the second stops it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

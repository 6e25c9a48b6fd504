"""What a person sees while a data set is read, fitted and written: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Protocol, TextIO

from diaster.errors import complain

EVERY = 15.0  # seconds between two lines


class Progress(Protocol):
    """Called in this order, for one stage after another; `say` and `warn` at any time."""

    def start(self, stage: str, total: int | None) -> None: ...

    def advance(self, done: int, state: str = "") -> None: ...

    def end(self) -> None: ...

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...


class Quiet:
    """Says nothing but warnings."""

    def start(self, stage: str, total: int | None) -> None: ...

    def advance(self, done: int, state: str = "") -> None: ...

    def end(self) -> None: ...

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None:
        complain(f"warning: {sentence}")


class Lines(Quiet):
    """A line for each stage, and one now and then while it lasts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._total: int | None = None
        self._next = 0.0
        self._last = ""

    def start(self, stage: str, total: int | None) -> None:
        self._stage, self._total, self._last = stage, total, ""
        self._next = time.monotonic() + EVERY

    def advance(self, done: int, state: str = "") -> None:
        self._last = _line(self._stage, done, self._total, state)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self.say(self._last)

    def end(self) -> None:
        if self._last:
            self.say(self._last)

    def say(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk, a closed pipe: no reason to stop
            print(sentence, file=self._stream, flush=True)

    def warn(self, sentence: str) -> None:
        self.say(f"warning: {sentence}")


class Bar(Quiet):
    """A live bar for each stage, and a line when it ends."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar: Any = None
        self._last = ""

    def start(self, stage: str, total: int | None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        text = TextColumn("{task.fields[state]}", markup=False)
        self._stage, self._total, self._last = stage, total, ""
        self._bar = Progress(BarColumn(bar_width=20), text, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=total, state=stage)
        self._bar.start()

    def advance(self, done: int, state: str = "") -> None:
        self._last = _line(self._stage, done, self._total, state)
        self._bar.update(self._task, completed=done, state=self._last)

    def end(self) -> None:
        self._bar.stop()
        if self._last:
            self.say(self._last)

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False)

    def warn(self, sentence: str) -> None:
        self._console.print(f"warning: {sentence}", highlight=False, markup=False, style="yellow")


def make_progress() -> Progress:
    """A bar on a terminal, lines elsewhere; both on standard error."""
    if sys.stderr is None:  # it was closed before we began
        return Quiet()
    return Bar() if sys.stderr.isatty() else Lines(sys.stderr)


def _line(stage: str, done: int, total: int | None, state: str) -> str:
    count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    unit = "updates" if stage == "fitting" else "steps"
    return f"{stage}: {count} {unit}{f', {state}' if state else ''}"

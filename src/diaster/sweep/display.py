"""What a person sees of a sweep: a live table, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from diaster.errors import LONGEST_NAME, complain, shortened
from diaster.sweep.status import BROKEN, DONE, FAILED, RUNNING, STATES, STOPPED, TO_COME, WAITING, CellStatus, Status
from diaster.training.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINES_OUTSIDE_THE_TABLE = 6


class Display(Protocol):
    """Shown what has changed; `close` is called whatever happens."""

    def changed(self, name: str, status: Status) -> None: ...

    def look(self, status: Status) -> None: ...

    def say(self, sentence: str) -> None:
        """At once, and from any thread."""

    def close(self) -> None: ...


class Quiet:
    """Says nothing but what answers a signal."""

    def changed(self, name: str, status: Status) -> None: ...

    def look(self, status: Status) -> None: ...

    def say(self, sentence: str) -> None:
        complain(sentence)

    def close(self) -> None: ...


class EventLines:
    """A line whenever a cell starts or ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def changed(self, name: str, status: Status) -> None:
        cell = status.cells[name]
        what = f"{cell.state:<8} {name}"
        if cell.failure:
            what += f": {cell.failure}"
        elif cell.state == DONE and cell.seconds:
            what += f" in {duration(cell.seconds)}"
        with contextlib.suppress(OSError):  # a full disk or a closed pipe ends no cell
            print(f"{what}  [{counts(status)}]", file=self._stream, flush=True)

    def look(self, status: Status) -> None: ...

    def say(self, sentence: str) -> None:
        with contextlib.suppress(OSError):
            print(sentence, file=self._stream, flush=True)

    def close(self) -> None: ...


class LiveTable:
    """A table that is drawn again in place; if the terminal is too low, running cells come first."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False)
        with contextlib.suppress(OSError):
            self._live.start()

    def changed(self, name: str, status: Status) -> None:
        cell = status.cells[name]
        if cell.failure:
            line = f"{cell.state:<8} {name}: {cell.failure}"
            with contextlib.suppress(OSError):  # a terminal that is gone ends no cell
                self._console.print(line, style="red" if cell.state == FAILED else None, markup=False, highlight=False)
        self.look(status)

    def say(self, sentence: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(sentence, style="bold", markup=False, highlight=False)

    def look(self, status: Status) -> None:
        from rich.console import Group
        from rich.text import Text

        room = max(3, self._console.size.height - LINES_OUTSIDE_THE_TABLE)
        with contextlib.suppress(OSError):
            self._live.update(Group(self._table(status, room), Text(counts(status))), refresh=True)

    def _table(self, status: Status, room: int) -> Table:
        from rich.table import Table

        order = (RUNNING, FAILED, STOPPED, BROKEN, WAITING, DONE)
        rows = sorted(status.cells.items(), key=lambda item: order.index(item[1].state))
        table = Table(box=None)
        for head in ("cell", "state", "steps", "time", "left"):
            table.add_column(head, justify="left" if head in ("cell", "state") else "right")
        for name, cell in rows[:room]:
            table.add_row(shortened(name, LONGEST_NAME), *row_of(cell, status))
        return table

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()


def make_display(is_quiet: bool) -> Display:
    """A table on a terminal, lines elsewhere; both on standard error."""
    if is_quiet:
        return Quiet()
    if not sys.stderr.isatty():
        return EventLines(sys.stderr)
    from rich.console import Console

    return LiveTable(Console(stderr=True))


def row_of(cell: CellStatus, status: Status) -> tuple[str, str, str, str]:
    """State, progress, time taken and time left, for people."""
    steps = f"{cell.step:,} / {cell.config.steps:,}"
    taken = duration(cell.seconds) if cell.seconds else ""
    left = f"~{duration(status.seconds_left_of(cell))}" if cell.state in TO_COME else ""
    return cell.state, steps, taken, left


def counts(status: Status) -> str:
    """How many cells are in which state, and how long is left."""
    parts = [f"{n} {state}" for state in STATES if (n := status.count(state))]
    left = status.seconds_left()
    return ", ".join(parts) + (f"; about {duration(left)} left" if left else "")


def size(n_bytes: float) -> str:
    """In gigabytes."""
    return f"{n_bytes / 1e9:.1f} GB"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    rows = [[shortened(cell, LONGEST_NAME) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        cells = [
            f"{cell:<{width}}" if n == 0 else f"{cell:>{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

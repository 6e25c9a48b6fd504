"""How a person sees where cells stand."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console
from sweep_cells import cell

from diaster.sweep.cell import Ended
from diaster.sweep.display import EventLines, LiveTable, Quiet, counts, plain_table, row_of
from diaster.sweep.status import Status


@pytest.fixture
def status(tmp_path: Path) -> Status:
    return Status(tmp_path, {"a": cell(), "b": cell(), "c": cell(seconds=400.0), "d": cell()}, width=2)


def test_without_a_terminal_there_is_a_line_for_every_change(status: Status) -> None:
    stream = io.StringIO()
    display = EventLines(stream)
    status.started("a")
    display.changed("a", status)
    status.ended("a", Ended(), 3723.0)
    display.changed("a", status)
    status.started("b")
    status.ended("b", Ended("a sentence."), None)
    display.changed("b", status)
    status.started("c")
    status.waits("c", "its worker was lost")
    display.changed("c", status)
    first, second, third, fourth = stream.getvalue().splitlines()
    assert first.startswith("running  a  [1 running, 3 waiting; about ")
    assert second.startswith("done     a in 1:02:03  [1 done, 3 waiting; about ")
    assert third.startswith("failed   b: a sentence.  [1 done, 1 failed, 2 waiting")
    assert fourth.startswith("waiting  c: its worker was lost  [")


def test_on_a_terminal_a_table_shows_running_cells_first_and_as_many_as_there_is_room_for(status: Status) -> None:
    stream = io.StringIO()
    display = LiveTable(Console(file=stream, force_terminal=True, width=100, height=9, color_system=None))
    status.ended("a", Ended("a sentence."), None)
    status.started("c")
    display.changed("a", status)
    display.close()
    assert "failed   a: a sentence." in stream.getvalue()
    table = stream.getvalue().partition("a sentence.")[2]
    rows = [line.split()[:2] for line in table.splitlines() if "/" in line]
    assert rows[:3] == [["c", "running"], ["a", "failed"], ["b", "waiting"]]
    assert ["d", "waiting"] not in rows
    assert "1 running, 1 failed, 2 waiting; about" in table


def test_a_table_that_cannot_be_written_ends_nothing(status: Status) -> None:
    with open("/dev/full", "w", buffering=1, encoding="utf-8") as full:  # noqa: PTH123 - it is no file
        display = LiveTable(Console(file=full, force_terminal=True, width=100, height=9))
        status.ended("a", Ended("a sentence."), None)
        display.changed("a", status)
        display.look(status)
        display.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_row_says_how_far_a_cell_is(status: Status) -> None:
    assert row_of(status.cells["a"], status) == ("waiting", "0 / 1,000", "", "~1:40")
    status.ended("a", Ended(), 61.0)
    assert row_of(status.cells["a"], status) == ("done", "1,000 / 1,000", "1:01", "")


def test_when_nothing_is_left_no_time_is() -> None:
    status = Status(Path("none"), {"a": cell()}, 1)
    status.ended("a", Ended(), 1.0)
    assert counts(status) == "1 done"


def test_columns_are_aligned() -> None:
    assert plain_table(("cell", "n"), [("a", "10"), ("longer", "3")]) == "cell     n\na       10\nlonger   3"


def test_a_name_of_any_length_is_shown_in_part() -> None:
    assert plain_table(("cell",), [("x" * 10_000,)]).splitlines()[1] == "x" * 99 + "…"


def test_what_answers_a_signal_is_said_by_every_display(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    for display in (EventLines(stream), LiveTable(Console(file=stream, width=100)), Quiet()):
        display.say("cells [finish] their chunks")
        display.close()
    assert stream.getvalue().count("cells [finish] their chunks\n") == 2
    assert capsys.readouterr() == ("", "cells [finish] their chunks\n")

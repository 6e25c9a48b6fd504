"""Where cells stand, and how long is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_cells import cell

from diaster.sweep import status as module
from diaster.sweep.cell import At, Ended
from diaster.sweep.status import Finished, Status, correction, read_recorded
from diaster.training.estimate import Need


@pytest.fixture
def status(tmp_path: Path) -> Status:
    return Status(tmp_path, {"a": cell(), "b": cell(), "c": cell(seconds=400.0), "d": cell()}, width=2)


def test_what_becomes_of_cells_is_counted_and_written(status: Status) -> None:
    for name in ("a", "b", "c"):
        status.started(name)
    status.told("a", At(10, is_start=True))
    status.ended("a", Ended(), 50.0, recorded=3)
    status.ended("b", Ended("a sentence."), None)
    status.ended("c", Ended(is_stopped=True), None)
    assert [status.count(state) for state in ("done", "failed", "stopped", "waiting")] == [1, 1, 1, 1]
    rows = json.loads((status.path / "sweep.json").read_text(encoding="utf-8"))["cells"]
    assert {name: row["state"] for name, row in rows.items()} == {
        "a": "done", "b": "failed", "c": "stopped", "d": "waiting",
    }  # fmt: skip
    assert rows["a"] == {
        "state": "done", "step": 1000, "steps": 1000, "seconds": 50.0, "failure": "", "recorded": 3, "starts": 1,
        "from_step": 10,
    }  # fmt: skip
    assert rows["b"]["failure"] == "a sentence."
    assert read_recorded(status.path) == {"a": 3, "b": 0, "c": 0, "d": 0}


def test_a_record_that_is_missing_or_damaged_is_as_good_as_none(tmp_path: Path) -> None:
    assert read_recorded(tmp_path) == {}
    for content in (b"", b"{", b"[]", b'{"cells": {"a": 3}}', b'{"cells": {"a": {"recorded": "x"}}}'):
        (tmp_path / "sweep.json").write_bytes(content)
        assert read_recorded(tmp_path) == {}, content


def test_a_record_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    status = Status(tmp_path / "none", {"a": cell()}, 1)
    status.started("a")
    assert status.count("running") == 1
    assert not (tmp_path / "none").exists()


def test_time_left_is_that_of_all_cells_several_at_a_time_but_no_less_than_that_of_the_longest(status: Status) -> None:
    assert status.seconds_left() == 400.0
    status.cells["c"].need = Need(100.0, 0)
    assert status.seconds_left() == 200.0


def test_finished_cells_correct_what_is_left(status: Status) -> None:
    status.ended("a", Ended(), 50.0)  # half of what was expected
    assert status.seconds_left() == 200.0
    status.ended("c", Ended(), 200.0)
    assert status.seconds_left() == 50.0


def test_a_running_cell_is_judged_by_what_it_says_itself_once_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    running = cell()
    running.state = "running"
    running.note(At(200, is_start=True))
    assert running.seconds_left(1.0) == pytest.approx(80.0)  # 800 of 1000 steps, at 100 seconds for all
    now += 30
    running.note(At(300))
    assert running.seconds_left(1.0) == pytest.approx(50.0), "random steps are quick, and tell nothing"
    running.note(At(500, seconds_left=700.0))
    now += 10
    assert running.seconds_left(1.0) == pytest.approx(690.0)
    now += 1000
    assert running.seconds_left(1.0) == 0.0
    running.note(At(400, is_start=True))
    assert running.seconds_left(1.0) == pytest.approx(60.0), "it was started again"


def test_expectations_are_corrected_by_finished_cells_of_the_method_else_by_all() -> None:
    finished = [Finished("rrd", 10.0, 20.0), Finished("rrd", 10.0, 30.0), Finished("ircr", 10.0, 5.0)]
    assert correction("rrd", finished) == (2.5, 2)
    assert correction("ircr", finished) == (0.5, 1)
    assert correction("diaster", finished) == (2.0, 3)
    assert correction("diaster", []) == (1.0, 0)

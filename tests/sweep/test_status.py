"""Where cells stand, and how long is left."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from sweep_cells import cell

from diaster.sweep import status as module
from diaster.sweep.cell import At, Ended
from diaster.sweep.estimate import Need
from diaster.sweep.status import Status, read_recorded


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


def test_a_running_cell_is_judged_by_its_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    running = cell()
    running.state = "running"
    running.note(At(200, is_start=True))
    assert running.seconds_left(1.0) == pytest.approx(80.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 30)
    running.note(At(500))
    assert running.seconds_left(1.0) == pytest.approx(50.0)  # 300 steps took 30 seconds

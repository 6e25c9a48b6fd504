"""TensorBoard's files: whole records, whatever happened to the disk between them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter, masked_crc32c

from diaster.errors import DiasterError
from diaster.training.board import BOARD, Board


def row(step: int, seed: int = 3, **numbers: float) -> dict[str, Any]:
    return {"step": step, "seed": seed, **numbers}


def events_in(folder: Path) -> list[Any]:
    """Every event of the one file, checksums compared."""
    [file] = (folder / BOARD).iterdir()
    content, events = file.read_bytes(), []
    while content:
        (length,), data = struct.unpack("<Q", content[:8]), content[12:]
        assert struct.unpack("<II", content[8:12] + data[length : length + 4]) == (
            masked_crc32c(content[:8]),
            masked_crc32c(data[:length]),
        )
        events.append(event_pb2.Event.FromString(data[:length]))
        content = data[length + 4 :]
    return events


def numbers_in(folder: Path) -> list[tuple[int, str, float]]:
    first, *events = events_in(folder)
    assert first.file_version == "brain.Event:2"
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


def test_numbers_are_there_by_step_name_and_seed_and_those_without_a_meaning_are_not(tmp_path: Path) -> None:
    board = Board(tmp_path)
    assert not (tmp_path / BOARD).exists()
    board.add([row(10, fit_r2=0.5, faults=2), row(10, seed=4, fit_r2=float("nan"))])
    board.add([row(20, fit_r2=-1.0)])
    assert numbers_in(tmp_path) == [(10, "fit_r2/seed3", 0.5), (10, "faults/seed3", 2.0), (20, "fit_r2/seed3", -1.0)]


def test_a_record_is_as_the_package_writes_it(tmp_path: Path) -> None:
    Board(tmp_path).add([row(10, fit_r2=0.5)])
    there = RecordWriter(str(tmp_path / "theirs"))
    for event in events_in(tmp_path):
        there.write(event.SerializeToString())
    there.close()
    [file] = (tmp_path / BOARD).iterdir()
    assert file.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_what_cannot_be_written_waits_and_half_a_record_is_taken_back(tmp_path: Path) -> None:
    board = Board(tmp_path)
    (tmp_path / BOARD).write_bytes(b"in the way")
    with pytest.raises(DiasterError, match="cannot be written: "):
        board.add([row(10, fit_r2=0.5)])
    (tmp_path / BOARD).unlink()
    board.add([row(20, fit_r2=0.6)])
    [file] = (tmp_path / BOARD).iterdir()
    with file.open("ab") as half:
        half.write(b"\x07\x00\x00")
    board.add([row(30, fit_r2=0.75)])
    assert [step for step, _, _ in numbers_in(tmp_path)] == [10, 20, 30]


def test_a_disk_that_fills_up_within_a_record_loses_no_number(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="only Unix can limit the size of files")
    board = Board(tmp_path)
    board.add([row(10, fit_r2=0.5)])
    [file] = (tmp_path / BOARD).iterdir()
    before, limits = file.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20, limits[1]))
    try:
        with pytest.raises(DiasterError, match="cannot be written: "):
            board.add([row(20, fit_r2=0.6)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.stat().st_size == before + 20
    board.add([row(30, fit_r2=0.75)])
    assert [step for step, _, _ in numbers_in(tmp_path)] == [10, 20, 30]


def test_a_link_in_the_place_of_the_folder_is_never_written_through(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    (run / BOARD).symlink_to(outside)
    with pytest.raises(DiasterError, match="is a link"):
        Board(run).add([{"step": 1, "seed": 0, "return_mean": 1.0}])
    assert not list(outside.iterdir())


def test_a_link_with_the_name_of_an_event_file_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "precious.txt"
    target.write_text("mine")
    board = Board(tmp_path)
    (tmp_path / BOARD).mkdir()
    board._path.symlink_to(target)
    with pytest.raises(DiasterError):
        board.add([{"step": 1, "seed": 0, "return_mean": 1.0}])
    assert target.read_text() == "mine"


def test_event_files_have_names_that_nobody_can_guess(tmp_path: Path) -> None:
    assert Board(tmp_path)._path.name != Board(tmp_path)._path.name

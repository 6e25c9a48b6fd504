"""TensorBoard's files: a run for each seed, and whole records, whatever happened to the disk between them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter, masked_crc32c

from diaster.errors import DiasterError
from diaster.training import board as boards
from diaster.training.board import BOARD, Board, EventFile
from diaster.types import Episode


def row(step: int, seed: int = 3, **numbers: float) -> dict[str, Any]:
    return {"step": step, "seed": seed, **numbers}


def episode(length: int, episode_return: float) -> Episode:
    return Episode(np.zeros((length + 1, 1), np.float32), np.zeros((length, 1), np.float32), episode_return, False)


def events_in(folder: Path, seed: int = 3) -> list[Any]:
    """Every event of the one file of a seed, checksums compared."""
    [file] = (folder / BOARD / f"seed-{seed}").iterdir()
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


def numbers_in(folder: Path, seed: int = 3) -> list[tuple[int, str, float]]:
    first, *events = events_in(folder, seed)
    assert first.file_version == "brain.Event:2"
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


def test_each_seed_has_a_run_of_its_own_with_the_same_names_so_that_seeds_overlay(tmp_path: Path) -> None:
    board = Board(tmp_path, [3, 4])
    assert not (tmp_path / BOARD).exists()
    board.evaluated([row(10, fit_r2=0.5, faults=2), row(10, seed=4, fit_r2=float("nan"))])
    board.evaluated([row(20, fit_r2=-1.0), row(20, seed=4, fit_r2=0.25)])
    assert numbers_in(tmp_path) == [(10, "fit_r2", 0.5), (10, "faults", 2.0), (20, "fit_r2", -1.0)]
    assert numbers_in(tmp_path, seed=4) == [(20, "fit_r2", 0.25)]


def test_training_has_points_between_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(tmp_path, [3, 4])
    board.trained(5, [[episode(2, 1.0), episode(4, 3.0)], []])
    board.close()
    assert not (tmp_path / BOARD).exists()  # a run that fails before its first evaluation leaves nothing behind
    board.evaluated([row(10, fit_r2=0.5)])
    first = [(5, "episode_return", 2.0), (5, "episode_length", 3.0), (10, "fit_r2", 0.5)]
    assert numbers_in(tmp_path) == first
    board.trained(15, [[episode(6, 8.0)], [episode(1, 9.0)]])
    assert numbers_in(tmp_path) == first  # not one write for every chunk
    monkeypatch.setattr(boards, "SECONDS_BETWEEN_WRITES", -1.0)
    board.trained(20, [[], []])
    assert numbers_in(tmp_path) == [*first, (15, "episode_return", 8.0), (15, "episode_length", 6.0)]
    assert numbers_in(tmp_path, seed=4) == [(15, "episode_return", 9.0), (15, "episode_length", 1.0)]


def test_a_board_that_is_closed_has_written_everything(tmp_path: Path) -> None:
    board = Board(tmp_path, [3])
    board.evaluated([row(10, fit_r2=0.5)])
    board.trained(15, [[episode(6, 8.0)]])
    board.close()
    assert numbers_in(tmp_path)[1:] == [(15, "episode_return", 8.0), (15, "episode_length", 6.0)]


def test_a_record_is_as_the_package_writes_it(tmp_path: Path) -> None:
    Board(tmp_path, [3]).evaluated([row(10, fit_r2=0.5)])
    there = RecordWriter(str(tmp_path / "theirs"))
    for event in events_in(tmp_path):
        there.write(event.SerializeToString())
    there.close()
    [file] = (tmp_path / BOARD / "seed-3").iterdir()
    assert file.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_what_cannot_be_written_waits_and_half_a_record_is_taken_back(tmp_path: Path) -> None:
    board = Board(tmp_path, [3])
    (tmp_path / BOARD).write_bytes(b"in the way")
    with pytest.raises(DiasterError, match=r"have to wait for the next numbers: .* cannot be written: "):
        board.evaluated([row(10, fit_r2=0.5)])
    (tmp_path / BOARD).unlink()
    board.evaluated([row(20, fit_r2=0.6)])
    [file] = (tmp_path / BOARD / "seed-3").iterdir()
    with file.open("ab") as half:
        half.write(b"\x07\x00\x00")
    board.evaluated([row(30, fit_r2=0.75)])
    assert [step for step, _, _ in numbers_in(tmp_path)] == [10, 20, 30]


def test_a_disk_that_fills_up_within_a_record_loses_no_number(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="only Unix can limit the size of files")
    board = Board(tmp_path, [3])
    board.evaluated([row(10, fit_r2=0.5)])
    [file] = (tmp_path / BOARD / "seed-3").iterdir()
    before, limits = file.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20, limits[1]))
    try:
        with pytest.raises(DiasterError, match="cannot be written: "):
            board.evaluated([row(20, fit_r2=0.6)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.stat().st_size == before + 20
    board.evaluated([row(30, fit_r2=0.75)])
    assert [step for step, _, _ in numbers_in(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("folder", [BOARD, f"{BOARD}/seed-3"])
def test_a_link_in_the_place_of_a_folder_is_never_written_through(tmp_path: Path, folder: str) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (run / folder).parent.mkdir(parents=True)
    (run / folder).symlink_to(outside)
    with pytest.raises(DiasterError, match="is a link"):
        Board(run, [3]).evaluated([row(1, return_mean=1.0)])
    assert not list(outside.iterdir())


def test_a_link_with_the_name_of_an_event_file_is_never_written_through(tmp_path: Path) -> None:
    target = tmp_path / "precious.txt"
    target.write_text("mine")
    file = EventFile(tmp_path, "seed-3")
    file.path.parent.mkdir()
    file.path.symlink_to(target)
    file.add(1, {"return_mean": 1.0})
    with pytest.raises(DiasterError):
        file.write()
    assert target.read_text() == "mine"


def test_event_files_have_names_that_nobody_can_guess(tmp_path: Path) -> None:
    assert EventFile(tmp_path, "seed-3").path.name != EventFile(tmp_path, "seed-3").path.name

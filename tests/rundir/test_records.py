import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from diaster.config import RunConfig, build_config
from diaster.errors import DiasterError
from diaster.rundir.lock import LOCK
from diaster.rundir.records import (
    COLUMNS,
    CONFIG,
    DECOMPOSER,
    DONE,
    METADATA,
    POLICY,
    PROGRESS,
    RunWriter,
    Table,
    free_directory,
    progress_csv,
    read_config,
    read_metadata,
    read_progress,
    read_tensors,
    refuse_existing_run,
    write_atomically,
)

NAN = float("nan")
TENSORS = {"0.weight": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "0.bias": np.zeros((1, 3), np.float32)}


def row(step: int, seed: int, **values: float) -> dict[str, float | int]:
    return {**dict.fromkeys(COLUMNS, NAN), "step": step, "seed": seed, "episodes": 3, **values}


def writer(path: Path) -> RunWriter:
    return RunWriter(path, config(), {"device": "cpu"})


def claimed(path: Path) -> RunWriter:
    run = writer(path)
    run.claim()
    return run


def config() -> RunConfig:
    return build_config(env="Toy-v0", seeds=(4, 2), steps=70)


def listing(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*"))


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(DiasterError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Writing


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert listing(tmp_path) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("part", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    part: str, old: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(os, part, fail)
    assert refusal(write_atomically, path, b"new") == f"'{path}' cannot be written: No space left on device."
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == ({} if old is None else {"file": old})


def test_a_write_that_is_interrupted_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["file"]


def test_a_write_into_a_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    assert "cannot be written" in refusal(write_atomically, tmp_path / "gone" / "file", b"new")


def test_nothing_is_on_disk_before_the_directory_is_claimed(tmp_path: Path) -> None:
    run = writer(tmp_path / "deep" / "run")
    assert listing(tmp_path) == []
    run.claim()
    assert sorted(path.name for path in (tmp_path / "deep" / "run").iterdir()) == [CONFIG, LOCK, METADATA]
    run.release()


def test_a_run_that_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    run = writer(tmp_path / "deep" / "run")
    run.claim()
    run.release()
    assert listing(tmp_path) == []


@pytest.mark.parametrize("kept", ["a record", "a checkpoint", "what was asked for"])
def test_a_run_that_came_to_something_stays(tmp_path: Path, kept: str) -> None:
    run = writer(tmp_path / "run")
    run.claim()
    if kept == "a record":
        run.record([row(10, 4)], TENSORS, TENSORS)
    elif kept == "a checkpoint":
        (tmp_path / "run" / "checkpoint").mkdir()
    else:
        run.keep()
    run.release()
    assert (tmp_path / "run" / CONFIG).exists() and not (tmp_path / "run" / LOCK).exists()


def test_results_that_could_not_be_written_are_written_with_the_next_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claimed(tmp_path / "run")

    def full(path: Path, content: bytes) -> None:
        raise DiasterError(f"'{path.name}' cannot be written: No space left on device.")

    for last in (20, 30):
        with monkeypatch.context() as patch:
            patch.setattr("diaster.rundir.records.write_atomically", full)
            with pytest.raises(DiasterError, match="No space left"):
                run.record([row(last, 4)], TENSORS, TENSORS)
            with pytest.raises(DiasterError, match="No space left"):
                run.finish({})
        assert not (tmp_path / "run" / DONE).exists()
    run.finish({})
    assert read_progress(tmp_path / "run")["step"].tolist() == [20, 30]
    assert (tmp_path / "run" / POLICY).exists() and (tmp_path / "run" / DONE).exists()
    run.release()


def test_a_run_that_is_resumed_keeps_its_metadata_and_settings(tmp_path: Path) -> None:
    run = writer(tmp_path / "run")
    run.claim()
    run.keep()
    run.release()
    again = RunWriter(tmp_path / "run", config(), {"device": "gpu"}, is_resumed=True)
    again.claim()
    again.release()
    assert read_metadata(tmp_path / "run") == {"device": "cpu", "resumed": {"device": "gpu"}}
    assert read_config(tmp_path / "run") == config()


def test_a_run_is_done_when_it_is_finished_and_not_before(tmp_path: Path) -> None:
    run = claimed(tmp_path / "run")
    run.record([row(10, 4)], TENSORS, TENSORS)
    assert not (tmp_path / "run" / DONE).exists()
    run.finish({"wall_seconds": 1.5})
    assert (tmp_path / "run" / DONE).exists()
    assert read_metadata(tmp_path / "run") == {"device": "cpu", "wall_seconds": 1.5}


def test_a_run_that_is_written_reads_back(tmp_path: Path) -> None:
    run = claimed(tmp_path / "run")
    run.record([row(10, 4), row(10, 2)], TENSORS, {})
    later = {name: value + 1 for name, value in TENSORS.items()}
    run.record([row(20, 4), row(20, 2)], later, {"x": np.ones(3)})
    assert read_config(tmp_path / "run") == config()
    assert read_metadata(tmp_path / "run") == {"device": "cpu"}
    table = read_progress(tmp_path / "run")
    assert (table["step"].tolist(), table["seed"].tolist()) == ([10, 10, 20, 20], [4, 2, 4, 2])
    found = read_tensors(tmp_path / "run" / POLICY)
    assert found.keys() == later.keys()
    for name, value in later.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype
    np.testing.assert_array_equal(read_tensors(tmp_path / "run" / DECOMPOSER)["x"], np.ones(3))


# Directories that are taken


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    claimed(tmp_path / "run").record([row(10, 4)], TENSORS, TENSORS)
    before = {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()}
    assert "already holds a run" in refusal(writer, tmp_path / "run")
    assert {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()} == before


def test_a_directory_that_holds_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "is not empty" in refusal(writer, tmp_path)


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refusal(writer, tmp_path / "file")


def test_a_place_below_a_file_is_refused_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file" / "run") in refusal(writer, tmp_path / "file" / "run")


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_an_empty_directory_is_taken(exists: bool, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if exists:
        path.mkdir()
    refuse_existing_run(path)
    assert path.exists() == exists  # looking changes nothing


def test_a_free_directory_gets_the_next_number(tmp_path: Path) -> None:
    assert free_directory(tmp_path, "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert free_directory(tmp_path, "run") == tmp_path / "run-3"


# The table


def test_progress_survives_being_written_and_read_with_empty_cells_for_nan(tmp_path: Path) -> None:
    rows = [
        row(10, 4, return_mean=0.1 + 0.2, fit_r2=-1e-300),
        row(2**40, 2, return_mean=-1e300, episodes=0, temperature=float("inf")),
    ]
    text = progress_csv(rows)
    assert "nan" not in text
    assert text.splitlines()[0] == ",".join(COLUMNS)
    assert text.splitlines()[1].startswith("10,4,3,0.30000000000000004,,,")
    (tmp_path / PROGRESS).write_text(text, encoding="utf-8")
    table = read_progress(tmp_path)
    assert tuple(table) == COLUMNS
    for expected, found in zip(rows, table.rows(), strict=True):
        np.testing.assert_equal(found, expected)
    assert {name for name in COLUMNS if table[name].dtype == np.int64} == {"step", "seed", "episodes"}


def test_a_number_that_is_not_given_is_an_empty_cell() -> None:
    assert progress_csv([{"step": 1}]).splitlines()[1] == "1" + "," * (len(COLUMNS) - 1)


def test_a_table_gives_the_rows_with_given_values() -> None:
    table = Table({"seed": np.array([1, 2, 1]), "step": np.array([5, 5, 6])})
    assert table.where(seed=1).rows() == [{"seed": 1, "step": 5}, {"seed": 1, "step": 6}]
    assert table.where(seed=1, step=6).n_rows == 1
    assert table.where(seed=9).n_rows == 0


def test_a_table_shows_its_columns_but_those_without_numbers() -> None:
    text = repr(Table({"step": np.array([5, 6]), "fit_r2": np.array([NAN, 0.25]), "empty": np.array([NAN, NAN])}))
    assert text.splitlines()[0].split() == ["step", "fit_r2"]
    assert text.splitlines()[2].split() == ["6", "0.25"]


# Damage


def written(path: Path) -> Path:
    claimed(path).record([row(10, 4, return_mean=1.0)], TENSORS, TENSORS)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"step,seed\n1,2\n",
        ",".join(COLUMNS).encode() + b"\n1,2,3\n",
        ",".join(COLUMNS).encode() + b"\n1,2,3" + b",x" * (len(COLUMNS) - 3) + b"\n",
        ",".join(COLUMNS).encode() + b"\n,2,3" + b",1" * (len(COLUMNS) - 3) + b"\n",
        ",".join(COLUMNS).encode() + b"\n\xff\xfe\n",
    ],
    ids=["columns missing", "cells missing", "no number", "no step", "no text"],
)
def test_a_damaged_table_is_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    (path / PROGRESS).write_bytes(content)
    sentence = refusal(read_progress, path)
    assert f"'{path / PROGRESS}' is damaged" in sentence


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x02" + b"\x00" * 7 + b"[]", b"\xff" * 64])
def test_damaged_tensors_are_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "run") / POLICY
    path.write_bytes(content)
    assert f"'{path}' is damaged" in refusal(read_tensors, path)


def test_tensors_that_are_cut_off_are_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "run") / POLICY
    path.write_bytes(path.read_bytes()[:-5])
    assert f"'{path}' is damaged" in refusal(read_tensors, path)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"3", b"\xff"])
def test_damaged_metadata_are_a_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    (path / METADATA).unlink() if content is None else (path / METADATA).write_bytes(content)
    assert refusal(read_metadata, path) == f"'{path / METADATA}' is missing or damaged; train the run again."


def test_a_damaged_configuration_is_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    (path / CONFIG).write_text("steps = [", encoding="utf-8")
    assert f"'{path / CONFIG}' is not valid TOML" in refusal(read_config, path)


@pytest.mark.parametrize("read", [read_config, read_progress, lambda path: read_tensors(path / POLICY)])
def test_a_directory_without_a_run_is_said_to_be_one(read: object, tmp_path: Path) -> None:
    assert refusal(read, tmp_path).startswith(f"'{tmp_path}' holds no run")


def test_metadata_are_json(tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    assert json.loads((path / METADATA).read_text(encoding="utf-8")) == {"device": "cpu"}

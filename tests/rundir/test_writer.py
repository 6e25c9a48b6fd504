"""A run directory while it is written: claimed, kept or taken back, and never written over."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diaster.config import RunConfig, build_config
from diaster.errors import DiasterError
from diaster.rundir.lock import LOCK
from diaster.rundir.records import (
    BEST,
    CONFIG,
    DECOMPOSER,
    DONE,
    METADATA,
    NETS,
    POLICY,
    read_config,
    read_metadata,
    read_tensors,
)
from diaster.rundir.results import read_progress
from diaster.rundir.writer import RunWriter, free_directory, refuse_existing_run

TENSORS = {"0.weight": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "0.bias": np.zeros((1, 3), np.float32)}


def row(step: int, seed: int) -> dict[str, float | int]:
    return {"step": step, "seed": seed, "episodes": 3}


def config() -> RunConfig:
    return build_config(env="Toy-v0", seeds=(4, 2), steps=70)


def writer(path: Path) -> RunWriter:
    return RunWriter(path, config(), {"device": "cpu"})


def claimed(path: Path) -> RunWriter:
    run = writer(path)
    run.claim()
    return run


def listing(path: Path) -> list[str]:
    return sorted(str(item.relative_to(path)) for item in path.rglob("*"))


def refusal(path: Path) -> str:
    with pytest.raises(DiasterError) as caught:
        writer(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def test_a_run_that_came_to_something_stays(tmp_path: Path) -> None:
    made: dict[str, Callable[[RunWriter], None]] = {
        "a record": lambda run: run.record([row(10, 4)], TENSORS, TENSORS),
        "a checkpoint": lambda run: (run.path / "checkpoint").mkdir(),
        "what was asked for": lambda run: run.keep(),
    }
    for what, make in made.items():
        run = claimed(tmp_path / what)
        make(run)
        run.release()
        assert (run.path / CONFIG).exists() and not (run.path / LOCK).exists(), what


def test_results_that_could_not_be_written_are_written_with_the_next_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claimed(tmp_path / "run")

    def full(path: Path, content: bytes) -> None:
        raise DiasterError(f"'{path.name}' cannot be written: No space left on device.")

    for last in (20, 30):
        with monkeypatch.context() as patch:
            patch.setattr("diaster.rundir.writer.write_atomically", full)
            with pytest.raises(DiasterError, match="No space left"):
                run.record([row(last, 4)], TENSORS, TENSORS)
            with pytest.raises(DiasterError, match="No space left"):
                run.finish({}, {})
        assert not (tmp_path / "run" / DONE).exists()
    run.finish({}, {})
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
    run.finish({"wall_seconds": 1.5}, TENSORS)
    assert (tmp_path / "run" / DONE).exists()
    assert read_metadata(tmp_path / "run") == {"device": "cpu", "wall_seconds": 1.5}
    assert read_tensors(tmp_path / "run" / NETS).keys() == TENSORS.keys()


def test_the_best_policies_are_written_when_there_are_new_ones_and_what_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, best = claimed(tmp_path / "run"), tmp_path / "run" / BEST
    run.record([row(10, 4)], TENSORS, TENSORS, TENSORS)
    first = best.stat().st_mtime_ns
    run.record([row(20, 4)], TENSORS, TENSORS)
    assert best.stat().st_mtime_ns == first
    later = {name: value + 1 for name, value in TENSORS.items()}

    def full(path: Path, content: bytes) -> None:
        raise DiasterError(f"'{path.name}' cannot be written: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr("diaster.rundir.writer.write_atomically", full)
        with pytest.raises(DiasterError, match="No space left"):
            run.record([row(30, 4)], TENSORS, TENSORS, later)
    run.record([row(40, 4)], TENSORS, TENSORS)
    for name, value in later.items():
        np.testing.assert_array_equal(read_tensors(best)[name], value)


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


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    claimed(tmp_path / "run").record([row(10, 4)], TENSORS, TENSORS)
    before = {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()}
    assert "already holds a run" in refusal(tmp_path / "run")
    assert {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()} == before


def test_a_directory_that_holds_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "is not empty" in refusal(tmp_path)


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in refusal(tmp_path / "file")


def test_a_place_below_a_file_is_refused_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file" / "run") in refusal(tmp_path / "file" / "run")


def test_a_new_or_an_empty_directory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "run"
    refuse_existing_run(path)
    assert not path.exists()  # looking changes nothing
    path.mkdir()
    refuse_existing_run(path)


def test_a_free_directory_gets_the_next_number(tmp_path: Path) -> None:
    assert free_directory(tmp_path, "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert free_directory(tmp_path, "run") == tmp_path / "run-3"


# Two processes at one directory


def test_a_run_that_was_finished_meanwhile_is_not_begun_again(tmp_path: Path) -> None:
    first = claimed(tmp_path / "run")
    first.record([row(10, 4)], TENSORS, TENSORS)
    second = RunWriter(tmp_path / "run", config(), {}, is_resumed=True)  # looked before the first one ended
    first.finish({}, {})
    first.release()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(DiasterError, match="is complete; there is nothing left to train"):
        second.claim()
    second.release()
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_an_empty_folder_that_another_run_has_filled_meanwhile_is_refused_and_left_alone(tmp_path: Path) -> None:
    first, second = writer(tmp_path), writer(tmp_path)  # both find it empty
    first.claim()
    first.keep()
    first.release()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {CONFIG, METADATA}
    with pytest.raises(DiasterError, match="already holds a run"):
        second.claim()
    second.release()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_with_the_name_of_a_leftover_stays_and_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / f".{METADATA}.0123456789abcdef").mkdir()
    (tmp_path / f".{CONFIG}.0123456789abcdef").write_bytes(b"half")
    run = claimed(tmp_path)
    run.release()
    assert listing(tmp_path) == [f".{METADATA}.0123456789abcdef", CONFIG, METADATA]

"""A folder of runs: what is found in it, and what is refused."""

import shutil
from pathlib import Path

import pytest
from made_runs import make_run

from diaster.analysis.notes import Note
from diaster.analysis.results import read_results, run_directories
from diaster.errors import DiasterError
from diaster.rundir.records import PROGRESS


def refusal(path: Path) -> str:
    with pytest.raises(DiasterError) as caught:
        read_results(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_runs_are_found_at_any_small_depth_by_their_configuration(tmp_path: Path) -> None:
    for name in ("a", "b/c", "d/e/f/g"):
        make_run(tmp_path / name, {0: [1.0]})
    make_run(tmp_path / "1/2/3/4/5", {0: [1.0]})  # too deep
    (tmp_path / "empty").mkdir()
    assert run_directories(tmp_path) == [tmp_path / name for name in ("a", "b/c", "d/e/f/g")]


def test_a_run_directory_is_a_folder_of_one_run_and_nothing_inside_it_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [1.0]})
    make_run(tmp_path / "run" / "copy", {0: [9.0]})
    assert run_directories(tmp_path / "run") == [tmp_path / "run"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "outside" / "run", {0: [1.0]})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "link").symlink_to(tmp_path / "outside")
    assert "holds no runs" in refusal(tmp_path / "results")


@pytest.mark.parametrize("name", ["none", "file"])
def test_what_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is no folder" in refusal(tmp_path / name)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert f"'{tmp_path}' holds no runs" in refusal(tmp_path)


def test_runs_without_an_evaluation_are_noted_among_others_and_refused_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "young", {}, done=False)
    make_run(tmp_path / "younger", {}, done=False)
    (tmp_path / "younger" / PROGRESS).unlink()
    assert "has an evaluation yet" in refusal(tmp_path)
    make_run(tmp_path / "run", {0: [1.0]})
    notes = read_results(tmp_path).notes
    assert notes == (Note("young", "has no evaluation yet"), Note("younger", "has no evaluation yet"))


def test_a_damaged_run_is_named_and_not_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "good", {0: [1.0]})
    make_run(tmp_path / "bad", {0: [1.0]})
    (tmp_path / "bad" / PROGRESS).write_text("garbage", encoding="utf-8")
    assert f"'{tmp_path / 'bad' / PROGRESS}' is damaged" in refusal(tmp_path)


def test_a_run_that_is_removed_while_others_are_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, gone = (make_run(tmp_path / name, {0: [1.0]}) for name in "ab")
    found = run_directories(tmp_path)
    shutil.rmtree(gone)
    monkeypatch.setattr("diaster.analysis.results.run_directories", lambda _: found)
    assert [run.path for run in read_results(tmp_path).runs] == [stays]

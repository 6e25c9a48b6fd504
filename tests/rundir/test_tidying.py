"""What killed runs have left: removed by whoever holds the lock, and nothing else with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diaster.rundir.checkpoint import DIRECTORY
from diaster.rundir.files import is_temporary
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import CONFIG, DONE, POLICY, PROGRESS
from diaster.rundir.tidying import tidy

RANDOM = "0123456789abcdef"
OURS = [f".{name}.{RANDOM}" for name in (CONFIG, PROGRESS, POLICY, DONE, ROLLOUTS)]
NOT_OURS = [".config.toml.swp", ".notes.0123456789abcdef", f"{CONFIG}.{RANDOM}", ".hidden", CONFIG]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that was killed again and again."""
    folder = tmp_path / "run"
    (folder / DIRECTORY).mkdir(parents=True)
    for name in (*OURS, *NOT_OURS, f"{DIRECTORY}/state-3.safetensors", f"{DIRECTORY}/.manifest-3.json.{RANDOM}"):
        (folder / name).write_text(name)
    return folder


def test_temporary_files_are_removed_and_all_others_stay(run: Path) -> None:
    tidy(run)
    assert sorted(item.name for item in run.iterdir()) == sorted([*NOT_OURS, DIRECTORY])


def test_checkpoints_stay_while_the_run_is_unfinished_and_go_when_it_is_done(run: Path) -> None:
    tidy(run)
    assert (run / DIRECTORY / "state-3.safetensors").exists()
    (run / DONE).touch()
    tidy(run)
    assert not (run / DIRECTORY).exists()


def test_nothing_is_touched_while_another_process_holds_the_lock(run: Path) -> None:
    (run / DONE).touch()
    code = (
        "import sys; from pathlib import Path; from diaster.rundir.lock import RunLock; "
        "RunLock(Path(sys.argv[1])).take(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = sorted(run.rglob("*"))
        tidy(run)
        assert sorted(run.rglob("*")) == before
        other.communicate()


def test_a_lock_of_this_process_is_kept(run: Path) -> None:
    lock = RunLock(run)
    lock.take()
    tidy(run)
    assert (run / LOCK).exists() and (run / OURS[0]).exists()
    lock.release()


def test_links_and_folders_with_names_of_ours_are_left_alone(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "state-3.safetensors").touch()
    for item in (*(run / DIRECTORY).iterdir(), run / OURS[0], run / OURS[1]):
        item.unlink()
    (run / DIRECTORY).rmdir()
    (run / DIRECTORY).symlink_to(elsewhere)
    (run / OURS[0]).symlink_to(elsewhere / "state-3.safetensors")
    (run / OURS[1]).mkdir()
    (run / DONE).touch()
    tidy(run)
    assert (elsewhere / "state-3.safetensors").exists()
    assert (run / DIRECTORY).is_symlink() and (run / OURS[0]).is_symlink() and (run / OURS[1]).is_dir()


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    tidy(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_temporary_names_are_those_of_files_that_are_written() -> None:
    assert is_temporary(f".a.json.{RANDOM}", ("a.json", "b"))
    assert not any(
        is_temporary(name, ("a.json",)) for name in ("a.json", ".a.json.", f".b.{RANDOM}", f".aXjson.{RANDOM}")
    )

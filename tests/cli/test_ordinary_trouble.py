"""Ordinary trouble is a sentence and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_envs
from command_line import run

import diaster
from diaster.rundir.lock import LOCK
from diaster.rundir.records import CONFIG, DONE

TINY = (
    "--import=toy_envs", "--steps=60", "--chunk-steps=20", "--warmup-steps=40", "--workers=0", "--method=uniform",
    "--agent=ddpg", "--agent.hidden=4", "--agent.batch-size=8", "--evaluation.every=60", "--evaluation.episodes=1",
)  # fmt: skip


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([str(Path(diaster.__file__).parents[1]), str(Path(toy_envs.__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": places, **variables}
    command = [sys.executable, "-m", "diaster", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("diaster: ") and done.stderr.count("\n") == 1, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


def test_a_platform_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(python(tmp_path, "train", "Toy-v0", *TINY, JAX_PLATFORMS="cuda"), "JAX_PLATFORMS", "cuda")


def test_numbers_of_64_bits_are_refused(tmp_path: Path) -> None:
    refused(python(tmp_path, "train", "Toy-v0", *TINY, JAX_ENABLE_X64="1"), "JAX_ENABLE_X64", "32 bits")


def test_a_name_that_no_file_system_takes_is_refused(empty_cwd: Path) -> None:
    for arguments in (("train", "Toy-v0", *TINY, "--out", "x" * 300), ("evaluate", "x" * 300), ("plot", "x" * 300)):
        code, _, err = run(*arguments)
        assert code == 2 and err.startswith("diaster: ") and "Traceback" not in err, arguments[0]


def test_a_terminal_that_has_no_signs_but_ascii_is_written_to(tmp_path: Path) -> None:
    for arguments in (("list",), ("train", "--help"), ("train", "Toy-v0", *TINY, "--out", "run"), ("evaluate", "run")):
        done = python(tmp_path, *arguments, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, (arguments, done.stderr)


def test_sizes_that_fit_into_no_machine_are_refused(empty_cwd: Path) -> None:
    for flag in ("--agent.batch-size", "--method.batch-episodes", "--method.segments-per-episode"):
        code, _, err = run("train", "Toy-v0", "--import", "toy_envs", flag, 10**11)
        assert (code, "10" in err, "Traceback" in err) == (2, True, False), (flag, err)
    code, _, err = run("train", "Toy-v0", "--import", "toy_envs", "--evaluation.held-out", 2**70)
    assert code == 2 and "too large" in err


def test_what_a_run_left_that_was_killed_before_its_settings_were_written_is_no_hindrance(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / LOCK).write_text("process 1 on a machine that is gone")
    (out / f".{CONFIG}.0123456789abcdef").write_text("half")
    done = python(tmp_path, "train", "Toy-v0", *TINY, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (out / DONE).exists() and not list(out.glob(".*"))


@pytest.mark.parametrize("left", [LOCK, f".{CONFIG}.0123456789abcdef"])
def test_to_resume_a_run_that_was_killed_before_it_wrote_its_settings_says_how_to_begin_it(
    empty_cwd: Path, left: str
) -> None:
    (empty_cwd / "run").mkdir()
    (empty_cwd / "run" / left).touch()
    code, _, err = run("resume", "run")
    assert code == 2 and "killed before it wrote its settings" in err and "diaster train … --out run" in err, err
    assert [item.name for item in Path("run").iterdir()] == [left]


def test_an_empty_directory_holds_no_run_to_resume(empty_cwd: Path) -> None:
    (empty_cwd / "run").mkdir()
    code, _, err = run("resume", "run")
    assert code == 2 and "holds no run" in err


def test_what_an_environment_prints_is_no_part_of_the_json_of_an_evaluation(tmp_path: Path) -> None:
    assert python(tmp_path, "train", "ToyTalks-v0", *TINY, "--out", "run").returncode == 0
    done = python(tmp_path, "evaluate", "run", "--episodes", "1", "--json")
    assert json.loads(done.stdout)["0"]["return_mean"] is not None
    assert "hello from the environment" in done.stderr


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_an_environment_that_cannot_be_closed_is_let_go(tmp_path: Path, how: str) -> None:
    done = python(tmp_path, "train", f"ToyClose{how.capitalize()}-v0", *TINY, "--out", "run")
    assert (done.returncode, (tmp_path / "run" / DONE).exists()) == (0, True), done.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_an_isolated_environment_whose_close_hangs_keeps_no_run_from_its_end(tmp_path: Path, workers: int) -> None:
    flags = (*TINY, "--isolate-envs", f"--workers={workers}", "--out", "run")
    done = python(tmp_path, "train", "ToyCloseHangs-v0", *flags)
    assert (done.returncode, (tmp_path / "run" / DONE).exists()) == (0, True), done.stderr
    assert python(tmp_path, "evaluate", "run", "--episodes", "1").returncode == 0


def test_an_isolated_environment_that_dies_while_it_is_made_costs_a_sentence(tmp_path: Path) -> None:
    done = python(tmp_path, "train", "ToyMakeDies-v0", *TINY, "--isolate-envs", "--out", "run")
    refused(done, "'ToyMakeDies-v0' cannot be made", "its process died (exit code 7)")
    assert not (tmp_path / "run").exists()

"""Ctrl-C is answered at once: before there is anything to save, and while a run does whatever it does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_envs

import diaster
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.signals import INTERRUPTION

RAISES = "raise KeyboardInterrupt"
# An import that turns Ctrl-C into an error of its own, as those of C code do, and fails once more when Python ends.
SIGNALLED = """
import atexit, os, signal
atexit.register(lambda: 1 / 0)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("half of it is missing")
"""
# A process in the background may have been started deaf to Ctrl-C.
HEARS_SIGNALS = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("how", [RAISES, SIGNALLED])
@pytest.mark.parametrize("module", ["tyro", "jax"])
def test_ctrl_c_during_imports_is_one_sentence(tmp_path: Path, module: str, how: str) -> None:
    (tmp_path / f"{module}.py").write_text(how)
    places = os.pathsep.join([str(tmp_path), str(Path(diaster.__file__).parents[1])])
    command = [sys.executable, "-m", "diaster", "train", "InvertedPendulum-v5", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-c", HEARS_SIGNALS, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr.startswith("diaster: interrupted") and done.stderr.count("\n") == 1, done.stderr


FLAGS = (
    "--import=toy_envs", "--steps=1000000", "--chunk-steps=20", "--warmup-steps=40", "--workers=0", "--method=uniform",
    "--agent=ddpg", "--agent.hidden=4", "--agent.batch-size=8", "--evaluation.every=20", "--evaluation.episodes=1",
)  # fmt: skip


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`diaster train`, as long as a test lasts."""
    started: list[subprocess.Popen[str]] = []

    def start(env: str, *flags: str) -> subprocess.Popen[str]:
        places = os.pathsep.join([str(Path(diaster.__file__).parents[1]), str(Path(toy_envs.__file__).parent)])
        command = [sys.executable, "-m", "diaster", "train", env, *FLAGS, "--out", "run", *flags]
        process = subprocess.Popen(
            [sys.executable, "-c", HEARS_SIGNALS, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": places},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Pass over the lines of a command up to one with these words; a hanging test is ended by the runner."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"'{words}' was never said")


@pytest.mark.parametrize("when", ["seed 0", "compiling the agent's updates", "evaluating", "step        40"])
def test_ctrl_c_is_answered_at_once_and_ends_with_a_checkpoint_whatever_the_run_does(
    train: Callable[..., subprocess.Popen[str]], tmp_path: Path, when: str
) -> None:
    process = train("Toy-v0")
    read_until(process, when)
    process.send_signal(signal.SIGINT)
    read_until(process, "finishing the chunk, then a checkpoint; Ctrl-C again to quit")
    last = process.communicate(timeout=300)[1].splitlines()[-1]
    assert process.returncode == 130
    assert re.fullmatch(r"diaster: stopped at step \d+; go on with 'diaster resume run'\.", last)
    assert generations(tmp_path / "run" / DIRECTORY)


def test_where_no_checkpoint_is_to_be_written_none_is_promised(train: Callable[..., subprocess.Popen[str]]) -> None:
    process = train("Toy-v0", "--checkpoint-every=0")
    read_until(process, "step ")
    process.send_signal(signal.SIGTERM)
    read_until(process, "finishing the chunk, without a checkpoint\n")
    process.communicate(timeout=300)
    assert process.returncode == 143


def test_a_second_ctrl_c_quits_at_once(train: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = train("ToyHangs-v0")
    read_until(process, "seed 0")
    process.send_signal(signal.SIGINT)
    read_until(process, "Ctrl-C again to quit")
    process.send_signal(signal.SIGINT)
    # What was being told about the run may still come before it.
    assert process.communicate(timeout=300)[1].splitlines()[-1] == INTERRUPTION
    assert process.returncode == 130
    assert not (tmp_path / "run" / DIRECTORY).exists()


INTERRUPTED_LATE = """
import atexit
from diaster import cli

def interrupted(argv):
    print("half a table")
    raise KeyboardInterrupt

atexit.register(print, "Python ends, and XLA crashes")
cli.COMMANDS["list"] = cli.Command(interrupted, "")
print(cli.main(["list"]))
cli.main(["list"], owns_process=True)
"""


def test_an_interrupted_command_does_not_wait_for_the_end_of_python(python: Callable[..., Any]) -> None:
    done = python("-c", INTERRUPTED_LATE)
    assert (done.returncode, done.stdout) == (130, "half a table\n130\nhalf a table\n")
    assert done.stderr == f"{INTERRUPTION}\n" * 2


def test_the_command_that_is_installed_begins_where_python_m_diaster_does() -> None:
    text = (Path(diaster.__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'diaster = "diaster.__main__:main"' in text

"""A closed pipe or a full disk behind standard error ends printing, never training."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toy_envs

import diaster
from diaster.rundir.records import DONE

FLAGS = (
    "--import=toy_envs --steps=200 --chunk-steps=20 --warmup-steps=40 --workers=0 --method=uniform --agent=ddpg "
    "--agent.hidden=4 --agent.batch-size=8 --evaluation.every=40 --evaluation.episodes=1"
)


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command in bash, where `diaster` is this package's."""
    places = os.pathsep.join([str(Path(diaster.__file__).parents[1]), str(Path(toy_envs.__file__).parent)])
    script = f'set -o pipefail; diaster() {{ {shlex.quote(sys.executable)} -m diaster "$@"; }}; {command}'
    environment = {**os.environ, "PYTHONPATH": places}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize("end", ["2>/dev/full", "2>&1 | head -1", "2>&-"])
def test_training_goes_on_where_its_output_cannot_be_written(tmp_path: Path, end: str) -> None:
    done = shell(tmp_path, f"diaster train Toy-v0 {FLAGS} --out run {end}")
    assert (tmp_path / "run" / DONE).exists(), done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_an_error_that_cannot_be_printed_has_its_exit_code_all_the_same(tmp_path: Path) -> None:
    assert shell(tmp_path, "diaster train NoSuchEnv-v0 2>/dev/full").returncode == 2


def test_a_result_that_cannot_be_printed_is_an_error(tmp_path: Path) -> None:
    done = shell(tmp_path, "diaster list > /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("diaster: the output could not be written: No space left on device")


def test_a_terminal_that_is_closed_stops_a_run_as_sigterm_does() -> None:
    from diaster.signals import SIGNALS

    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} == set(SIGNALS)

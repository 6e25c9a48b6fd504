"""A sweep whose disk is full: sentences, and an exit code that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toy_envs

import diaster
from diaster.sweep.conduct import LOGS
from diaster.sweep.status import STATUS

SWEEP = """
[settings]
env = "Toy-v0"
imports = ["toy_envs"]
steps = 120
chunk_steps = 40
warmup_steps = 80
workers = 0
agent = { name = "ddpg", hidden = 256, batch_size = 8 }
evaluation = { every = 60, episodes = 1 }

[axes]
method = ["uniform", "ircr"]
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of a size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: str) -> Path:
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
        ).returncode:
            pytest.skip("file systems can be mounted by root alone")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


def swept(folder: Path, out: Path, output: str) -> subprocess.CompletedProcess[str]:
    """`diaster sweep` with standard output, or both streams, where nothing can be written."""
    (folder / "some.toml").write_text(SWEEP, encoding="utf-8")
    places = os.pathsep.join([str(Path(diaster.__file__).parents[1]), str(Path(toy_envs.__file__).parent)])
    script = f'exec "$0" -m diaster sweep some.toml --out "$1" {output}'
    return subprocess.run(
        ["bash", "-c", script, sys.executable, str(out)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_a_sweep_that_cannot_begin_on_a_full_disk_is_one_sentence(disk: Callable[[str], Path], tmp_path: Path) -> None:
    folder = disk("4k")
    (folder / "ballast").write_bytes(bytes(4096))
    done = swept(tmp_path, folder / "out", "")
    assert done.returncode == 2
    assert done.stderr.startswith("diaster: ") and done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.parametrize("output", ["", ">/dev/full 2>/dev/full"])
def test_cells_that_fill_the_disk_fail_with_a_sentence_and_so_does_the_sweep(
    disk: Callable[[str], Path], tmp_path: Path, output: str
) -> None:
    out = disk("100k") / "out"  # room for settings, status and logs, and for no nets
    done = swept(tmp_path, out, output)
    logs = "".join(log.read_text(encoding="utf-8") for log in (out / LOGS).iterdir())
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stdout + done.stderr + logs
    if not output:
        assert done.stderr.splitlines()[-1].startswith("diaster: 2 of 2 cells failed; the first, ")
    cells = json.loads((out / STATUS).read_text(encoding="utf-8"))["cells"]
    assert all(cell["state"] == "failed" and "No space left" in cell["failure"] for cell in cells.values())

"""Ctrl-C before there is anything to save: one sentence, and nothing of Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import diaster

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


def test_the_command_that_is_installed_begins_where_python_m_diaster_does() -> None:
    text = (Path(diaster.__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'diaster = "diaster.__main__:main"' in text

"""Without the extra, importing says which one is missing."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess


def test_without_stable_baselines3_the_import_names_the_extra(python: Callable[..., CompletedProcess[str]]) -> None:
    done = python("-c", "import sys; sys.modules['stable_baselines3'] = None; import diaster.sb3")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "ImportError: diaster.sb3 needs Stable-Baselines3, which is not installed; pip install 'diaster[sb3]'."
    )

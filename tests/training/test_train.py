"""From settings to a run: what surrounds the loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from small_runs import QUICK, learnt_bytes, small

from diaster.config import build_config
from diaster.training.progress import Silent
from diaster.training.train import run_training


def quick(**settings: Any) -> dict[str, Any]:
    """The settings of a small run that compiles in little time."""
    return small(**{"env": "Toy-v0", **QUICK, **settings})


def test_another_default_generator_of_jax_changes_no_byte(tmp_path: Path, trained: Callable[..., Any]) -> None:
    with jax.default_prng_impl("rbg"):
        run = run_training(build_config(**quick()), tmp_path / "run", Silent())
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))

"""From settings to a run: what surrounds the loop."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from small_runs import QUICK, learnt_bytes, small

from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.training import loop
from diaster.training.progress import Silent
from diaster.training.train import run_training


def quick(**settings: Any) -> dict[str, Any]:
    """The settings of a small run that compiles in little time."""
    return small(**{"env": "Toy-v0", **QUICK, **settings})


def test_another_default_generator_of_jax_changes_no_byte(tmp_path: Path, trained: Callable[..., Any]) -> None:
    with jax.default_prng_impl("rbg"):
        run = run_training(build_config(**quick()), tmp_path / "run", Silent())
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))


SHORTAGES = [
    MemoryError(),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99999999999 bytes."),
    RuntimeError("can't start new thread"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
]


@pytest.mark.parametrize("shortage", SHORTAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["make_learner", "make_collectors", "_learn"])
def test_too_little_of_what_a_run_needs_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortage: Exception, where: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise shortage

    if where == "_learn":
        monkeypatch.setattr(loop.Trainer, "_learn", fail)
    else:
        monkeypatch.setattr(loop, where, fail)
    with pytest.raises(DiasterError, match=r"too little memory|no further thread or process") as caught:
        run_training(build_config(**quick()), tmp_path / "run", Silent())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_error_of_another_kind_is_not_called_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(loop, "make_learner", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        run_training(build_config(**quick()), tmp_path / "run", Silent())

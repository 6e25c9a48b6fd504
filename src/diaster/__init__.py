"""Diaster: learn a policy, and a reward for every step, from one number per episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diaster.errors import DiasterError
    from diaster.run import Run, load
    from diaster.training.train import resume, train

__version__ = "0.1.0"
__all__ = ["DiasterError", "Run", "__version__", "load", "resume", "train"]

_HOME = {
    "DiasterError": "diaster.errors",
    "Run": "diaster.run",
    "load": "diaster.run",
    "resume": "diaster.training.train",
    "train": "diaster.training.train",
}


def __getattr__(name: str) -> Any:
    # JAX takes a second to import: `diaster --help` and the processes that step environments do without it.
    if name in _HOME:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return globals()[name]
    raise AttributeError(f"module 'diaster' has no attribute '{name}'")

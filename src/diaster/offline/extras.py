"""Packages that only some data sets need."""

from __future__ import annotations

import importlib
from typing import Any

from diaster.errors import DiasterError


def extra(module: str, name: str, what: str) -> Any:
    """The module, or a sentence that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DiasterError(f"{what} need {module}; install it with pip install 'diaster[{name}]'.") from None

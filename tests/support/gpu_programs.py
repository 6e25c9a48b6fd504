"""Programs for a GPU where there is none."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


def lower_for_a_gpu(traced: Any) -> None:
    """Fails where a traced program cannot be lowered; skips where this JAX does not try."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of JAX 0.11: Triton's place in Pallas is to end some day
        try:
            traced.lower(lowering_platforms=("cuda",))
        except RuntimeError as error:
            pytest.skip(f"this JAX does not compile for a GPU without one: {error}")

"""Whether kernels of our own (Pallas, on Triton) can be used where JAX computes now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

try:  # deprecated since JAX 0.11
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.triton import CompilerParams
except ImportError:
    pl, CompilerParams = None, None  # type: ignore[assignment, misc]

__all__ = ["CompilerParams", "computing_device", "is_power_of_two", "pl", "why_not_compiled"]


def computing_device() -> Any:
    """The device that a program traced now would run on."""
    device: Any = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    return jax.devices(device)[0] if isinstance(device, str) else device


def why_not_compiled(function: Callable[..., Any], *forms: Any) -> str:
    """What the compiler says of a function; nothing if it can. Versions of JAX differ in the GPUs they know."""
    try:
        jax.jit(function).lower(*forms).compile()
    except Exception as error:  # the compiler's, or Pallas's own; they differ from version to version
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def is_power_of_two(size: int) -> bool:
    """Triton's blocks have such sizes."""
    return size > 0 and size & (size - 1) == 0

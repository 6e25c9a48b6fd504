"""For Stable-Baselines3 and SBX: a replay buffer whose rewards come from episodes' returns, and what fits it."""

from __future__ import annotations

try:
    import stable_baselines3  # noqa: F401
except ImportError:
    raise ImportError(
        "diaster.sb3 needs Stable-Baselines3, which is not installed; pip install 'diaster[sb3]'."
    ) from None

from diaster.sb3.buffer import DecomposedReplayBuffer
from diaster.sb3.callback import FitDecomposer

__all__ = ["DecomposedReplayBuffer", "FitDecomposer"]

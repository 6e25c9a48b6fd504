"""What pictures, recordings and films ask of a run; `diaster.Run` has all of it, and shows itself through this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.config import RunConfig
from diaster.envs.creating import Env
from diaster.types import EnvSpec, EvaluationEpisode, FloatArray


class Subject(Protocol):
    """A trained run."""

    path: Path
    config: RunConfig
    spec: EnvSpec

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def raw_observation_space(self) -> spaces.Space[Any]: ...

    def make_env(self, **kwargs: Any) -> Env: ...

    def actor(self, seed: int | None = None) -> Callable[[FloatArray], FloatArray]: ...

    def step_rewards(
        self, episodes: Sequence[EvaluationEpisode], seed: int | None = None
    ) -> list[NDArray[np.float64]]: ...

"""What a report shows of a fit: kept while the fit is made, and not saved with the model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.offline.fitting import Look

Floats = NDArray[np.float64]


class ShownEpisode(NamedTuple):
    """A held-out episode, step by step."""

    title: str
    rewards: Floats  # [L] as users see them
    outcome: float
    predicted: float
    hidden: Floats | None  # [L] the data set's own rewards, where it has some and they were summed
    texts: list[str]  # of turns


class Evidence(NamedTuple):
    """How a fit came about, and how good it is."""

    looks: list[Look]
    start_error: float
    outcomes: Floats  # [E] of the episodes it was measured on
    predicted: Floats  # [E]
    shown: list[ShownEpisode]
    notes: list[str]  # what was skipped, left out or warned of

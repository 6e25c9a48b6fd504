"""Which episodes are fitted to, which the fit stops on, and which it is measured on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.survey import Survey
from diaster.types import Stream, host_random

MOST_EPISODES, MOST_STEPS = 1000, 200_000  # of those to stop on, and of those to measure on

Numbers = NDArray[np.int64]


class Split(NamedTuple):
    """Numbers of episodes, in random order."""

    fitted: Numbers
    stop: Numbers
    measure: Numbers
    left_out: int  # episodes that memory has no room for


def split(survey: Survey, held_out: float, seed: int, most_rows: int) -> Split:
    """Deal out the episodes. A group stays together: episodes at the same task would tell of each other."""
    numbers = np.flatnonzero(survey.is_sound)
    alone = -1 - np.arange(len(survey.groups))
    _, unit = np.unique(np.where(survey.groups < 0, alone, survey.groups)[numbers], return_inverse=True)
    n_units = int(unit.max()) + 1
    if n_units < 3:
        raise DiasterError(
            f"the episodes are of {n_units} group{'s' * (n_units > 1)}, and at least 3 are needed, because groups are "
            "held out whole; give more of them, or leave the groups out."
        )
    random = host_random(seed, Stream.HOLD_OUT)
    order = np.argsort(random.permutation(n_units)[unit], kind="stable")
    numbers = numbers[order]
    starts = np.flatnonzero(np.diff(unit[order], prepend=-1))  # of units, in their random order
    n_held = held_out * len(numbers)
    n_stop = int(np.clip(np.searchsorted(starts, n_held / 2), 1, n_units - 2))
    n_both = int(np.clip(np.searchsorted(starts, n_held), n_stop + 1, n_units - 1))
    stop, measure, fitted = np.split(numbers, starts[[n_stop, n_both]])
    kept = _within(fitted, survey.lengths + 1, len(fitted), most_rows)
    return Split(
        kept,
        _within(stop, survey.lengths, MOST_EPISODES, MOST_STEPS),
        _within(measure, survey.lengths, MOST_EPISODES, MOST_STEPS),
        len(fitted) - len(kept),
    )


def _within(numbers: Numbers, sizes: NDArray[np.int64], most: int, most_steps: int) -> Numbers:
    """As many of the first episodes as there is room for, one at least."""
    n = int(np.searchsorted(np.cumsum(sizes[numbers]), most_steps, side="right"))
    return numbers[: max(1, min(n, most))]

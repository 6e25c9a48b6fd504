"""The numbers that can be drawn over steps: what an axis calls them, and how far it reaches where they explode."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from diaster.errors import DiasterError, unknown
from diaster.rundir.results import COLUMNS

RETURN = "return_mean"
NOT_DRAWN = ("step", "seed")  # columns of the table that are no result
DRAWN = tuple(name for name in COLUMNS if name not in NOT_DRAWN)


class Metric(NamedTuple):
    """A column of the table on an axis."""

    title: str
    low: float = -math.inf
    """The axis never reaches below this, nor above `high`, as long as there are values between them."""
    high: float = math.inf
    help: str = ""
    """What a value means, in a line."""


# How well a method explains returns and rewards: those that every figure of metrics and the report show.
DECOMPOSITION = {
    "fit_r2": Metric("fit_r2", -1.0, 1.0, "R² of Σ r̂ against the returns: 1 is perfect, 0 no better than their mean"),
    "reward_correlation": Metric("reward_correlation", -1.0, 1.0, "correlation of r̂ with the hidden true reward"),
    "within_correlation": Metric(
        "within_correlation", -1.0, 1.0, "the same after each episode's mean is taken off: what r̂ tells of its steps"
    ),
    "return_gap": Metric("return_gap", 0.0, 2.0, "mean |Σ r̂ − return|, in standard deviations of the returns"),
    "reward_slope": Metric(
        "reward_slope", -1.0, 2.0, "how much of the true reward's changes r̂ shows: 1 is all of them"
    ),
}
METRICS = {
    RETURN: Metric("return of an episode", help="return of an episode of the deterministic policy"),
    "training_return": Metric("return of training episodes"),
    **DECOMPOSITION,
}


def metric_of(name: str) -> Metric:
    """How a column is drawn."""
    return METRICS.get(name) or Metric(name)


def check_metric(name: str, with_numbers: Iterable[str]) -> None:
    """Refuse a column that does not exist, or that has no number in any of the tables at hand."""
    if name not in DRAWN:
        raise unknown("metric", name, DRAWN)
    known = [one for one in DRAWN if one in set(with_numbers)]
    if name not in known:
        raise DiasterError(f"'{name}' has no numbers in these runs; there are numbers in {', '.join(known)}.")

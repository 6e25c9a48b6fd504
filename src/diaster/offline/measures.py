"""How well rewards explain held-out episodes, how sure that is, and when it is too little."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.statistics import bootstrap_interval
from diaster.offline.outcomes import Floats, Outcomes

POOR = 0.3  # of a sum; what is decided by chance may explain little of an outcome of 0 or 1, however good rewards are
FEW = 20  # held-out episodes, or groups of them, below which an interval says little


class Fit(NamedTuple):
    """fit_r2 and its 95 % interval; NaN where it has no meaning."""

    r2: float
    low: float
    high: float
    episodes: int
    units: int  # groups, or episodes where there are none: what is drawn for the interval

    def text(self) -> str:
        """For people."""
        return text_of(self.r2, (self.low, self.high))


def text_of(r2: float, interval: tuple[float, float]) -> str:
    """fit_r2 with its interval, for people."""
    if not np.isfinite(r2):
        return "–"
    low, high = interval
    return f"{r2:.3f} (95 % interval {low:.3f} to {high:.3f})".replace("-", "−")


def measure(outcomes: Outcomes, sums: Floats, groups: NDArray[np.int64]) -> Fit:
    """1 − Σ (number − predicted)² / Σ (number − expected)², over held-out episodes.

    Without groups, expected is the mean of these episodes, as in any R². The interval is a bootstrap over groups, or
    over episodes where there are none.
    """
    n = len(sums)
    has_groups = bool((groups >= 0).any())
    _, unit = np.unique(np.where(groups < 0, -1 - np.arange(n), groups), return_inverse=True)
    error = (outcomes.given - outcomes.predicted(sums)) ** 2
    # Of each unit: episodes, Σ error, and the sums that spread is made of.
    shift = outcomes.given - (outcomes.expected if has_groups else outcomes.given.mean())
    parts = [np.bincount(unit, part) for part in (np.ones(n), error, shift, shift**2)]

    def r2(drawn: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        count, missed, first, second = (part[drawn[0].astype(np.int64)].sum(axis=-1) for part in parts)
        spread = second if has_groups else second - first**2 / count
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(spread > 1e-12 * (1.0 + second), 1.0 - missed / spread, np.nan))

    units = np.arange(len(parts[0]), dtype=np.float64)
    value = float(r2([units]))
    with np.errstate(invalid="ignore"):
        low, high = bootstrap_interval(lambda drawn: np.nan_to_num(r2(drawn), nan=value), [units])
    return Fit(value, float(low), float(high), n, len(units))


def warning(fit: Fit, is_binary: bool) -> str | None:
    """A sentence where rewards are too poor to use, with what to do."""
    remedy = (
        "more episodes, or ones whose returns differ more, help most; then what the steps show (does it hold what the "
        "return depends on?), then another --method"
    )
    if not np.isfinite(fit.r2):
        return "the held-out episodes do not tell how good the rewards are: all of them ended alike; hold out more."
    if fit.low <= 0.0:
        return (
            f"the rewards are not shown to explain anything of held-out episodes (fit_r2 {fit.text()}): do not train "
            f"on them; {remedy}."
        )
    if not is_binary and fit.r2 < POOR:
        return f"the rewards explain little of held-out episodes (fit_r2 {fit.text()}); {remedy}."
    if fit.units < FEW:
        what = ("group" if fit.units < fit.episodes else "episode") + "s" * (fit.units > 1)
        return f"fit_r2 is measured on {fit.units} held-out {what} only; its interval may be too narrow."
    return None

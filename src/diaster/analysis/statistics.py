"""Estimators over tasks and seeds: interquartile mean, bootstrap intervals, profiles, probability of improvement.

Those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). Scores are a
list with an array of runs for each task; tasks may have unequal numbers of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.diagnostics import pearson

Scores = Sequence[NDArray[np.float64]]  # of each task  # [runs]

RESAMPLES = 2000
CONFIDENCE = 0.95


def interquartile_mean(scores: Scores) -> float:
    """The mean of the middle half of all runs; a quarter is cut off at each end, rounded down."""
    ordered = np.sort(np.concatenate([np.asarray(of_task, np.float64) for of_task in scores]))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def performance_profile(scores: Scores, levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of runs above each level.  # [levels]"""
    ordered = np.sort(np.concatenate([np.asarray(of_task, np.float64) for of_task in scores]))
    return 1.0 - np.searchsorted(ordered, levels, side="right") / len(ordered)


def probability_of_improvement(first: Scores, second: Scores) -> float:
    """How likely a run of the first beats one of the second on a task drawn at random; a tie counts half."""
    shares = []
    for x, y in zip(first, second, strict=True):
        difference = np.asarray(x)[:, None] - np.asarray(y)[None, :]
        shares.append(float((difference > 0).mean() + 0.5 * (difference == 0).mean()))
    return float(np.mean(shares))


def bootstrap_interval(
    estimate: Callable[..., float | NDArray[np.float64]], *samples: Scores, resamples: int = RESAMPLES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end of the percentile interval, where the runs of each task are drawn anew (stratified)."""
    random = np.random.default_rng(0)  # the same results give the same picture
    values = np.array([estimate(*(_drawn_anew(sample, random) for sample in samples)) for _ in range(resamples)])
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [outside, 100 - outside], axis=0)
    return np.asarray(low), np.asarray(high)


def _drawn_anew(scores: Scores, random: np.random.Generator) -> Scores:
    return [of_task[random.integers(len(of_task), size=len(of_task))] for of_task in scores]


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; equal values share their mean rank. NaN where one side is constant."""
    return pearson(_ranks(x), _ranks(y)) if len(x) > 1 else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)

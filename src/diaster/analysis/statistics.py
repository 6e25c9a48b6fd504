"""Estimators over tasks and seeds: interquartile mean, bootstrap intervals, profiles, probability of improvement.

Those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). Scores are a
list with an array of runs for each task; tasks may have unequal numbers of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.diagnostics import pearson

Scores = Sequence[NDArray[np.float64]]  # of each task  # [..., runs]

RESAMPLES = 2000
CONFIDENCE = 0.95


def interquartile_mean(scores: Scores) -> NDArray[np.float64]:
    """The mean of the middle half of all runs; a quarter is cut off at each end, rounded down.  # [...]"""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(np.concatenate(scores, axis=-1), 0.25, axis=-1))


def performance_profile(scores: Scores, levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of runs above each level.  # [..., levels]"""
    runs = np.concatenate(scores, axis=-1)
    return np.asarray((runs[..., None, :] > levels[:, None]).mean(axis=-1))


def probability_of_improvement(first: Scores, second: Scores) -> NDArray[np.float64]:
    """How likely a run of the first beats one of the second on a task drawn at random; a tie counts half.  # [...]"""
    differences = [x[..., :, None] - y[..., None, :] for x, y in zip(first, second, strict=True)]
    shares = [(one > 0).mean(axis=(-2, -1)) + 0.5 * (one == 0).mean(axis=(-2, -1)) for one in differences]
    return np.asarray(np.mean(shares, axis=0))


def bootstrap_interval(
    estimate: Callable[..., NDArray[np.float64]], *samples: Scores, resamples: int = RESAMPLES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end of the percentile interval, with the runs of each task resampled (stratified).

    `scipy.stats.bootstrap` refuses tasks with a single run. The estimate gets all draws at once.  # [resamples, runs]
    """
    random = np.random.default_rng(0)  # the same results give the same picture
    draws = [[_resampled(sample, random) for sample in samples] for _ in range(resamples)]
    stacked = [[np.stack(of_task) for of_task in zip(*sample, strict=True)] for sample in zip(*draws, strict=True)]
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(estimate(*stacked), [outside, 100 - outside], axis=0)
    return np.asarray(low), np.asarray(high)


def _resampled(scores: Scores, random: np.random.Generator) -> Scores:
    return [of_task[random.integers(len(of_task), size=len(of_task))] for of_task in scores]


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; equal values share their mean rank. NaN where one side is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y)) if len(x) > 1 else float("nan")

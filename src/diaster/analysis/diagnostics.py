"""How good the policy and the decomposition are: statistics of returns, and r̂ against returns and true rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.types import EvaluationEpisode


class ReturnStatistics(NamedTuple):
    """Statistics of the deterministic episodes of one evaluation."""

    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float


class Diagnostics(NamedTuple):
    """Quality of the decomposition on episodes it was not fitted to; NaN where a number has no meaning."""

    fit_r2: float
    """R² of Σ r̂ against R."""
    reward_correlation: float
    """Pearson's correlation of r̂ with the hidden true reward, over all steps."""
    return_gap: float
    """Mean |Σ r̂ − R|, relative to the standard deviation of R."""
    within_correlation: float
    """The correlation of what is left of both when each episode's mean is taken off."""
    reward_slope: float
    """How much of the true reward's changes inside episodes r̂ shows: 1 is all, 0 nothing."""


def return_statistics(episodes: Sequence[EvaluationEpisode]) -> ReturnStatistics:
    """Mean, standard deviation, minimum and maximum of the return, and the mean length."""
    returns = np.array([item.episode.episode_return for item in episodes])
    lengths = np.array([item.episode.length for item in episodes])
    return ReturnStatistics(
        float(returns.mean()),
        float(returns.std()),
        float(returns.min()),
        float(returns.max()),
        float(lengths.mean()),
    )


def has_step_rewards(episodes: Iterable[EvaluationEpisode]) -> bool:
    """Whether an environment rewards single steps, judged by all episodes at hand.

    One that is episodic by nature pays at the last step alone, in every episode. A single episode does not tell: where
    rewards are sparse, one may have been paid at its last step by chance.
    """
    rewards = [item.true_reward for item in episodes if item.true_reward is not None and len(item.true_reward) > 1]
    return any(reward[:-1].any() for reward in rewards) or not any(reward[-1] for reward in rewards)


def diagnose(
    episodes: Sequence[EvaluationEpisode], rewards: Sequence[NDArray[np.float64]], is_known: bool = True
) -> Diagnostics:
    """Compare the episodes' r̂ with their returns, and with the true rewards where the environment has any."""
    sums = np.array([reward.sum() for reward in rewards])
    returns = np.array([item.episode.episode_return for item in episodes])
    spread = returns.std()
    known = [(r, item.true_reward) for r, item in zip(rewards, episodes, strict=True) if item.true_reward is not None]
    correlation = within = slope = fit = gap = float("nan")
    if known and is_known:
        correlation = pearson(*(np.concatenate(side) for side in zip(*known, strict=True)))
        # Pooled, the means of episodes alone agree well; what a policy can do better next is told inside of them.
        mine, true = (
            np.concatenate([np.asarray(part, np.float64) - np.mean(part, dtype=np.float64) for part in side])
            for side in zip(*known, strict=True)
        )
        within = pearson(mine, true)
        if not _is_constant(true):
            slope = float((mine * true).sum() / (true**2).sum())
    if spread > 1e-9 * (1.0 + np.abs(returns).max()):  # else all returns are alike: nothing to explain
        error = sums - returns
        fit, gap = float(1.0 - (error**2).mean() / spread**2), float(np.abs(error).mean() / spread)
    return Diagnostics(fit, correlation, gap, within, slope)


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation; NaN where one side is constant."""
    sides = [np.asarray(side, np.float64) for side in (x, y)]
    if any(map(_is_constant, sides)):
        return float("nan")
    x, y = (side - side.mean() for side in sides)
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def _is_constant(values: NDArray[np.float64]) -> bool:
    return bool(values.std() <= 1e-9 * (1e-9 + np.abs(values).max()))

"""How good the policy and the decomposition are: statistics of returns, and r̂ against returns and true rewards.

Where feedback comes in pieces, returns are the numbers of spans; those without one are left out. What is known of the
rewards is taken off both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.types import Episode, EvaluationEpisode

HARDLY = 0.01  # returns hardly vary below this standard deviation, as a share of their root mean square
ROUNDING = 1e-6  # rewards are told in 32 bits: what varies by less, as a share of the largest, is constant


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
    """R² of Σ r̂ against R, or the number of each span; none where they hardly vary: it would tell of chance."""
    reward_correlation: float
    """Pearson's correlation of r̂ with the hidden true reward, over all steps."""
    return_gap: float
    """Mean |Σ r̂ − R|, relative to the standard deviation of R; none where that is hardly anything."""
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


def episode_columns(
    seen: Mapping[int, Sequence[EvaluationEpisode]], rewards: Mapping[int, Sequence[NDArray[np.float64]]]
) -> dict[str, NDArray[Any]]:
    """The episodes of each seed as columns of a table, a row for each."""
    rows = [
        (seed, number, item.episode, float(reward.sum()))
        for seed, of_seed in seen.items()
        for number, (item, reward) in enumerate(zip(of_seed, rewards[seed], strict=True))
    ]
    return {
        "seed": np.array([seed for seed, _, _, _ in rows]),
        "episode": np.array([number for _, number, _, _ in rows]),
        "return": np.array([episode.episode_return for _, _, episode, _ in rows]),
        "length": np.array([episode.length for _, _, episode, _ in rows]),
        "reward_sum": np.array([total for _, _, _, total in rows]),
        "time_limit": np.array([not episode.terminated for _, _, episode, _ in rows]),
    }


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
    sums, returns = _sums_and_returns([item.episode for item in episodes], rewards)
    pairs = [(r, _hidden_part(item)) for r, item in zip(rewards, episodes, strict=True)]
    # A method that shares out numbers has nothing to say of steps without one.
    known = [(r[~np.isnan(r)], true[~np.isnan(r)]) for r, true in pairs if true is not None]
    known = [pair for pair in known if len(pair[0])]
    correlation = within = slope = float("nan")
    if known and is_known and not _pay_alike(episodes):
        correlation = pearson(*(np.concatenate(side) for side in zip(*known, strict=True)))
        # Pooled, the means of episodes alone agree well; what a policy can do better next is told inside of them.
        mine, true = (np.concatenate([_deviations(part) for part in side]) for side in zip(*known, strict=True))
        within = pearson(mine, true)
        if not _is_constant(true):
            slope = float((mine * true).sum() / (true**2).sum())
    fit, gap = explained(sums, returns)
    return Diagnostics(fit, correlation, gap, within, slope)


def _pay_alike(episodes: Sequence[EvaluationEpisode]) -> bool:
    """Whether every step is paid the same, but for one that ends its episode and may be paid nothing.

    InvertedPendulum-v5 pays 1 for each step but that with which the pole has fallen. A correlation would tell of these
    steps alone.
    """
    true = [(item, part) for item in episodes if (part := _hidden_part(item)) is not None]
    return _is_constant(
        np.concatenate([part[:-1] if item.episode.terminated and part[-1] == 0.0 else part for item, part in true])
    )


def explained(sums: NDArray[np.float64], returns: NDArray[np.float64]) -> tuple[float, float]:
    """`fit_r2` and `return_gap` of sums of r̂; NaN where there is next to nothing to explain."""
    if hardly_vary(returns):
        return float("nan"), float("nan")
    error, spread = sums - returns, returns.std()
    return float(1.0 - (error**2).mean() / spread**2), float(np.abs(error).mean() / spread)


def _sums_and_returns(
    episodes: Sequence[Episode], rewards: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Σ r̂ of every span that has a number, and that number."""
    sums, returns = [np.zeros(0)], [np.zeros(0)]
    for episode, reward in zip(episodes, rewards, strict=True):
        spans = episode.to_decompose
        of_spans = np.array([reward.sum()]) if len(spans.end) == 1 else np.add.reduceat(reward, spans.start)
        sums.append(of_spans[spans.is_rated])
        returns.append(spans.number[spans.is_rated])
    return np.concatenate(sums), np.concatenate(returns)


def _hidden_part(item: EvaluationEpisode) -> NDArray[np.float32] | None:
    """The true rewards without what is known of them."""
    if item.true_reward is None or item.episode.known_reward is None:
        return item.true_reward
    return item.true_reward - item.episode.known_reward


def hardly_vary(returns: NDArray[np.float64]) -> bool:
    """Whether returns differ so little from each other that there is next to nothing to explain."""
    return len(returns) == 0 or bool(returns.std() <= HARDLY * np.sqrt((returns**2).mean()))


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation; NaN where one side is constant."""
    sides = [np.asarray(side, np.float64) for side in (x, y)]
    if any(map(_is_constant, sides)):
        return float("nan")
    x, y = (side - side.mean() for side in sides)
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def _deviations(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rewards of an episode less their mean; zeros where they are constant, not what rounding makes of them."""
    exact = np.asarray(rewards, np.float64)
    return np.zeros_like(exact) if _is_constant(exact) else exact - np.mean(rewards, dtype=np.float64)


def _is_constant(values: NDArray[np.float64]) -> bool:
    return len(values) == 0 or bool(values.std() <= ROUNDING * np.abs(values).max())

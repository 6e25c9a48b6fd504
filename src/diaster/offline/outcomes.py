"""What an episode's number is, and what rewards have to say of it.

A number is a sum of rewards, and squared errors are right for it; or it is 0 or 1, and cross-entropy is:

    p = σ(z),    z = b + Σ_t r̂_t,    loss = log(1 + exp(z)) − y·z

with b the log-odds of what is expected of the episode before it is seen. Its curvature is at most 1/4 everywhere, so
around the present z the loss lies below a parabola with its minimum at z + 4(y − p) (Böhning and Lindsay, 1988). Least
squares on these targets, which are renewed as r̂ changes, bring the cross-entropy down step by step. So every method
that fits sums fits outcomes, as it is.

What is expected of an episode is the mean of all; where episodes come in groups, that of the others of its group,
drawn to the mean of all as far as groups are alike. Rewards then tell attempts at one task apart, and not easy tasks
from hard ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CURVATURE = 0.25  # the largest of the cross-entropy
LEAST_WEIGHT, MOST_WEIGHT = 0.1, 1e6  # even a group in which all ended alike may have another one next time

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """The numbers of some episodes, and what is expected of each."""

    is_binary: bool
    given: Floats  # [E]
    expected: Floats  # [E]

    def targets(self, sums: Floats | None = None) -> Floats:
        """What Σ r̂ of each episode is fitted to, now that it is `sums`.  # [E]"""
        if not self.is_binary:
            return self.given - self.expected
        now = np.zeros_like(self.given) if sums is None else sums
        return now + (self.given - self.predicted(now)) / CURVATURE

    def predicted(self, sums: Floats) -> Floats:
        """The number that Σ r̂ stands for: a return, or a probability.  # [E], or more in front"""
        return sigmoid(log_odds(self.expected) + sums) if self.is_binary else self.expected + sums

    def error(self, sums: Floats) -> float:
        """The mean loss: squared error, or cross-entropy."""
        if not self.is_binary:
            return float(((self.predicted(sums) - self.given) ** 2).mean())
        z = log_odds(self.expected) + sums
        return float((np.logaddexp(0.0, z) - self.given * z).mean())


@dataclass(frozen=True)
class Expectation:
    """What is known of episodes beforehand: the mean of all, and how much of a group's own mean is to be believed."""

    mean: float
    weight: float
    """Of the mean of all, in episodes of the group."""

    def of(self, given: Floats, groups: NDArray[np.int64]) -> Floats:
        """What is expected of each episode by the others of its group; the mean of all without one.  # [E]"""
        place = np.where(groups >= 0, groups, groups.max(initial=-1) + 1)
        total, count = np.bincount(place, given), np.bincount(place)
        others = (total[place] - given + self.weight * self.mean) / (count[place] - 1 + self.weight)
        return np.where(groups >= 0, others, self.mean)


def expectation(given: Floats, groups: NDArray[np.int64]) -> Expectation:
    """From the episodes that are fitted to: the weight is the variance within groups over that between them."""
    mean, in_group = float(given.mean()), groups >= 0
    _, place, count = np.unique(groups[in_group], return_inverse=True, return_counts=True)
    means = np.bincount(place, given[in_group]) / count
    n_spare = len(place) - len(count)
    if n_spare < 1 or len(count) < 2:
        return Expectation(mean, 1.0)
    within = float(((given[in_group] - means[place]) ** 2).sum() / n_spare)
    between = float(means.var(ddof=1)) - within * float((1.0 / count).mean())
    ratio = within / between if between > 0.0 else MOST_WEIGHT
    return Expectation(mean, min(max(ratio, LEAST_WEIGHT), MOST_WEIGHT))


def outcomes_of(given: Floats, groups: NDArray[np.int64], before: Expectation, is_binary: bool) -> Outcomes:
    """The outcomes of episodes; groups  # [E], −1 without one"""
    if is_binary or (groups >= 0).any():
        return Outcomes(is_binary, given, before.of(given, groups))
    return Outcomes(is_binary, given, np.zeros_like(given))


def credit(rewards: Floats, outcome: float, base_rate: float | None, exact_sum: bool) -> Floats:
    """The rewards of an episode's steps as users see them.  # [L]

    Of a binary outcome (`base_rate` is its mean) that is how much each step changes the predicted probability: they sum
    to the last prediction less the base rate. With an exact sum an even share of what is missing is added.
    """
    if base_rate is not None:
        start = log_odds(np.array([base_rate]))
        rewards = np.diff(sigmoid(np.concatenate([start, start + np.cumsum(rewards)])))
    if exact_sum:
        rewards = rewards + (outcome - rewards.sum()) / len(rewards)
    return rewards


def log_odds(probability: Floats) -> Floats:
    """log(p / (1 − p))."""
    return np.log(probability) - np.log1p(-probability)


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(−z)), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -z)))

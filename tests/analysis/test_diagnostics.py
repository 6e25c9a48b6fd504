"""Numbers of an evaluation, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diaster.analysis.diagnostics import diagnose, has_step_rewards, pearson, return_statistics
from diaster.types import Episode, EvaluationEpisode, Spans


def episode(true_reward, episode_return: float | None = None, hidden: bool = False) -> EvaluationEpisode:
    """An episode with these rewards; `hidden` where the environment does not tell them."""
    reward = np.array(true_reward, np.float32)
    total = float(reward.sum()) if episode_return is None else episode_return
    inner = Episode(np.zeros((len(reward) + 1, 1), np.float32), np.zeros((len(reward), 1), np.float32), total, True)
    return EvaluationEpisode(inner, None if hidden else reward)


def rewards(*of_episodes):
    return [np.array(values, np.float64) for values in of_episodes]


THREE = [episode([1.0, 2.0]), episode([0.0, 0.0, 3.0, 3.0]), episode([12.0])]  # returns 3, 6, 12; lengths 2, 4, 1


def test_return_statistics_are_mean_deviation_least_largest_and_mean_length():
    statistics = return_statistics(THREE)
    assert statistics.return_mean == pytest.approx(7.0)
    assert statistics.return_std == pytest.approx(math.sqrt((16 + 1 + 25) / 3))
    assert statistics.return_min == 3.0 and statistics.return_max == 12.0
    assert statistics.length_mean == pytest.approx(7 / 3)
    assert all(type(value) is float for value in statistics)


def test_one_episode_has_no_deviation():
    statistics = return_statistics(THREE[:1])
    assert statistics == (3.0, 0.0, 3.0, 3.0, 2.0)


def test_perfect_rewards_have_fit_one_correlation_one_and_no_gap():
    fit = diagnose(THREE, [item.true_reward.astype(np.float64) for item in THREE])
    assert fit.fit_r2 == pytest.approx(1.0)
    assert fit.reward_correlation == pytest.approx(1.0)
    assert fit.return_gap == pytest.approx(0.0, abs=1e-12)


def test_fit_and_gap_by_hand():
    # Sums 4, 6 and 9 for returns 3, 6 and 12: errors 1, 0 and −3, variance of the returns 14.
    fit = diagnose(THREE, rewards([2.0, 2.0], [6.0, 0.0, 0.0, 0.0], [9.0]))
    assert fit.fit_r2 == pytest.approx(1.0 - (10 / 3) / 14)
    assert fit.return_gap == pytest.approx((4 / 3) / math.sqrt(14))


def test_rewards_that_predict_the_mean_return_have_fit_zero():
    fit = diagnose(THREE, rewards([3.5, 3.5], [7.0, 0.0, 0.0, 0.0], [7.0]))
    assert fit.fit_r2 == pytest.approx(0.0)


def test_the_correlation_is_over_all_steps_of_all_episodes_and_not_a_mean_of_episodes():
    items = [episode([0.0, 1.0]), episode([2.0, 3.0])]
    found = rewards([1.0, 0.0], [3.0, 2.0])
    # Within each episode the correlation is −1. Over all: Σ xy = 3, Σ x² = Σ y² = 5 about the mean 1.5.
    assert diagnose(items, found).reward_correlation == pytest.approx(3 / 5)


def test_within_episodes_means_are_taken_off_both_sides():
    items = [episode([0.0, 1.0]), episode([2.0, 3.0])]
    opposite = diagnose(items, rewards([1.0, 0.0], [3.0, 2.0]))
    assert opposite.within_correlation == pytest.approx(-1.0) and opposite.reward_slope == pytest.approx(-1.0)
    # Deviations of r̂ −1, 1 and −2, 2; of the truth ±0.5: Σ xy = 3, Σ x² = 10, Σ y² = 1.
    steep = diagnose(items, rewards([10.0, 12.0], [-4.0, 0.0]))
    assert steep.within_correlation == pytest.approx(3 / math.sqrt(10))
    assert steep.reward_slope == pytest.approx(3.0)
    faint = diagnose(items, rewards([0.4, 0.6], [2.4, 2.6]))
    assert faint.within_correlation == pytest.approx(1.0) and faint.reward_slope == pytest.approx(0.2)


def test_a_reward_that_is_the_same_all_through_an_episode_shows_nothing_within():
    fit = diagnose([episode([0.0, 1.0]), episode([2.0, 3.0])], rewards([0.5, 0.5], [2.5, 2.5]))
    assert fit.reward_correlation > 0.8
    assert math.isnan(fit.within_correlation) and fit.reward_slope == 0.0


def test_where_the_true_reward_is_constant_within_episodes_there_is_no_slope():
    fit = diagnose([episode([1.0, 1.0]), episode([2.0, 2.0])], rewards([1.0, 0.0], [3.0, 2.0]))
    assert math.isnan(fit.within_correlation) and math.isnan(fit.reward_slope)


def test_a_shifted_and_stretched_reward_correlates_perfectly_but_fits_badly():
    fit = diagnose(THREE, [10.0 * item.true_reward.astype(np.float64) - 5.0 for item in THREE])
    assert fit.reward_correlation == pytest.approx(1.0)
    assert fit.fit_r2 < 0.0 and fit.return_gap > 1.0


def test_the_opposite_reward_has_correlation_minus_one():
    fit = diagnose(THREE, [-item.true_reward.astype(np.float64) for item in THREE])
    assert fit.reward_correlation == pytest.approx(-1.0)


@pytest.mark.parametrize("constant", [5.0, 0.0, 1e6 / 3])
def test_constant_returns_leave_fit_and_gap_undefined_but_not_the_correlation(constant):
    items = [episode([1.0, 2.0], constant), episode([3.0, 1.0, 2.0], constant), episode([0.0], constant)]
    fit = diagnose(items, rewards([1.0, 2.0], [3.0, 1.0, 2.0], [0.0]))
    assert math.isnan(fit.fit_r2) and math.isnan(fit.return_gap)
    assert fit.reward_correlation == pytest.approx(1.0)


@pytest.mark.parametrize(("spread", "is_told"), [(0.0, False), (0.4, False), (9.9, False), (10.1, True), (300.0, True)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_where_returns_vary_by_less_than_a_hundredth_of_their_size_nothing_is_said_of_the_fit(spread, is_told, sign):
    # Returns of 1000 ± spread; Σ r̂ is 700, so that R² would be far below −1 in each case but the last.
    root = math.sqrt(1000.0**2 - spread**2)
    items = [episode([0.0, 1.0, 2.0], sign * (root + each)) for each in (spread, -spread)]
    fit = diagnose(items, rewards([0.0, 0.0, 700.0], [0.0, 0.0, 700.0]))
    assert (math.isfinite(fit.fit_r2), math.isfinite(fit.return_gap)) == (is_told, is_told)
    assert math.isfinite(fit.reward_correlation)


def test_returns_around_zero_vary_however_small_they_are():
    items = [episode([0.0, 1.0], 1e-5), episode([1.0, 0.0], -1e-5)]
    assert diagnose(items, rewards([0.0, 1e-5], [-1e-5, 0.0])).fit_r2 == pytest.approx(1.0)


@pytest.mark.parametrize("true", [-0.1, 1.0, 1 / 3, 0.0])
def test_a_constant_true_reward_has_no_correlation_and_no_slope_whatever_rounding_leaves_of_its_means(true):
    items = [episode([true] * length) for length in (7, 31, 1000)]
    random = np.random.default_rng(0)
    fit = diagnose(items, [random.normal(size=item.episode.length) for item in items])
    assert all(map(math.isnan, (fit.reward_correlation, fit.within_correlation, fit.reward_slope)))
    assert math.isfinite(fit.fit_r2) == (true != 0.0)


def test_a_true_reward_that_is_constant_but_for_nothing_at_the_end_of_episodes_has_no_correlation():
    items = [episode([1.0, 1.0, 0.0]), episode([1.0, 0.0]), episode([0.0])]
    fit = diagnose(items, rewards([0.9, 0.8, 1.3], [1.0, 1.2], [0.1]))
    assert all(map(math.isnan, (fit.reward_correlation, fit.within_correlation, fit.reward_slope)))
    assert math.isfinite(fit.fit_r2) and math.isfinite(fit.return_gap)


@pytest.mark.parametrize("last", [[1.0, 1.0, 100.0], [1.0, 0.5, 0.0]])
def test_a_true_reward_that_tells_one_step_from_others_has_a_correlation(last):
    items = [episode([1.0, 1.0, 0.0]), episode(last)]
    assert math.isfinite(diagnose(items, rewards([0.9, 0.8, 1.3], [1.0, 1.2, 0.2])).reward_correlation)


def test_where_a_time_limit_ends_episodes_a_last_step_without_reward_tells_as_any_other():
    item = episode([1.0, 1.0, 0.0])
    item = item._replace(episode=item.episode._replace(terminated=False))
    assert math.isfinite(diagnose([item], rewards([0.9, 0.8, 1.3])).reward_correlation)


def test_a_learnt_reward_that_is_constant_within_episodes_has_no_correlation_there_whatever_rounding_leaves():
    random = np.random.default_rng(0)
    items = [episode(random.normal(size=length)) for length in (7, 31, 1000)]
    fit = diagnose(items, rewards([0.1] * 7, [0.3] * 31, [-0.7] * 1000))
    assert math.isfinite(fit.reward_correlation) and math.isnan(fit.within_correlation)
    assert fit.reward_slope == 0.0


def test_the_correlation_is_undefined_where_the_true_reward_is_unknown():
    items = [episode(item.true_reward, hidden=True) for item in THREE]
    fit = diagnose(items, [item.true_reward.astype(np.float64) for item in THREE])
    assert math.isnan(fit.reward_correlation)
    assert fit.fit_r2 == pytest.approx(1.0) and fit.return_gap == pytest.approx(0.0, abs=1e-12)


def test_episodes_with_unknown_rewards_do_not_enter_the_correlation():
    items = [episode([0.0, 1.0]), episode([2.0, 3.0], hidden=True)]
    assert diagnose(items, rewards([0.0, 1.0], [3.0, 2.0])).reward_correlation == pytest.approx(1.0)


def test_the_correlation_is_undefined_where_one_side_is_constant():
    assert math.isnan(diagnose(THREE, rewards([1.0] * 2, [1.0] * 4, [1.0])).reward_correlation)
    assert math.isnan(pearson(np.array([1.0, 2.0]), np.array([4.0, 4.0])))
    assert math.isnan(pearson(np.array([1.0]), np.array([2.0])))


def test_pearson_is_numpys_correlation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    y = x + rng.normal(size=100)
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


def test_a_constant_side_has_no_correlation_also_where_its_mean_is_rounded():
    assert math.isnan(pearson(np.arange(1000.0), np.full(1000, 0.1, np.float32)))


def test_an_environment_that_pays_at_the_end_of_every_episode_has_no_step_rewards():
    assert not has_step_rewards([episode([0.0, 0.0, 5.0]), episode([0.0, 2.0]), episode([0.0, 0.0])])
    assert not has_step_rewards([episode([0.0, 5.0]), episode([3.0])]), "an episode of one step tells nothing"


def test_sparse_step_rewards_are_known_also_of_an_episode_that_was_paid_at_its_end_by_chance():
    by_chance, other = episode([0.0, 0.0, 5.0]), episode([1.0, 0.0, 0.0])
    assert has_step_rewards([by_chance, other])
    r_hat = rewards([0.0, 0.0, 5.0], [1.0, 0.0, 0.0])
    is_known = has_step_rewards([by_chance, other])
    assert diagnose([by_chance], r_hat[:1], is_known).reward_correlation == pytest.approx(1.0)


def test_rewards_that_are_all_zero_or_single_say_nothing_against_step_rewards():
    assert has_step_rewards([episode([0.0, 0.0])])
    assert has_step_rewards([episode([7.0])])
    assert has_step_rewards([])


def test_there_is_no_correlation_with_rewards_that_an_environment_does_not_have():
    assert math.isnan(
        diagnose(THREE, rewards([1.0, 2.0], [0.0, 0.0, 3.0, 3.0], [12.0]), is_known=False).reward_correlation
    )


# Spans and known rewards


def in_spans(item: EvaluationEpisode, ends: list[int], numbers: list[float]) -> EvaluationEpisode:
    return item._replace(episode=item.episode._replace(spans=Spans(np.array(ends), np.array(numbers))))


def test_fit_and_gap_of_spans_by_hand():
    items = [
        in_spans(episode([1.0, 2.0, 0.0]), [2, 3], [3.0, 6.0]),
        in_spans(episode([0.0, 5.0, 1.0]), [1, 2, 3], [math.nan, 12.0, math.nan]),
    ]
    # Sums 4, 6 and 9 for the numbers 3, 6 and 12, as above; what has no number counts for nothing.
    fit = diagnose(items, rewards([2.0, 2.0, 6.0], [100.0, 9.0, -50.0]))
    assert fit.fit_r2 == pytest.approx(1.0 - (10 / 3) / 14)
    assert fit.return_gap == pytest.approx((4 / 3) / math.sqrt(14))


def test_without_any_number_there_is_no_fit_but_rewards_can_be_compared():
    items = [in_spans(episode([1.0, 2.0, 5.0]), [3], [math.nan])]
    fit = diagnose(items, rewards([1.0, 2.0, 5.0]))
    assert math.isnan(fit.fit_r2) and math.isnan(fit.return_gap)
    assert fit.reward_correlation == pytest.approx(1.0)


def test_steps_for_which_a_method_has_no_reward_are_not_compared():
    items = [in_spans(episode([1.0, 7.0, 2.0, 3.0]), [1, 2, 4], [1.0, math.nan, 5.0])]
    fit = diagnose(items, rewards([1.0, math.nan, 2.0, 3.0]))
    assert fit.reward_correlation == pytest.approx(1.0) and fit.within_correlation == pytest.approx(1.0)
    assert fit.fit_r2 == pytest.approx(1.0)


def test_what_is_known_of_rewards_is_taken_off_both_sides():
    known = np.array([10.0, -3.0, 0.5], np.float32)
    item = episode([11.0, -1.0, 3.5])
    item = item._replace(episode=item.episode._replace(known_reward=known))
    other = episode([1.0, 1.0])
    fit = diagnose([item, other], rewards([1.0, 2.0, 3.0], [1.0, 1.0]))  # the hidden part
    assert fit.fit_r2 == pytest.approx(1.0) and fit.return_gap == pytest.approx(0.0, abs=1e-6)
    assert fit.reward_correlation == pytest.approx(1.0) and fit.reward_slope == pytest.approx(1.0)

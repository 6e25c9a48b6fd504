"""Estimators over tasks and seeds, worked out by hand."""

import numpy as np
import pytest

from diaster.analysis.statistics import (
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    spearman,
)


def scores(*of_tasks: list[float]) -> list[np.ndarray]:
    return [np.array(runs, float) for runs in of_tasks]


def test_the_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert interquartile_mean(scores([1.0, 2.0, 3.0, 100.0])) == 2.5
    assert interquartile_mean(scores([0.0, 9.0], [4.0, 6.0], [5.0, -7.0], [1.0, 30.0])) == pytest.approx(4.0)


def test_the_interquartile_mean_cuts_whole_runs_off_rounded_down() -> None:
    assert interquartile_mean(scores([1.0, 2.0, 6.0])) == 3.0  # a quarter of three is none
    assert interquartile_mean(scores([0.0, 1.0, 2.0, 6.0, 50.0])) == 3.0
    assert interquartile_mean(scores([7.0])) == 7.0


def test_a_profile_is_the_share_of_runs_above_each_level() -> None:
    found = performance_profile(scores([0.2, 0.5], [0.5, 1.0]), np.array([0.0, 0.2, 0.5, 0.9, 1.0]))
    assert found.tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]


def test_the_probability_of_improvement_is_the_mean_over_tasks_of_won_pairs_with_ties_half() -> None:
    # First task: 3 > 2, 3 > 1, 1 < 2, 1 = 1: (2 + 0.5) / 4. Second: always lost.
    assert probability_of_improvement(scores([3, 1], [0]), scores([2, 1], [1, 2, 3])) == pytest.approx(0.3125)
    same = scores([1, 2, 3], [5, 5])
    assert probability_of_improvement(same, same) == pytest.approx(0.5)


def test_an_interval_is_stratified_draws_stay_in_their_task() -> None:
    # All runs of a task have the same value, so that every draw is the same.
    low, high = bootstrap_interval(interquartile_mean, scores([1.0, 1.0], [3.0, 3.0]), resamples=50)
    assert (float(low), float(high)) == (2.0, 2.0)


def test_an_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    random, covered = np.random.default_rng(3), 0
    for _ in range(40):
        sample = [random.normal(size=30)]
        low, high = bootstrap_interval(lambda drawn: drawn[0].mean(axis=-1), sample, resamples=200)
        covered += bool(low <= 0.0 <= high)
    assert 33 <= covered <= 40


def test_the_same_scores_have_the_same_interval() -> None:
    found = [bootstrap_interval(interquartile_mean, scores([1.0, 2.0, 5.0], [0.0, 1.0])) for _ in range(2)]
    assert found[0] == found[1]


def test_spearman_sees_ranks_alone() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert spearman(x, -(x**3)) == pytest.approx(-1.0)
    assert spearman(x, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(1 - 6 * 4 / (4 * 15))


def test_spearman_gives_equal_values_their_mean_rank() -> None:
    x, y = np.array([1.0, 1.0, 2.0, 3.0]), np.array([5.0, 4.0, 4.0, 9.0])
    # Ranks 1.5, 1.5, 3, 4 and 3, 1.5, 1.5, 4: products of deviations −0.5 + 1 − 0.5 + 2.25, squares 4.5 each.
    assert spearman(x, y) == pytest.approx(2.25 / 4.5)
    assert np.isnan(spearman(x, np.ones(4))) and np.isnan(spearman(x[:1], y[:1]))


def test_scipy_is_not_loaded_before_it_is_needed(python) -> None:  # type: ignore[no-untyped-def]
    code = "import diaster.analysis.diagnostics, diaster.analysis.figures, sys; print('scipy' in sys.modules)"
    assert python("-c", code).stdout == "False\n"

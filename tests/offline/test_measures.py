import numpy as np
import pytest

from diaster.offline.measures import Fit, measure, warning
from diaster.offline.outcomes import Expectation, Outcomes, outcomes_of


def measured(given, sums, groups=None, is_binary: bool = False, mean: float = 0.0) -> Fit:
    given = np.asarray(given, float)
    of_groups = np.full(len(given), -1) if groups is None else np.asarray(groups)
    return measure(outcomes_of(given, of_groups, Expectation(mean, 1.0), is_binary), np.asarray(sums, float), of_groups)


def test_it_is_r2_around_the_mean_of_the_held_out_returns() -> None:
    random = np.random.default_rng(0)
    given = 50.0 + random.normal(size=200)
    fit = measured(given, given + 0.5 * random.normal(size=200))
    assert fit.r2 == pytest.approx(0.75, abs=0.06) and fit.low < fit.r2 < fit.high
    assert fit.high - fit.low == pytest.approx(0.14, abs=0.06)
    assert measured(given, given).r2 == 1.0 and measured(given, np.full(200, given.mean())).r2 == pytest.approx(0.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        given = random.normal(size=80)
        fit = measured(given, given + random.normal(size=80) * 0.5)
        hits += fit.low <= 0.75 <= fit.high
    assert hits >= 50


def test_in_groups_it_is_compared_with_what_the_group_says() -> None:
    groups = np.repeat(np.arange(10), 4)
    random = np.random.default_rng(0)
    own = random.normal(size=40)
    given = 100.0 * groups + own
    outcomes = outcomes_of(given, groups, Expectation(float(given.mean()), 1.0), False)
    nothing = measure(outcomes, np.zeros(40), groups)
    assert nothing.r2 == pytest.approx(0.0) and nothing.units == 10
    assert measure(outcomes, given - outcomes.expected, groups).r2 == pytest.approx(1.0)


def test_of_binary_outcomes_probabilities_are_compared() -> None:
    given = np.array([0.0, 1.0] * 20)
    sure = measured(given, 20.0 * (given - 0.5), is_binary=True, mean=0.5)
    wrong = measured(given, -20.0 * (given - 0.5), is_binary=True, mean=0.5)
    assert sure.r2 == pytest.approx(1.0, abs=1e-6) and wrong.r2 == pytest.approx(-3.0, abs=1e-3)


def test_equal_outcomes_have_no_r2() -> None:
    fit = measured([2.0] * 6, [2.0, 1.0] * 3)
    assert np.isnan(fit.r2) and "all of them ended alike" in (warning(fit, False) or "")


@pytest.mark.parametrize(
    ("fit", "is_binary", "words"),
    [
        (Fit(0.4, -0.1, 0.7, 50, 50), False, "not shown to explain anything"),
        (Fit(0.4, -0.1, 0.7, 50, 50), True, "not shown to explain anything"),
        (Fit(0.2, 0.1, 0.3, 50, 50), False, "explain little of held-out episodes"),
        (Fit(0.9, 0.8, 0.95, 8, 8), False, "measured on 8 held-out episodes only"),
        (Fit(0.9, 0.8, 0.95, 32, 8), False, "measured on 8 held-out groups only"),
        (Fit(0.9, 0.9, 0.9, 8, 1), False, "measured on 1 held-out group only"),
    ],
)
def test_a_poor_fit_is_warned_of(fit: Fit, is_binary: bool, words: str) -> None:
    assert words in (warning(fit, is_binary) or "")


def test_a_good_fit_is_not_warned_of() -> None:
    assert warning(Fit(0.9, 0.8, 0.95, 50, 50), False) is None
    assert warning(Fit(0.2, 0.1, 0.3, 50, 50), True) is None  # chance has its part in outcomes


def test_the_text_has_the_interval() -> None:
    assert Fit(-0.25, -0.5, 0.1, 9, 9).text() == "−0.250 (95 % interval −0.500 to 0.100)"
    assert Outcomes(False, np.ones(1), np.zeros(1)).error(np.ones(1)) == 0.0

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from diaster.offline.outcomes import Expectation, Outcomes, credit, expectation, outcomes_of, sigmoid

ALONE = np.full(4, -1)
HALF = Expectation(0.5, 1.0)


def test_of_sums_targets_are_the_returns_themselves() -> None:
    outcomes = outcomes_of(np.array([1.0, 2.0, 3.0, 6.0]), ALONE, Expectation(3.0, 1.0), is_binary=False)
    assert outcomes.targets().tolist() == [1.0, 2.0, 3.0, 6.0]
    assert outcomes.error(np.array([1.0, 2.0, 3.0, 4.0])) == 1.0


def test_in_groups_the_others_of_the_group_say_what_is_expected() -> None:
    given, groups = np.array([1.0, 0.0, 0.0, 1.0, 1.0]), np.array([4, 4, 4, -1, 2])
    expected = HALF.of(given, groups)
    assert expected.tolist() == pytest.approx([0.5 / 3, 1.5 / 3, 1.5 / 3, 0.5, 0.5])


def test_what_is_expected_of_an_episode_does_not_depend_on_how_it_ended() -> None:
    groups = np.array([0, 0, 0])
    one, other = (HALF.of(np.array([y, 1.0, 0.0]), groups)[0] for y in (0.0, 1.0))
    assert one == other


@pytest.mark.parametrize("ratio", [0.2, 1.0, 5.0])
def test_groups_are_believed_as_far_as_they_differ(ratio: float) -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(2000), 4)
    given = 7.0 + random.normal(size=2000)[groups] + ratio**0.5 * random.normal(size=8000)
    found = expectation(given, groups)
    assert found.weight == pytest.approx(ratio, rel=0.15) and found.mean == pytest.approx(given.mean())


def test_groups_that_are_alike_say_nothing() -> None:
    given, groups = np.array([1.0, 0.0] * 6), np.repeat(np.arange(6), 2)
    assert expectation(given, groups).of(given, groups) == pytest.approx(np.full(12, 0.5), abs=1e-5)


def test_a_group_in_which_all_ended_alike_leaves_room_for_another_end() -> None:
    given, groups = np.repeat([0.0, 1.0], 4), np.repeat([0, 1], 4)
    expected = expectation(given, groups).of(given, groups)
    assert (expected > 0.0).all() and (expected < 1.0).all()


def test_episodes_without_groups_are_expected_to_be_as_all_are() -> None:
    given = np.array([1.0, 2.0, 6.0, 7.0])
    assert expectation(given, ALONE).of(given, ALONE).tolist() == [4.0] * 4


def test_least_squares_on_its_targets_end_where_the_cross_entropy_is_least() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 3))
    given = (random.random(200) < sigmoid(features @ np.array([1.0, -2.0, 0.5]) - 0.4)).astype(float)
    outcomes = outcomes_of(given, np.full(200, -1), Expectation(float(given.mean()), 1.0), is_binary=True)
    weight, errors = np.zeros(3), []
    for _ in range(200):
        errors.append(outcomes.error(features @ weight))
        weight = np.linalg.lstsq(features, outcomes.targets(features @ weight), rcond=None)[0]
    best = minimize(lambda w: outcomes.error(features @ w), np.zeros(3), tol=1e-10).x
    assert np.allclose(weight, best, atol=1e-4)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(errors))


def test_before_anything_is_fitted_the_base_rate_is_predicted() -> None:
    outcomes = outcomes_of(np.array([1.0, 0.0, 0.0, 0.0]), ALONE, Expectation(0.25, 1.0), is_binary=True)
    assert outcomes.predicted(np.zeros(4)).tolist() == pytest.approx([0.25] * 4)
    assert outcomes.error(np.zeros(4)) == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))


def test_large_log_odds_neither_overflow_nor_lose_their_error() -> None:
    outcomes = Outcomes(True, np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    with np.errstate(all="raise", under="ignore"):
        assert outcomes.error(np.array([-800.0, -800.0])) == pytest.approx(400.0)
        assert outcomes.predicted(np.array([800.0, -800.0])).tolist() == [1.0, 0.0]


def test_credit_for_a_sum_is_the_reward_itself() -> None:
    rewards = np.array([1.0, 2.0, -1.0])
    assert credit(rewards, 5.0, None, exact_sum=False).tolist() == [1.0, 2.0, -1.0]


def test_an_exact_sum_spreads_what_is_missing_evenly() -> None:
    assert credit(np.array([1.0, 2.0, -1.0]), 5.0, None, exact_sum=True).tolist() == [2.0, 3.0, 0.0]


def test_credit_for_an_outcome_is_the_change_of_its_probability() -> None:
    rewards = np.array([0.0, 3.0, 0.0, -1.0])
    found = credit(rewards, 1.0, 0.3, exact_sum=False)
    start = np.log(0.3 / 0.7)
    reached = sigmoid(start + np.cumsum(rewards))
    assert found.tolist() == pytest.approx([0.0, reached[1] - 0.3, 0.0, reached[3] - reached[2]])
    assert found.sum() == pytest.approx(reached[-1] - 0.3)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_exact_credit_for_an_outcome_adds_up_to_it(outcome: float) -> None:
    found = credit(np.random.default_rng(0).normal(size=9), outcome, 0.3, exact_sum=True)
    assert found.sum() == pytest.approx(outcome, abs=1e-12)

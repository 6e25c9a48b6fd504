"""What is said of the returns of a run: whether there is anything to decompose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from small_runs import Heard

from diaster.training.tally import Tally
from diaster.types import Episode, Spans

NO_FAULTS = [(0, ""), (0, "")]


def episodes(*returns: float) -> list[Episode]:
    return [Episode(np.zeros((2, 1), np.float32), np.zeros((1, 1), np.float32), value, True) for value in returns]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def tally(heard: Heard) -> Tally:
    return Tally((3, 7), heard)


def test_one_episode_does_not_tell_whether_all_return_the_same(tally: Tally, heard: Heard) -> None:
    tally.warn_of_same_returns()
    tally.add_episodes([episodes(-200.0), []], NO_FAULTS)
    tally.warn_of_same_returns()
    assert math.isnan(tally.only_return) and heard.warnings == []


def test_where_all_returns_are_the_same_that_is_said_once(tally: Tally, heard: Heard) -> None:
    for _ in range(3):
        tally.add_episodes([episodes(-200.0), episodes(-200.0, -200.0)], NO_FAULTS)
        tally.warn_of_same_returns()
    assert tally.only_return == -200.0
    [sentence] = heard.warnings
    assert sentence.startswith("every episode so far returned the same number (-200.0): there is nothing to decompose")


@pytest.mark.parametrize("other", [-199.9, 200.0, 0.0])
def test_another_return_is_something_to_decompose_whosever_it_is(tally: Tally, heard: Heard, other: float) -> None:
    tally.add_episodes([episodes(-200.0, -200.0), episodes(-200.0, other)], NO_FAULTS)
    tally.add_episodes([episodes(-200.0), episodes(-200.0)], NO_FAULTS)
    tally.warn_of_same_returns()
    assert math.isnan(tally.only_return) and heard.warnings == []


def test_the_returns_of_evaluations_count(tally: Tally) -> None:
    tally.add_episodes([episodes(-200.0, -200.0), []], NO_FAULTS)
    tally.see_evaluation([{"return_min": -200.0, "return_max": -200.0}])
    assert tally.only_return == -200.0
    tally.see_evaluation([{"return_min": math.nan, "return_max": math.nan}])
    assert tally.only_return == -200.0
    tally.see_evaluation([{"return_min": -200.0, "return_max": -110.0}])
    assert math.isnan(tally.only_return)


@pytest.mark.parametrize(("returns", "only"), [((0.0, 0.0), 0.0), ((0.1 + 0.2, 0.3), 0.3), ((1e-9, 2e-9), math.nan)])
def test_returns_that_differ_by_rounding_are_the_same(tally: Tally, returns: tuple[float, float], only: float) -> None:
    tally.add_episodes([episodes(*returns), []], NO_FAULTS)
    assert tally.only_return == pytest.approx(only, nan_ok=True)


@pytest.mark.parametrize(
    "parts",
    [
        {"spans": Spans(np.array([1]), np.array([-200.0]))},
        {"known_reward": np.zeros(1, np.float32)},
    ],
    ids=["spans", "known rewards"],
)
def test_where_feedback_comes_in_parts_returns_that_are_the_same_say_nothing(
    tally: Tally, parts: dict[str, Any]
) -> None:
    tally.add_episodes([[episode._replace(**parts) for episode in episodes(-200.0, -200.0)], []], NO_FAULTS)
    assert math.isnan(tally.only_return)

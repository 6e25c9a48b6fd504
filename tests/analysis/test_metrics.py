"""Columns that can be drawn over steps."""

import pytest

from diaster.analysis.metrics import DRAWN, check_metric, metric_of
from diaster.errors import DiasterError


def test_a_column_without_an_entry_is_drawn_under_its_own_name_without_limits() -> None:
    assert metric_of("critic_loss").title == "critic_loss"
    assert (metric_of("critic_loss").low, metric_of("critic_loss").high) == (float("-inf"), float("inf"))
    assert (metric_of("fit_r2").low, metric_of("fit_r2").high) == (-1.0, 1.0)


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(DiasterError) as caught:
        check_metric("fit_r3", DRAWN)
    assert "Did you mean 'fit_r2'?" in str(caught.value) and "critic_loss" in str(caught.value)
    with pytest.raises(DiasterError, match="unknown metric 'seed'"):
        check_metric("seed", DRAWN)


def test_a_column_without_a_number_is_refused_with_those_that_have_some() -> None:
    check_metric("fit_r2", ["fit_r2"])
    with pytest.raises(DiasterError, match=r"'base_r2' has no numbers in these runs; .* in return_mean, fit_r2\.$"):
        check_metric("base_r2", ["fit_r2", "return_mean"])

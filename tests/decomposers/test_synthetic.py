"""Decomposition without an environment: step rewards that are known come back from totals alone."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_default_recovers_hidden_step_rewards_of_held_out_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from synthetic import recovered_correlation

    # With the minute that `make synthetic` takes the correlation is above 0.9. A smaller net, which learns in larger
    # steps, comes near after five hundred updates; before the first it knows nothing, and the base what is linear.
    small = {"hidden": 64, "learning_rate": 1e-3}
    assert abs(recovered_correlation("default", updates=0, seconds=300, base="none", **small)[0]) < 0.3
    assert recovered_correlation("default", updates=0, seconds=300, **small)[0] > 0.7
    assert recovered_correlation("default", updates=500, seconds=300, base="none", **small)[0] > 0.8
    assert recovered_correlation("default", updates=500, seconds=300, **small)[0] > 0.85

"""The best policy of each seed: which one it is, in memory, in the run directory and after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import QUICK, StoppingAt, small

from diaster.config import build_config
from diaster.errors import Stopped
from diaster.rundir.records import BEST, POLICY, read_tensors
from diaster.training.best import BestPolicies
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training


def rows(*returns: float) -> list[dict[str, float]]:
    return [{"seed": seed, "return_mean": value} for seed, value in enumerate(returns)]


def policy(number: float, n_seeds: int = 2) -> dict[str, Any]:
    return {"weight": np.full((n_seeds, 3), number, np.float32), "exploration": np.full(n_seeds, number, np.float32)}


def test_each_seed_keeps_its_own_best_and_of_equal_ones_the_earlier() -> None:
    best = BestPolicies()
    assert best.add(rows(1.0, 5.0), policy(1))
    assert best.add(rows(2.0, 5.0), policy(2))
    assert not best.add(rows(2.0, 4.0), policy(3))
    assert best.policy["weight"][:, 0].tolist() == [2.0, 1.0]
    assert best.policy["exploration"].tolist() == [2.0, 1.0]
    assert best.policy["weight"].dtype == np.float32


def test_what_a_checkpoint_holds_of_them_goes_on_as_they_would_have() -> None:
    best, again = BestPolicies(), BestPolicies()
    best.add(rows(1.0, 5.0), policy(1))
    again.restore(best.arrays())
    for one in (best, again):
        one.add(rows(0.5, 6.0), policy(2))
    assert again.arrays().keys() == best.arrays().keys()
    for name, array in best.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    assert BestPolicies().arrays() == {}


SETTINGS: dict[str, Any] = {"seeds": 3, "steps": 400, "evaluation": {"every": 40, "episodes": 2}, **QUICK}


class Watching(Silent):
    """Keeps the policies of every evaluation."""

    def __init__(self, run: Path) -> None:
        self.run, self.policies = run, []

    def evaluated(self, rows: Any) -> None:
        self.policies.append(read_tensors(self.run / POLICY))


def test_the_file_has_the_policy_of_each_seeds_best_evaluation_also_after_an_interruption(tmp_path: Path) -> None:
    config = build_config(**small(env="Toy-v0", checkpoint_every=40, **SETTINGS))
    watching = Watching(tmp_path / "run")
    run = run_training(config, tmp_path / "run", watching)
    returns = run.progress["return_mean"].reshape(-1, 3)
    numbers = returns.argmax(axis=0)
    assert len(set(numbers.tolist()) | {len(returns) - 1}) > 1  # not all of the last evaluation
    found = read_tensors(run.path / BEST)
    for name, array in found.items():
        for seed, number in enumerate(numbers):
            np.testing.assert_array_equal(array[seed], watching.policies[number][name][seed])
    with pytest.raises(Stopped):
        run_training(config, tmp_path / "cut", StoppingAt(200))
    (tmp_path / "cut" / BEST).write_bytes(b"of an evaluation that a kill has undone")
    resumed = resume_training(tmp_path / "cut", Silent())
    assert (resumed.path / BEST).read_bytes() == (run.path / BEST).read_bytes()

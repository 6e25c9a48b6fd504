"""Agents that begin anew when their rewards have become good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import QUICK, Copying, Heard, copy_of, learnt_bytes, small

from diaster.config import METHODS, build_config
from diaster.run import Run
from diaster.rundir.records import POLICY, RESTARTED, read_metadata, read_tensors
from diaster.training.progress import Silent
from diaster.training.restarts import became_good
from diaster.training.train import resume_training, run_training

EARLY, LATE = 0, 1  # seeds: the rewards of one are good from the start, of the other from the second evaluation on
NAN = math.nan


@pytest.mark.parametrize(
    ("fits", "step"),
    [
        ((0.1, 0.9, 0.95), 20),
        ((0.9, 0.1, 0.9), 30),
        ((0.1, 0.9, 0.1, 0.9), 20),
        ((0.9, 0.95), None),
        ((0.1, 0.89), None),
        ((NAN, 0.9), None),
        ((0.1, NAN, 0.9), 30),
        ((), None),
    ],
    ids=[
        "it rises",
        "it falls and rises",
        "it rises twice",
        "good from the start",
        "poor to the end",
        "nothing known before",
        "nothing known in between",
        "no evaluation yet",
    ],
)
def test_rewards_become_good_once_and_only_where_they_were_poor(fits: Sequence[float], step: int | None) -> None:
    rows = [
        {"step": 10 * number, "seed": seed, "fit_r2": value}
        for number, fit in enumerate(fits, start=1)
        for seed, value in ((4, fit), (7, 1.0))
    ]
    assert became_good(rows, 0.9) == ({} if step is None else {4: step})


@pytest.fixture(autouse=True)
def rewards_that_become_true(monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS["uniform"]._replace(factory="toy_methods:make_true_rewards_at_last")
    monkeypatch.setitem(METHODS, "uniform", method)
    # Of the name that the toy has here it is known that its rewards become no better.
    monkeypatch.setattr("diaster.training.train.check_new", lambda config: None)


def train(out: Path, reporter: Any = None, **settings: Any) -> Run:
    given = {"env": "ToyPlain-v0", "seeds": 2, "evaluation": {"every": 60, "episodes": 2}, **QUICK, **settings}
    return run_training(build_config(**small(**given)), out, reporter or Silent())


def test_an_agent_begins_anew_once_its_rewards_are_good_and_other_seeds_keep_every_byte(tmp_path: Path) -> None:
    heard = Heard()
    plain, restarted = train(tmp_path / "plain"), train(tmp_path / "restarted", heard, restart_agent_at=0.9)
    fits = plain.progress["fit_r2"].reshape(-1, 2)
    np.testing.assert_allclose(fits[:, EARLY], 1.0)
    assert fits[0, LATE] < 0.9
    np.testing.assert_allclose(fits[1:, LATE], 1.0)
    assert read_metadata(restarted.path)[RESTARTED] == {str(LATE): 120}
    assert [note for note in heard.notes if "begin anew" in note] == [
        "before step 200 agents begin anew (seeds 1): their step rewards have become good (fit_r2 of 0.9 or more)."
    ]
    policies = [read_tensors(run.path / POLICY) for run in (plain, restarted)]
    for name, array in policies[0].items():
        np.testing.assert_array_equal(array[EARLY], policies[1][name][EARLY])
    assert any(not np.array_equal(array[LATE], policies[1][name][LATE]) for name, array in policies[0].items())
    table = [(run.path / "progress.csv").read_text().splitlines() for run in (plain, restarted)]
    assert table[0][:5] == table[1][:5]  # it takes effect where the next evaluation is due
    assert RESTARTED not in read_metadata(plain.path)


def test_a_run_that_was_cut_off_before_or_after_agents_began_anew_ends_with_the_same_bytes(tmp_path: Path) -> None:
    steps = (160, 200)
    settings = {"restart_agent_at": 0.9, "checkpoint_every": 40, "keep_checkpoint": 0}
    whole = train(tmp_path / "run", Copying(tmp_path / "run", *steps), **settings)
    for step in steps:
        resumed = resume_training(copy_of(whole.path, step), Silent())
        assert learnt_bytes(resumed) == learnt_bytes(whole)
        assert read_metadata(resumed.path)[RESTARTED] == {str(LATE): 120}

"""Learning curves: which runs share one, and what is said of what it leaves out."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

from diaster.analysis.curves import Curve, TaskKey, by_task, changed_settings, curves_in, panel_notes, plainest
from diaster.analysis.notes import Note
from diaster.analysis.results import read_results
from diaster.config import build_config
from diaster.errors import DiasterError


def curves_below(path: Path) -> list[Curve]:
    return curves_in(read_results(path))


def test_runs_that_differ_in_their_seeds_alone_share_a_curve_whatever_their_folders_are_called(tmp_path: Path) -> None:
    make_run(tmp_path / "x", {0: [1.0, 3.0]}, workers=1, device="cpu")
    make_run(tmp_path / "y", {1: [3.0, 5.0], 2: [5.0, 7.0]}, workers=0)
    [curve] = curves_below(tmp_path)
    assert curve.seeds == (0, 1, 2)
    assert curve.steps.tolist() == [100, 200]
    assert curve.mean.tolist() == [3.0, 5.0]
    np.testing.assert_allclose(curve.error, [2 / np.sqrt(3)] * 2)  # deviations −2, 0, 2
    assert curve.notes == ()


@pytest.mark.parametrize(
    "change",
    [
        {"env": "Other-v0"},
        {"horizon": 999},
        {"method": "rrd"},
        {"agent": "td3"},
        {"preset": "paper"},
        {"method": {"head": "final"}},
        {"agent": {"discount": 0.9}},
        {"warmup_steps": 2},
    ],
    ids=str,
)
def test_runs_that_differ_in_anything_that_matters_are_never_averaged(change: dict, tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    make_run(tmp_path / "b", {1: [2.0]}, **change)
    assert [curve.returns.shape for curve in curves_below(tmp_path)] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cpu"},
        {"devices": 2},
        {"workers": 3},
        {"checkpoint_every": 0},
        {"env_retries": 1},
        {"isolate_envs": True},
        {"step_seconds": 5.0},
    ],
    ids=str,
)
def test_how_a_machine_runs_them_does_not_split_a_curve(change: dict, tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    make_run(tmp_path / "b", {1: [2.0]}, **change)
    [curve] = curves_below(tmp_path)
    assert curve.returns.tolist() == [[1.0, 2.0]]
    assert all(changed_settings(run.config) == {} for run in read_results(tmp_path).runs)


def test_seeds_of_unequal_length_are_cut_to_what_all_have_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    make_run(tmp_path / "b", {1: [3.0, 4.0]}, steps=300, done=False)
    [curve] = curves_below(tmp_path)
    assert curve.mean.tolist() == [2.0, 3.0]
    assert curve.notes == ("seeds of unequal length: cut at 200 steps", "unfinished (seed 1): 200 of 300 steps")


def test_seeds_that_share_no_evaluation_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, every=100, steps=1000)
    make_run(tmp_path / "b", {1: [1.0]}, every=70, steps=1000)
    with pytest.raises(DiasterError, match="share no evaluation"):
        curves_below(tmp_path)


def test_a_seed_that_was_trained_twice_counts_once_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 1.0]})
    make_run(tmp_path / "b", {0: [5.0, 5.0, 5.0]})
    [curve] = curves_below(tmp_path)
    assert curve.returns.tolist() == [[5.0]] * 3
    assert curve.notes == ("seed 0 was trained more than once; the longest run counts",)


def test_a_seed_without_an_evaluation_is_noted(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, seeds=(0, 4), done=False)
    [curve] = curves_below(tmp_path)
    assert curve.notes == ("seed 4 without an evaluation", "unfinished: 100 of 100 steps")


def test_curves_come_in_the_order_of_the_papers_tasks_and_of_the_methods(tmp_path: Path) -> None:
    for number, (env, method) in enumerate(
        [("Zoo-v0", "rrd"), ("Ant-v5", "dense"), ("Hopper-v5", "rrd"), ("Hopper-v5", "diaster")]
    ):
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, method=method)
    found = [(curve.config.env, curve.method) for curve in curves_below(tmp_path)]
    assert found == [("Hopper-v5", "diaster"), ("Hopper-v5", "rrd"), ("Ant-v5", "dense"), ("Zoo-v0", "rrd")]


def test_the_return_up_to_a_step_is_that_of_the_last_evaluation_before_it(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    [curve] = curves_below(tmp_path)
    assert [curve.final(step).tolist() for step in (100, 250, 300)] == [[1.0], [2.0], [3.0]]
    assert curve.final().tolist() == [3.0]


def test_the_plainest_of_a_series_is_the_one_nearest_to_its_preset(tmp_path: Path) -> None:
    for number, settings in enumerate([{}, {"head": "final"}, {"head": "final", "hidden": 8}]):
        make_run(tmp_path / str(number), {0: [1.0]}, method=settings)
    make_run(tmp_path / "paper", {0: [1.0]}, preset="paper")
    kept, left_out = plainest(curves_below(tmp_path))
    assert sorted(curve.config.preset for curve in kept) == ["default", "paper"]
    assert all(changed_settings(curve.config) == {} for curve in kept)
    assert sorted(len(changed_settings(curve.config)) for curve in left_out) == [1, 2]


def test_tasks_are_environments_with_their_horizon(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", horizon=100)
    titles = [task.title for task in by_task(curves_below(tmp_path))]
    assert titles == ["Hopper-v5, T = 100", "Hopper-v5"]
    assert TaskKey("Toy-v0", 10).title == "Toy-v0"


def test_a_panel_says_which_seeds_are_missing_and_what_ends_early(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 3, 1: [1.0] * 3})
    make_run(tmp_path / "b", {0: [1.0] * 2}, method="rrd")
    curves = curves_below(tmp_path)
    notes = panel_notes(curves, [curve.method for curve in curves])
    assert notes == [
        Note("rrd on Toy-v0", "seed 1 missing"),
        Note("rrd on Toy-v0", "ends at 200 steps, others there at 300"),
    ]


def test_what_a_run_of_xqc_has_resolved_is_no_changed_setting_and_what_dqn_was_given_is() -> None:
    xqc = build_config(env="Hopper-v5", agent={"name": "xqc", "annealing_updates": 95_000, "size": "small"})
    assert changed_settings(xqc) == {"agent.size": "small"}
    dqn = build_config(env="CartPole-v1", agent={"name": "dqn", "annealing_updates": 95_000})
    assert changed_settings(dqn) == {"agent.annealing_updates": 95_000}


def test_a_final_return_is_the_mean_of_the_last_ten_evaluations_or_of_the_last_quarter(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [float(n) for n in range(80)], 1: [0.0] * 80})
    [curve] = curves_in(read_results(tmp_path))
    assert curve.final().tolist() == [np.mean(range(70, 80)), 0.0]
    assert curve.final(6000).tolist() == [np.mean(range(50, 60)), 0.0]  # up to a step
    assert curve.final(1200).tolist() == [np.mean(range(9, 12)), 0.0]  # a quarter of twelve
    assert curve.final(100).tolist() == [0.0, 0.0]


def test_the_area_weighs_an_evaluation_by_the_steps_it_stands_for(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [1.0, 3.0], 1: [2.0, 2.0]})
    [curve] = curves_in(read_results(tmp_path))
    assert curve.area.tolist() == [2.0, 2.0]
    uneven = curve._replace(steps=np.array([100, 400]))
    assert uneven.area.tolist() == [2.5, 2.0]


def test_untrained_are_the_evaluations_up_to_the_end_of_the_warm_up(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [1.0, 2.0, 3.0], 1: [4.0, 5.0, 6.0]}, warmup_steps=200)
    [curve] = curves_in(read_results(tmp_path))
    assert sorted(curve.untrained) == [1.0, 2.0, 4.0, 5.0]
    make_run(tmp_path / "later" / "run", {0: [1.0, 2.0, 3.0]}, warmup_steps=99)
    [curve] = curves_in(read_results(tmp_path / "later"))
    assert len(curve.untrained) == 0

"""Learning curves: which runs share one, and what is said of what it leaves out."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import make_everything, make_run

from diaster.analysis.curves import Curve, TaskKey, by_name, by_task, curves_in
from diaster.analysis.results import read_results
from diaster.analysis.settings import changed_settings
from diaster.config import build_config


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
        {"env_kwargs": {"difficulty": "hard"}},
        {"horizon": 999},
        {"method": "rrd"},
        {"agent": "td3"},
        {"preset": "paper"},
        {"method": {"head": "final"}},
        {"agent": {"discount": 0.9}},
        {"warmup_steps": 2},
        {"steps": 10},
        {"evaluation": {"episodes": 3}},
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


def test_runs_that_have_not_come_equally_far_are_curves_of_their_own(tmp_path: Path) -> None:
    """A run of ten steps would cut the others down to ten."""
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    make_run(tmp_path / "b", {1: [3.0]}, steps=300, done=False)
    whole, begun = curves_below(tmp_path)
    assert (whole.name, whole.mean.tolist(), whole.is_done) == ("diaster", [1.0, 2.0, 3.0], True)
    assert (begun.name, begun.mean.tolist()) == ("diaster, unfinished at 100 steps", [3.0])
    assert begun.notes == ("unfinished: 100 of 300 steps",)


def test_a_short_run_does_not_stand_for_a_long_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0], 1: [1.0]}, every=10)
    make_run(tmp_path / "b", {2: [5.0] * 30}, every=100)
    assert [(curve.name, curve.seeds, int(curve.steps[-1])) for curve in curves_below(tmp_path)] == [
        ("diaster, 3 k steps", (2,), 3000),
        ("diaster, 10 steps", (0, 1), 10),
    ]


def test_seeds_of_one_run_are_cut_to_what_all_have_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0], 1: [3.0, 4.0]}, steps=300, done=False)
    [curve] = curves_below(tmp_path)
    assert curve.mean.tolist() == [2.0, 3.0]
    assert curve.notes == ("seeds of unequal length: cut at 200 steps", "unfinished: 200 of 300 steps")


def test_runs_that_were_evaluated_at_other_steps_are_curves_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, every=100, steps=1000)
    make_run(tmp_path / "b", {1: [1.0]}, every=70, steps=1000)
    assert [curve.folders for curve in curves_below(tmp_path)] == [("a",), ("b",)]


def test_a_seed_that_was_trained_twice_with_the_same_numbers_counts_once_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 5.0]})
    make_run(tmp_path / "b", {0: [1.0, 5.0], 1: [3.0, 3.0]})
    [curve] = curves_below(tmp_path)
    assert curve.returns.tolist() == [[1.0, 3.0], [5.0, 3.0]]
    assert curve.folders == ("a", "b")
    assert curve.notes == ("seed 0 was trained more than once, with the same numbers, and counts once",)


def test_a_seed_that_was_trained_twice_with_other_numbers_is_on_two_curves_named_by_their_folders(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "old", {0: [1.0, 1.0]})
    make_run(tmp_path / "new" / "x", {0: [1.0, 5.0], 1: [1.0, 5.0]})
    found = {curve.name: curve.returns.tolist() for curve in curves_below(tmp_path)}
    assert found == {"diaster, in old": [[1.0], [1.0]], "diaster, in new/x": [[1.0, 1.0], [5.0, 5.0]]}


def test_every_run_is_part_of_a_curve_and_no_two_curves_of_a_task_have_one_name(tmp_path: Path) -> None:
    make_everything(tmp_path, seeds=2, n=3)
    make_run(tmp_path / "again", {0: [7.0]}, env="Hopper-v5")
    make_run(tmp_path / "begun", {0: [7.0]}, env="Hopper-v5", steps=500_000, done=False)
    make_run(tmp_path / "elsewhere", {0: [7.0]}, env="Hopper-v5", horizon=50)
    results = read_results(tmp_path)
    curves = curves_in(results)
    assert sorted(path for curve in curves for path in curve.paths) == sorted(run.path for run in results.runs)
    for of_task in by_task(curves).values():
        assert len({curve.name for curve in of_task}) == len(of_task)


def test_a_label_makes_a_curve_of_its_own_and_names_it(tmp_path: Path) -> None:
    for name in ("old/0", "old/1", "new/2"):
        make_run(tmp_path / name, {int(name[-1]): [1.0]})
    found = curves_in(read_results(tmp_path, labels=["old=before"]))
    assert {curve.name: curve.seeds for curve in found} == {"before": (0, 1), "diaster": (2,)}


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


def test_curves_of_a_method_are_ordered_from_the_plainest_on_with_numbers_as_numbers(tmp_path: Path) -> None:
    for number, settings in enumerate([{"hidden": 8, "head": "final"}, {"hidden": 16}, {}, {"hidden": 8}]):
        make_run(tmp_path / str(number), {0: [1.0]}, method=settings)
    make_run(tmp_path / "paper", {0: [1.0]}, preset="paper")
    make_run(tmp_path / "td3", {0: [1.0]}, agent="td3")
    make_run(tmp_path / "rrd", {0: [1.0]}, method="rrd")
    assert [(curve.name, curve.variant) for curve in curves_below(tmp_path)] == [
        ("diaster", 0),
        ("diaster, hidden = 8", 1),
        ("diaster, hidden = 16", 2),
        ("diaster, hidden = 8, head = final", 3),
        ("diaster (td3)", 4),
        ("diaster (paper, sac)", 5),
        ("rrd", 0),
    ]


def test_a_kind_of_curve_has_one_name_and_one_place_on_all_tasks(tmp_path: Path) -> None:
    for env in ("Hopper-v5", "Ant-v5"):
        make_run(tmp_path / env, {0: [1.0]}, env=env, steps=1000 if env == "Ant-v5" else 2000)
        make_run(tmp_path / f"{env}-8", {0: [1.0]}, env=env, method={"hidden": 8})
    kinds = by_name(curves_below(tmp_path))
    assert {name: [curve.variant for curve in of] for name, of in kinds.items()} == {
        "diaster": [0, 0],
        "diaster, hidden = 8": [1, 1],
    }


def test_tasks_are_environments_with_their_horizon(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", horizon=100)
    titles = [task.title for task in by_task(curves_below(tmp_path))]
    assert titles == ["Hopper-v5, T = 100", "Hopper-v5"]
    assert TaskKey("Toy-v0", 10).title == "Toy-v0"


def test_two_horizons_of_an_environment_that_has_no_usual_one_are_told_apart(tmp_path: Path) -> None:
    for number, (env, horizon) in enumerate([("Toy-v0", 10), ("Toy-v0", 20), ("Other-v0", 10)]):
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, horizon=horizon)
    titles = [task.title for task in by_task(curves_below(tmp_path))]
    assert titles == ["Other-v0", "Toy-v0, T = 10", "Toy-v0, T = 20"]


def test_an_environment_with_other_arguments_is_another_task_of_another_name(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    make_run(tmp_path / "b", {0: [1.0]}, env_kwargs={"difficulty": "hard", "rows": [1, 2]})
    titles = {task.title for task in by_task(curves_below(tmp_path))}
    assert titles == {"Toy-v0", "Toy-v0 (difficulty=hard, rows=[1, 2])"}
    config = build_config(env="Toy-v0", env_kwargs={"difficulty": "hard"}, method={"hidden": 8})
    assert changed_settings(config) == {"method.hidden": 8}


def test_metrics_are_averaged_over_the_seeds_that_have_a_number(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 3}, columns={"fit_r2": [float("nan"), 0.2, 0.4]})
    make_run(tmp_path / "b", {1: [1.0] * 3}, columns={"fit_r2": [float("nan"), float("nan"), 0.8]})
    [curve] = curves_below(tmp_path)
    np.testing.assert_allclose(curve.mean_of("fit_r2"), [np.nan, 0.2, 0.6])
    np.testing.assert_allclose(curve.error_of("fit_r2"), [np.nan, 0.0, 0.2])
    assert curve.has("fit_r2") and not curve.has("entropy")


def test_an_infinite_metric_is_a_large_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0], 1: [1.0]}, columns={"fit_r2": [float("-inf")]})
    [curve] = curves_below(tmp_path)
    assert curve.mean_of("fit_r2").tolist() == [-1e100] and curve.error_of("fit_r2").tolist() == [0.0]


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

"""A folder of runs: what is found, what belongs together, and what is said of the rest."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

from diaster.analysis.curves import (
    Note,
    Task,
    by_task,
    changed_settings,
    group_runs,
    panel_notes,
    plainest,
    read_results,
    run_directories,
    sentences,
    steps_text,
)
from diaster.errors import DiasterError
from diaster.rundir.records import CONFIG, PROGRESS


def groups_in(path: Path) -> list:
    return group_runs(read_results(path))


def refusal(path: Path) -> str:
    with pytest.raises(DiasterError) as caught:
        group_runs(read_results(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Finding runs


def test_runs_are_found_at_any_small_depth_by_their_configuration(tmp_path: Path) -> None:
    for name in ("a", "b/c", "d/e/f/g"):
        make_run(tmp_path / name, {0: [1.0]})
    make_run(tmp_path / "1/2/3/4/5", {0: [1.0]})  # too deep
    (tmp_path / "empty").mkdir()
    assert run_directories(tmp_path) == [tmp_path / name for name in ("a", "b/c", "d/e/f/g")]


def test_a_run_directory_is_a_folder_of_one_run_and_nothing_inside_it_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [1.0]})
    make_run(tmp_path / "run" / "copy", {0: [9.0]})
    assert run_directories(tmp_path / "run") == [tmp_path / "run"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "outside" / "run", {0: [1.0]})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "link").symlink_to(tmp_path / "outside")
    assert "holds no runs" in refusal(tmp_path / "results")


@pytest.mark.parametrize("name", ["none", "file"])
def test_what_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is no folder" in refusal(tmp_path / name)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert f"'{tmp_path}' holds no runs" in refusal(tmp_path)


def test_runs_without_an_evaluation_are_noted_beside_others_and_refused_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "young", {}, done=False)
    make_run(tmp_path / "younger", {}, done=False)
    (tmp_path / "younger" / PROGRESS).unlink()
    assert "has an evaluation yet" in refusal(tmp_path)
    make_run(tmp_path / "run", {0: [1.0]})
    notes = read_results(tmp_path).notes
    assert notes == (Note("young", "has no evaluation yet"), Note("younger", "has no evaluation yet"))


def test_a_damaged_run_is_named_and_not_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "good", {0: [1.0]})
    make_run(tmp_path / "bad", {0: [1.0]})
    (tmp_path / "bad" / PROGRESS).write_text("garbage", encoding="utf-8")
    assert f"'{tmp_path / 'bad' / PROGRESS}' is damaged" in refusal(tmp_path)


def test_a_run_that_vanishes_meanwhile_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    gone = make_run(tmp_path / "b", {0: [1.0]})
    found = run_directories(tmp_path)
    (gone / CONFIG).unlink()
    monkeypatch.setattr("diaster.analysis.curves.run_directories", lambda _: found)
    with pytest.raises(DiasterError, match="holds no run"):
        read_results(tmp_path)


# Groups


def test_runs_that_differ_in_their_seeds_alone_are_one_group_whatever_their_folders_are_called(tmp_path: Path) -> None:
    make_run(tmp_path / "x", {0: [1.0, 3.0]}, workers=1, device="cpu")
    make_run(tmp_path / "y", {1: [3.0, 5.0], 2: [5.0, 7.0]}, workers=0)
    [group] = groups_in(tmp_path)
    assert group.seeds == (0, 1, 2)
    assert group.steps.tolist() == [100, 200]
    assert group.mean.tolist() == [3.0, 5.0]
    np.testing.assert_allclose(group.error, [2 / np.sqrt(3)] * 2)  # deviations −2, 0, 2
    assert group.notes == ()


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
    assert [group.returns.shape for group in groups_in(tmp_path)] == [(1, 1), (1, 1)]


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
    [group] = groups_in(tmp_path)
    assert group.returns.tolist() == [[1.0, 2.0]]
    assert all(changed_settings(run.config) == {} for run in read_results(tmp_path).runs)


def test_seeds_of_unequal_length_are_cut_to_what_all_have_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    make_run(tmp_path / "b", {1: [3.0, 4.0]}, steps=300, done=False)
    [group] = groups_in(tmp_path)
    assert group.mean.tolist() == [2.0, 3.0]
    assert group.notes == ("seeds of unequal length: cut at 200 steps", "unfinished (seed 1): 200 of 300 steps")


def test_seeds_that_share_no_evaluation_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, every=100, steps=1000)
    make_run(tmp_path / "b", {1: [1.0]}, every=70, steps=1000)
    assert "share no evaluation" in refusal(tmp_path)


def test_a_seed_that_was_trained_twice_counts_once_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 1.0]})
    make_run(tmp_path / "b", {0: [5.0, 5.0, 5.0]})
    [group] = groups_in(tmp_path)
    assert group.returns.tolist() == [[5.0]] * 3
    assert group.notes == ("seed 0 was trained more than once; the longest run counts",)


def test_a_seed_without_an_evaluation_is_noted(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, seeds=(0, 4), done=False)
    [group] = groups_in(tmp_path)
    assert group.notes == ("seed 4 without an evaluation", "unfinished: 100 of 100 steps")


def test_groups_come_in_the_order_of_the_papers_tasks_and_of_the_methods(tmp_path: Path) -> None:
    for number, (env, method) in enumerate(
        [("Zoo-v0", "rrd"), ("Ant-v5", "dense"), ("Hopper-v5", "rrd"), ("Hopper-v5", "diaster")]
    ):
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, method=method)
    found = [(group.config.env, group.config.method.name) for group in groups_in(tmp_path)]
    assert found == [("Hopper-v5", "diaster"), ("Hopper-v5", "rrd"), ("Ant-v5", "dense"), ("Zoo-v0", "rrd")]


def test_the_return_up_to_a_step_is_that_of_the_last_evaluation_before_it(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    [group] = groups_in(tmp_path)
    assert [group.until(step).tolist() for step in (100, 250, 300)] == [[1.0], [2.0], [3.0]]


def test_the_plainest_of_a_series_is_the_one_nearest_to_its_preset(tmp_path: Path) -> None:
    for number, settings in enumerate([{}, {"head": "final"}, {"head": "final", "hidden": 8}]):
        make_run(tmp_path / str(number), {0: [1.0]}, method=settings)
    make_run(tmp_path / "paper", {0: [1.0]}, preset="paper")
    kept, left_out = plainest(groups_in(tmp_path))
    assert sorted(group.config.preset for group in kept) == ["default", "paper"]
    assert all(changed_settings(group.config) == {} for group in kept)
    assert sorted(len(changed_settings(group.config)) for group in left_out) == [1, 2]


def test_tasks_are_environments_with_their_horizon(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", horizon=100)
    titles = [task.title for task in by_task(groups_in(tmp_path))]
    assert titles == ["Hopper-v5, T = 100", "Hopper-v5"]
    assert Task("Toy-v0", 10).title == "Toy-v0"


# Notes


def test_a_panel_says_which_seeds_are_missing_and_what_ends_early(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 3, 1: [1.0] * 3})
    make_run(tmp_path / "b", {0: [1.0] * 2}, method="rrd")
    groups = groups_in(tmp_path)
    notes = panel_notes(groups, {id(group): group.config.method.name for group in groups})
    assert notes == [
        Note("rrd on Toy-v0", "seed 1 missing"),
        Note("rrd on Toy-v0", "ends at 200 steps, others there at 300"),
    ]


def test_notes_that_say_the_same_are_one_line() -> None:
    notes = [Note("a", "late"), Note("b", "late"), Note("a", "late"), Note("c", "gone")]
    assert sentences(notes) == ["a, b: late.", "c: gone."]
    assert sentences([Note(name, "late") for name in "abcdef"]) == ["a, b, c, d and 2 more: late."]


@pytest.mark.parametrize(("steps", "text"), [(999, "999"), (20_000, "20 k"), (1_500_000, "1.5 M")])
def test_steps_are_written_short(steps: int, text: str) -> None:
    assert steps_text(steps) == text

"""All tasks in one figure: what is compared, at which step, and what is left out."""

from pathlib import Path

import pytest
from made_runs import make_run

from diaster.analysis.curves import TaskKey
from diaster.analysis.figures import draw
from diaster.analysis.figures.summary import largest_block, summarise
from diaster.analysis.results import read_results
from diaster.errors import DiasterError


def texts(path: Path) -> list[str]:
    return [f"{note.subject}: {note.text}" for note in summarise(read_results(path)).notes]


def test_scores_are_final_returns_in_units_of_the_mean_of_dense(tmp_path: Path) -> None:
    make_run(tmp_path / "dense", {0: [1.0, 8.0], 1: [1.0, 12.0]}, method="dense")
    make_run(tmp_path / "diaster", {0: [1.0, 5.0], 1: [1.0, 20.0]})
    found = summarise(read_results(tmp_path))
    scores = {name: [runs.tolist() for runs in of_tasks] for name, of_tasks in found.scores.items()}
    assert scores == {"diaster": [[0.5, 2.0]], "dense (reference)": [[0.8, 1.2]]}
    assert texts(tmp_path) == ["Toy-v0: no evaluation before learning began; fractions are of the whole return"]


def test_what_an_untrained_policy_has_is_taken_off_before_fractions_are_taken(tmp_path: Path) -> None:
    # Untrained policies have 900 in the mean; dense gains 200 in the mean.
    make_run(tmp_path / "dense", {0: [900.0, 1000.0], 1: [920.0, 1200.0]}, method="dense", warmup_steps=100)
    make_run(tmp_path / "diaster", {0: [880.0, 1000.0], 1: [900.0, 1100.0]}, warmup_steps=100)
    found = summarise(read_results(tmp_path))
    assert [scores[0].tolist() for scores in found.scores.values()] == [[0.5, 1.0], [0.5, 1.5]]
    assert found.notes == []


def test_a_task_where_dense_has_not_come_beyond_the_untrained_policy_is_left_out(tmp_path: Path) -> None:
    for env, top in (("A-v0", 1000.0), ("B-v0", 700.0)):
        for method in ("dense", "diaster"):
            made = {0: [900.0, top]}
            make_run(tmp_path / f"{env}-{method}", made, env=env, method=method, warmup_steps=100)
    assert [task.env for task in summarise(read_results(tmp_path)).tasks] == ["A-v0"]
    assert "B-v0: left out, the return of dense is not above that of an untrained policy" in texts(tmp_path)


def test_runs_of_unequal_length_are_compared_at_the_last_step_that_all_have(tmp_path: Path) -> None:
    make_run(tmp_path / "dense", {0: [2.0, 4.0, 100.0]}, method="dense")
    make_run(tmp_path / "diaster", {0: [1.0, 2.0]})
    found = summarise(read_results(tmp_path))
    assert [scores[0].tolist() for scores in found.scores.values()] == [[0.5], [1.0]]
    assert "Toy-v0: compared at 200 steps, the last that all have" in texts(tmp_path)


def test_a_run_that_was_hardly_begun_does_not_have_all_others_measured_at_its_last_step(tmp_path: Path) -> None:
    make_run(tmp_path / "dense", {0: [2.0, 4.0, 8.0]}, method="dense")
    make_run(tmp_path / "diaster", {0: [1.0, 2.0, 4.0]})
    make_run(tmp_path / "short", {0: [1.0]})
    found = summarise(read_results(tmp_path))
    assert {name: scores[0].tolist() for name, scores in found.scores.items()} == {
        "diaster, 300 steps": [0.5],
        "dense (reference)": [1.0],
    }
    text = "Toy-v0: diaster, 100 steps left out, it ends at 100 of the 300 steps of dense (reference)"
    assert text in texts(tmp_path)


def test_every_curve_that_can_be_compared_has_a_row(tmp_path: Path) -> None:
    make_run(tmp_path / "dense", {0: [4.0]}, method="dense")
    make_run(tmp_path / "plain", {0: [1.0]})
    make_run(tmp_path / "other", {0: [2.0]}, method={"hidden": 8})
    found = summarise(read_results(tmp_path))
    assert list(found.scores) == ["diaster", "diaster, hidden = 8", "dense (reference)"]


def test_fractions_of_a_poor_reference_do_not_take_the_axis_with_them(tmp_path: Path) -> None:
    make_run(tmp_path / "dense", {0: [1.0]}, method="dense")
    make_run(tmp_path / "diaster", {0: [500.0]})
    figure, lines = draw("summary", read_results(tmp_path))
    assert figure.axes[0].get_xlim()[1] < 5 and figure.axes[2].get_xlim()[1] < 5
    assert "diaster: an interquartile mean of 500, beyond the axis." in lines


def test_a_run_without_an_evaluation_up_to_the_step_of_comparison_is_left_out(tmp_path: Path) -> None:
    for method, every in (("dense", 100), ("diaster", 100), ("rrd", 500)):
        make_run(tmp_path / method, {0: [2.0, 4.0]}, every, method=method)
    found = summarise(read_results(tmp_path))
    assert list(found.scores) == ["diaster", "dense (reference)"]
    assert "Toy-v0: rrd left out, it has no evaluation so early" in texts(tmp_path)


def test_tasks_without_dense_or_with_nothing_to_be_a_fraction_of_are_left_out(tmp_path: Path) -> None:
    for env, top in (("A-v0", 4.0), ("B-v0", -4.0)):
        make_run(tmp_path / f"{env}-dense", {0: [top]}, env=env, method="dense")
        make_run(tmp_path / env, {0: [1.0]}, env=env)
    make_run(tmp_path / "C", {0: [1.0]}, env="C-v0")
    found = summarise(read_results(tmp_path))
    assert [task.env for task in found.tasks] == ["A-v0"]
    assert any(text.startswith("B-v0: left out, the return of dense is not above 0") for text in texts(tmp_path))
    assert "C-v0: left out, no runs of dense to measure with" in texts(tmp_path)


def test_without_any_dense_there_is_no_summary(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    with pytest.raises(DiasterError, match="--method dense"):
        summarise(read_results(tmp_path))


def test_methods_are_compared_on_the_same_tasks_alone_and_what_that_costs_is_said(tmp_path: Path) -> None:
    for env in ("A-v0", "B-v0", "C-v0"):
        for method in ("dense", "diaster", "rrd"):
            make_run(tmp_path / f"{env}-{method}", {0: [1.0]}, env=env, method=method)
    make_run(tmp_path / "ircr", {0: [1.0]}, env="A-v0", method="ircr")
    found = summarise(read_results(tmp_path))
    assert list(found.scores) == ["diaster", "rrd", "dense (reference)"]
    assert len(found.tasks) == 3
    assert "ircr: left out, it lacks tasks that others have" in texts(tmp_path)


def test_the_largest_block_has_as_many_pairs_as_can_be_had() -> None:
    a, b, c = (TaskKey(name, 10) for name in "abc")
    x, y, z = "xyz"
    assert largest_block({x: {a, b, c}, y: {a, b}, z: {a, b}}, [a, b, c]) == ([x, y, z], [a, b])
    assert largest_block({x: {a, b, c}, y: {a}, z: {b}}, [a, b, c]) == ([x], [a, b, c])
    assert largest_block({x: {a, b}, y: {b, c}}, [a, b, c])[1] == [a, b]  # equal: the earlier tasks

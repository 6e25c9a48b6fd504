from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

from diaster.analysis.curves import Curve
from diaster.analysis.plots import (
    curve_label,
    curves_of,
    figure_of,
    learning_curve,
    plot_learning_curves,
    terminal_curve,
)
from diaster.config import build_config
from diaster.errors import DiasterError


def curve_of(*mean: float) -> Curve:
    steps, returns = 100 * np.arange(1, len(mean) + 1), np.array(mean)[:, None]
    return Curve(build_config(env="Toy-v0"), (0,), steps, returns, (), ())


def refusal(paths: list[Path], out: Path) -> str:
    with pytest.raises(DiasterError) as caught:
        plot_learning_curves(paths, out)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    return str(caught.value)


def svg_text(paths: list[Path], out: Path) -> str:
    """A picture as text, its labels included."""
    with pytest.MonkeyPatch.context() as patch:
        import matplotlib.pyplot as plt

        patch.setitem(plt.rcParams, "svg.fonttype", "none")  # labels as text
        plot_learning_curves(paths, out)
    return out.read_text(encoding="utf-8")


# Curves


def test_a_curve_is_the_mean_over_seeds_with_its_standard_error(tmp_path: Path) -> None:
    curve = learning_curve(make_run(tmp_path / "run", {3: [1.0, 10.0], 1: [2.0, 10.0], 8: [6.0, 10.0]}))
    assert curve.config.env == "Toy-v0"
    assert curve.steps.tolist() == [100, 200]
    assert curve.mean.tolist() == [3.0, 10.0]
    # deviations −2, −1, 3: variance 14 / 2, standard error √(7 / 3)
    np.testing.assert_allclose(curve.error, [np.sqrt(7 / 3), 0.0])
    assert curve.seeds == (1, 3, 8)
    assert curve.returns.tolist() == [[2.0, 1.0, 6.0], [10.0, 10.0, 10.0]]
    assert [curve_label(one) for one in curves_of([tmp_path / "run"])] == ["diaster, 3 seeds"]


def test_one_seed_has_no_error(tmp_path: Path) -> None:
    curve = learning_curve(make_run(tmp_path / "run", {3: [1.0, 2.0]}, preset="paper"))
    assert (curve.mean.tolist(), curve.error.tolist()) == ([1.0, 2.0], [0.0, 0.0])
    assert [curve_label(one) for one in curves_of([tmp_path / "run"])] == ["diaster (paper), 1 seed"]


def test_seeds_of_unequal_length_are_cut_to_the_common_part(tmp_path: Path) -> None:
    curve = learning_curve(make_run(tmp_path / "run", {0: [1.0, 2.0, 3.0], 1: [3.0, 4.0]}))
    assert curve.steps.tolist() == [100, 200]
    assert curve.mean.tolist() == [2.0, 3.0]


def test_a_run_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {})
    with pytest.raises(DiasterError, match="has no evaluation yet"):
        learning_curve(run)
    (run / "progress.csv").unlink()  # it is written with the first evaluation
    with pytest.raises(DiasterError, match="has no evaluation yet"):
        learning_curve(run)


def test_runs_that_differ_have_names_that_tell_them_apart(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "long", {0: [1.0] * 3}),
        make_run(tmp_path / "short", {0: [1.0]}),
        make_run(tmp_path / "other", {0: [1.0]}, method={"hidden": 8}),
        make_run(tmp_path / "horizon", {0: [1.0]}, method="rrd", horizon=50),
    ]
    assert [curve.name for curve in curves_of(runs[:3])] == [
        "diaster, 300 steps", "diaster, 100 steps", "diaster, hidden = 8",
    ]  # fmt: skip
    assert [curve.name for curve in curves_of(runs[2:])] == ["rrd, T = 50", "diaster, T = 1000"]
    assert len(curves_of([runs[0], runs[0]])) == 1


def test_runs_with_the_same_settings_are_named_by_their_folders_and_these_by_their_paths(tmp_path: Path) -> None:
    a, b, other = (make_run(tmp_path / name, {0: [1.0]}) for name in ("x/a", "x/b", "y/a"))
    assert [curve.name for curve in curves_of([a, b])] == ["diaster, in a", "diaster, in b"]
    assert [curve.name for curve in curves_of([a, other])] == [f"diaster, in {a}", f"diaster, in {other}"]


# Metrics


def test_any_column_of_the_table_can_be_plotted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0] * 3}, columns={"critic_loss": [float("nan"), 3.0, 2.0]})
    figure, lines = figure_of(curves_of([run]), "critic_loss")
    [axes] = figure.axes
    assert (axes.get_ylabel(), lines) == ("critic_loss", [])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [np.nan, 3.0, 2.0])


def test_what_a_metric_does_not_show_is_told_in_the_picture_and_to_the_caller(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", {0: [1.0] * 2}, columns={"fit_r2": [-1e10, 0.5]}),
        make_run(tmp_path / "b", {0: [1.0] * 2}, method="uniform"),
    ]
    lines = plot_learning_curves(runs, tmp_path / "fit.png", "fit_r2")
    assert lines == ["fit_r2 below −1 on Toy-v0: diaster 1 of 2 times (down to −1e+10).", "uniform: no fit_r2."]


@pytest.mark.parametrize(("metric", "says"), [("fit", "Did you mean 'fit_r2'?"), ("fit_r2", "there are numbers in ")])
def test_a_metric_that_is_not_there_is_refused_with_what_is(metric: str, says: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0]})
    with pytest.raises(DiasterError) as caught:
        plot_learning_curves([run], tmp_path / "x.png", metric)
    assert says in str(caught.value) and not (tmp_path / "x.png").exists()


def test_every_seed_is_inside_the_axes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [0.0, 100.0], 1: [0.0, 1.0], 2: [0.0, 1.0]})
    figure, _ = figure_of(curves_of([run]))
    assert figure.axes[0].get_ylim()[1] > 100.0


# Pictures


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")])
def test_pictures_are_of_the_kind_their_name_says(suffix: str, magic: bytes, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0, 2.0], 1: [3.0, 4.0]})
    out = tmp_path / f"curve{suffix}"
    plot_learning_curves([run], out)
    assert out.read_bytes().startswith(magic)
    assert out.stat().st_size > 1000
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(["run", out.name])


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_runs_give_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0, 2.0], 1: [3.0, 4.0]})
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    for out in (first, second):
        plot_learning_curves([run], out)
    assert first.read_bytes() == second.read_bytes()


def test_several_runs_of_an_environment_share_a_picture_with_a_label_each(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {0: [1.0, 2.0]}, agent="sac")
    other = make_run(tmp_path / "other", {0: [1.0, 2.0], 1: [2.0, 3.0]}, preset="paper")
    text = svg_text([one, other], tmp_path / "curve.svg")
    for words in ("diaster, 1 seed", "diaster (paper), 2 seeds", "Toy-v0", "environment steps"):
        assert words in text


def test_the_upper_reference_is_dashed_and_labelled_as_what_it_is(tmp_path: Path) -> None:
    returns = {0: [1.0, 2.0], 1: [2.0, 3.0]}
    methods = [make_run(tmp_path / method, returns, method=method) for method in ("diaster", "uniform")]
    dense = make_run(tmp_path / "dense", returns, method="dense")
    without = svg_text(methods, tmp_path / "without.svg")
    assert "stroke-dasharray" not in without and "reference" not in without
    together = svg_text([*methods, dense], tmp_path / "together.svg")
    # Its mean, its two seeds and its line in the legend, and no other.
    assert together.count("stroke-dasharray") == 4
    assert "dense (reference), 2 seeds, sees the hidden rewards" in together
    assert "uniform, 2 seeds" in together
    assert "learnt from one number per episode" in together


def test_a_picture_of_the_upper_reference_alone_does_not_claim_episodic_feedback(tmp_path: Path) -> None:
    text = svg_text([make_run(tmp_path / "dense", {0: [1.0, 2.0]}, method="dense")], tmp_path / "curve.svg")
    assert "one number per episode" not in text
    assert "learnt from hidden rewards" in text


FEEDBACK = [
    ({"feedback_every": 50}, "one number per 50 steps"),
    ({"feedback_every": 1}, "one number per step"),
    ({"feedback_every": 1000}, "one number per episode"),  # that is the horizon
    ({"feedback_every": "environment"}, "one number per span"),
    ({"feedback_every": 5, "known_rewards": True}, "one number per 5 steps and known rewards"),
]


@pytest.mark.parametrize(("settings", "words"), FEEDBACK)
def test_a_picture_says_how_often_feedback_came(settings: dict, words: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0, 2.0]}, **settings)
    assert f"Toy-v0, learnt from {words}<" in svg_text([run], tmp_path / "curve.svg")


def test_where_feedback_came_in_several_ways_every_curve_says_how_it_came(tmp_path: Path) -> None:
    often = make_run(tmp_path / "often", {0: [1.0, 2.0]}, method="rrd", feedback_every=50)
    text = svg_text([often, make_run(tmp_path / "once", {0: [1.0, 2.0]})], tmp_path / "curve.svg")
    assert "learnt from feedback of several kinds" in text
    assert "rrd, 1 seed, sees one number per 50 steps" in text
    assert "diaster, 1 seed, sees one number per episode" in text


def test_runs_of_different_environments_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / env, {0: [1.0]}, env=env) for env in ("Ant-v5", "Hopper-v5")]
    assert "different environments (Ant-v5, Hopper-v5)" in refusal(runs, tmp_path / "curve.png")


@pytest.mark.parametrize("name", ["curve.jpg", "curve", "curve.png.txt"])
def test_an_unknown_kind_of_picture_is_refused(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0]})
    assert ".png, .svg, .pdf" in refusal([run], tmp_path / name)


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: [1.0]})
    assert f"the folder '{tmp_path / 'gone'}'" in refusal([run], tmp_path / "gone" / "curve.png")
    assert not (tmp_path / "gone").exists()


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "holds no run" in refusal([tmp_path], tmp_path / "curve.png")


def test_no_runs_at_all_are_refused(tmp_path: Path) -> None:
    assert "run" in refusal([], tmp_path / "curve.png")


# The terminal


def parts(text: str) -> tuple[list[str], list[str]]:
    """Labels and columns of the lines above the axis."""
    lines = [line.split("│") for line in text.splitlines() if "│" in line]
    return [label.strip() for label, _ in lines], [cells for _, cells in lines]


def test_the_terminal_shows_the_highest_value_and_the_last_step() -> None:
    text = terminal_curve(curve_of(0.0, 300.0, 1200.0, 600.0))
    labels, cells = parts(text)
    assert (labels[0], labels[-1]) == ("1,200", "0")
    assert text.splitlines()[-1].strip() == "400 steps"
    assert len(cells) == 10
    columns = ["".join(column) for column in zip(*cells, strict=True)]
    heights = [column.count("█") for column in columns]
    assert heights == sorted(heights[:45]) + heights[45:]  # rises for three quarters, then falls
    assert (heights[0], max(heights), heights[-1]) == (0, 10, 5)


@pytest.mark.parametrize(("steps", "text"), [(999, "999 steps"), (20_000, "20 k steps"), (1_500_000, "1.5 M steps")])
def test_steps_are_written_short(steps: int, text: str) -> None:
    curve = curve_of(1.0, 2.0)._replace(steps=np.array([1, steps]))
    assert terminal_curve(curve).splitlines()[-1].strip() == text


def test_one_evaluation_is_a_curve_too() -> None:
    labels, cells = parts(terminal_curve(curve_of(5.0)))
    assert labels[0] == "5"
    assert set("".join(cells)) == {"█"}


@pytest.mark.parametrize("value", [0.0, 7.0, -7.0])
def test_a_constant_curve_is_drawn(value: float) -> None:
    labels, cells = parts(terminal_curve(curve_of(value, value, value)))
    assert {len(line) for line in cells} == {60}
    assert {"0", f"{value:,.0f}"} >= {labels[0], labels[-1]}
    assert all(len(set(line)) == 1 for line in cells)


def test_a_negative_curve_hangs_below_zero() -> None:
    labels, cells = parts(terminal_curve(curve_of(-1000.0, -500.0, -100.0)))
    assert (labels[0], labels[-1]) == ("0", "-1,000")
    columns = ["".join(column) for column in zip(*cells, strict=True)]
    assert columns[0].count("█") < columns[30].count("█") < columns[-1].count("█")


def test_small_returns_are_told_apart_by_the_labels() -> None:
    labels, _ = parts(terminal_curve(curve_of(0.1, 0.6)))
    assert labels[0] == "0.6"


def test_many_evaluations_are_thinned_to_the_width() -> None:
    _, cells = parts(terminal_curve(curve_of(*range(500)), width=40))
    assert {len(line) for line in cells} == {40}


def test_a_name_of_any_length_is_shown_in_part(tmp_path: Path) -> None:
    """Two hundred thousand signs took two minutes to draw."""
    run = make_run(tmp_path / "run", {0: [1.0, 2.0]}, env="Env" + "x" * 3000)
    text = svg_text([run], tmp_path / "curve.svg")
    assert "x" * 30 in text and "x" * 40 not in text and "…" in text

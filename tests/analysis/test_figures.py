"""Figures by name: kinds of files, captions that say what is missing, and refusals that leave nothing behind."""

from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
from made_runs import make_maze_rollouts, make_rollouts, make_run

import diaster
from diaster.analysis.figures import FIGURES, draw, write_figure
from diaster.analysis.figures.style import drawing, method_style
from diaster.analysis.results import read_results
from diaster.config import METHODS
from diaster.errors import DiasterError

CUTS = {"segments": "all"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of everything that the figures need."""
    root = tmp_path_factory.mktemp("results")
    curve = {0: [1.0, 2.0, 3.0], 1: [2.0, 3.0, 4.0]}
    for method in ("diaster", "rrd", "dense"):
        run = make_run(root / method, curve, env="Hopper-v5", method=method, columns={"fit_r2": [-1e10, 0.5, 0.9]})
        if method == "diaster":
            make_rollouts(run, frames=np.zeros((6, 8, 8, 3), np.uint8), frame_step=np.arange(6))
    for m in (0, 1, 999):
        for head in ("final", "cumulative"):
            make_run(root / f"{head}{m}", curve, env="Hopper-v5", method={**CUTS, "head": head, "n_cuts": m})
    make_run(root / "without", curve, env="Hopper-v5", method={"reward_source": "difference"})
    for every in (1, 10):
        make_run(root / f"every{every}", curve, env="PointMaze_UMaze-v3", horizon=100, feedback_every=every)
    for m in (0, 10, 99):
        run = make_run(root / f"m{m}", curve, env="PointMaze_UMaze-v3", horizon=100, method={**CUTS, "n_cuts": m})
        make_maze_rollouts(run, 1.0, episodes=6)
    return root


def captions(path: Path, name: str) -> str:
    return "\n".join(draw(name, read_results(path))[1])


def words_in(path: Path, name: str, width: float = 6.75) -> list[str]:
    """Every text of a figure, as drawn."""
    from matplotlib.text import Text

    with drawing():
        figure, _ = draw(name, read_results(path), width)
        figure.draw_without_rendering()
        return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def refusal(name: str, path: Path, out: Path, width: float = 6.75) -> str:
    with pytest.raises(DiasterError) as caught:
        write_figure(name, path, out, width)
    assert "\n" not in str(caught.value)
    assert not out.exists() and not list(out.parent.glob(".*"))
    return str(caught.value)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_as_a_whole(name: str, results: Path, tmp_path: Path) -> None:
    out = tmp_path / f"{name}.png"
    assert write_figure(name, results, out)
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [item.name for item in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize(
    ("name", "suffix", "magic"), [("performance", ".svg", b"<?xml"), ("heatmap", ".pdf", b"%PDF-")]
)
def test_the_same_runs_give_the_same_bytes_of_the_kind_their_name_says(
    name: str, suffix: str, magic: bytes, results: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    for out in (first, second):
        write_figure(name, results, out, 3.3)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(magic)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", [3.3, 6.75])
def test_nothing_leaves_the_figure(name: str, width: float, results: Path) -> None:
    with drawing():
        figure, _ = draw(name, read_results(results), width)
        figure.draw_without_rendering()
        drawn, (wide, high) = figure.get_tightbbox(), figure.get_size_inches()
    assert wide == width
    assert drawn.x0 > -0.03 and drawn.x1 < wide + 0.03
    assert drawn.y0 > -0.03 and drawn.y1 < high + 0.03


# Refusals


def test_an_unknown_figure_is_refused_with_the_nearest(results: Path, tmp_path: Path) -> None:
    assert "Did you mean 'performance'?" in refusal("perfomance", results, tmp_path / "x.png")


@pytest.mark.parametrize("name", ["x.jpg", "x", "x.png.txt"])
def test_an_unknown_kind_of_picture_is_refused(name: str, results: Path, tmp_path: Path) -> None:
    assert ".png, .svg, .pdf" in refusal("performance", results, tmp_path / name)


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), 1e9])
def test_a_width_that_cannot_be_is_refused(width: float, results: Path, tmp_path: Path) -> None:
    assert "between 2.5 and 40" in refusal("performance", results, tmp_path / "x.png", width)


NOTHING = {
    "proxy-reward": "moves forward",
    "heatmap": "in a maze",
    "cut-points": "segments=all",
    "step-reward": "without the step reward",
    "feedback": "--feedback-every 100",
    "credit": "diaster record RUN",
    "metrics": "has a number in fit_r2",
    "summary": "--method dense",
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_figure_without_its_runs_says_which_to_train_or_record(name: str, tmp_path: Path) -> None:
    make_run(tmp_path / "results" / "run", {0: [1.0]}, env="Hopper-v5")
    assert NOTHING[name] in refusal(name, tmp_path / "results", tmp_path / "x.png")


def test_names_are_shown_as_they_are_and_never_as_formulas(tmp_path: Path) -> None:
    make_run(tmp_path / "run", {0: [1.0, 2.0]}, env="$\\frac{Evil$_v0")
    assert "$\\frac{Evil$_v0" in words_in(tmp_path, "performance")


@pytest.mark.parametrize("env", ["\x00\x1b[31m-v0", "x" * 9000, "環境🤖-v0", "a\nb", "<&>%s{}"], ids=repr)
def test_hostile_names_are_drawn_on_one_short_line(env: str, tmp_path: Path) -> None:
    make_run(tmp_path / "results" / "run", {0: [1.0, 2.0]}, env=env)
    write_figure("performance", tmp_path / "results", tmp_path / "x.png", 3.3)
    [title] = [text for text in words_in(tmp_path / "results", "performance") if text.startswith(repr(env)[1:2])]
    assert len(title) < 60 and "\n" not in title and "\x1b" not in title


# Performance


def test_performance_has_a_panel_per_task_and_a_curve_per_method(results: Path) -> None:
    words = words_in(results, "performance")
    assert {"Hopper-v5", "diaster", "rrd", "dense (reference)", "environment steps"} <= set(words)


def test_performance_shows_all_runs_and_says_which_tasks_are_missing(results: Path) -> None:
    words = set(words_in(results, "performance"))
    assert {"diaster, reward_source = difference", "diaster, segments = all, n_cuts = 999, head = final"} <= words
    assert "PointMaze_UMaze-v3, T = 100" in words or "PointMaze_UMaze-v3" in words
    text = captions(results, "performance")
    assert "Mean and standard error over 2 seeds." in text
    assert "InvertedPendulum-v5, Swimmer-v5, Walker2d-v5, Ant-v5, Humanoid-v5, HumanoidStandup-v5; dense" in text
    assert "not shown" not in text


@pytest.mark.parametrize("name", ["performance", "metrics"])
def test_every_run_of_a_folder_is_drawn(name: str, tmp_path: Path) -> None:
    """A run of ten steps, one with other settings, one with a single evaluation: each has a line and a name."""
    columns = {"fit_r2": [0.1, 0.2, 0.3]}
    make_run(tmp_path / "long", {0: [1.0, 2.0, 3.0]}, columns=columns)
    make_run(tmp_path / "short", {0: [1.0]}, every=10, columns=columns)
    make_run(tmp_path / "other", {0: [1.0, 2.0]}, method={"hidden": 8}, columns=columns)
    make_run(tmp_path / "begun", {0: [1.0, 2.0]}, method="rrd", steps=300, done=False, columns=columns)
    figure, _ = draw(name, read_results(tmp_path))
    [axes] = figure.axes
    drawn = sorted(tuple(np.ravel(line.get_xdata())) for line in axes.lines if line.get_linestyle() != "None")
    assert drawn == [(10,), (100, 200), (100, 200), (100, 200, 300)]
    assert any(line.get_marker() == "<" and list(line.get_xdata()) == [10] for line in axes.lines)  # a point
    assert {"diaster, 300 steps", "diaster, 10 steps", "diaster, hidden = 8", "rrd"} <= set(words_in(tmp_path, name))


def test_runs_can_be_chosen_and_named_and_the_caption_says_how_many_were_not_chosen(
    results: Path, tmp_path: Path
) -> None:
    lines = write_figure("performance", results, tmp_path / "x.png", only=["rrd", "final*"], labels=["rrd=ours"])
    assert "6 other runs of the folder: not chosen." not in lines
    assert "11 other runs of the folder: not chosen." in lines
    figure, _ = draw("performance", read_results(results, ["rrd", "final*"], ["rrd=ours"]))
    assert "ours" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(figure.legends[0].get_texts()) == 4


def test_runs_that_were_not_chosen_are_not_said_to_be_missing(tmp_path: Path) -> None:
    for env in ("Hopper-v5", "Ant-v5"):
        make_run(tmp_path / "runs" / env, {0: [1.0]}, env=env)
    make_run(tmp_path / "runs" / "without", {0: [1.0]}, env="Hopper-v5", method={"reward_source": "difference"})
    make_rollouts(tmp_path / "runs" / "Hopper-v5")
    lines = write_figure("performance", tmp_path / "runs", tmp_path / "x.png", only=["Hopper*"])
    assert any(line.startswith("InvertedPendulum-v5, ") and line.endswith(": no runs chosen.") for line in lines)
    for name, rest in (("step-reward", " has no runs"), ("credit", " whose step rewards are learnt has recorded")):
        with pytest.raises(DiasterError) as caught:
            write_figure(name, tmp_path / "runs", tmp_path / "x.png", only=["Ant*"])
        assert f"the chosen part of '{tmp_path / 'runs'}'{rest}" in str(caught.value)


def test_a_pattern_that_fits_no_run_is_refused_before_anything_is_drawn(results: Path, tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match=r"--only 'hoper' fits no run .* there are cumulative0, "):
        write_figure("performance", results, tmp_path / "x.png", only=["hoper"])
    assert list(tmp_path.iterdir()) == []


def test_performance_says_what_is_unfinished_cut_or_missing(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 4, 1: [1.0] * 4})
    make_run(tmp_path / "b", {0: [1.0] * 2}, method="rrd", steps=400, done=False)
    make_run(tmp_path / "c", {}, method="rd", done=False)
    text = captions(tmp_path, "performance")
    assert "rrd on Toy-v0: unfinished: 200 of 400 steps." in text
    assert "rrd on Toy-v0: seed 1 missing." in text
    assert "c: has no evaluation yet." in text


def test_performance_says_which_method_lacks_a_task_that_it_has_elsewhere(tmp_path: Path) -> None:
    for env in ("Hopper-v5", "Ant-v5"):
        make_run(tmp_path / env, {0: [1.0]}, env=env)
    make_run(tmp_path / "rrd", {0: [1.0]}, env="Hopper-v5", method="rrd")
    assert "rrd on Ant-v5: no runs." in captions(tmp_path, "performance")


def test_a_method_that_is_there_under_a_longer_name_is_not_said_to_have_no_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", method={"hidden": 8})
    make_run(tmp_path / "c", {0: [1.0]}, env="Ant-v5", method={"hidden": 8})
    make_run(tmp_path / "d", {0: [1.0]}, env="Ant-v5", method="rrd")
    text = captions(tmp_path, "performance")
    assert "diaster on Ant-v5" not in text
    assert "rrd on Hopper-v5: no runs." in text


def test_settings_that_no_name_tells_are_in_the_caption(tmp_path: Path) -> None:
    for number, env in enumerate(("Hopper-v5", "Ant-v5")):
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, method={"head": "final"})
    assert "diaster: with head = final." in captions(tmp_path, "performance")


def test_horizons_are_never_mixed_in_a_panel(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", method="rrd", horizon=50)
    assert {"Hopper-v5", "Hopper-v5, T = 50"} <= set(words_in(tmp_path, "performance"))


# Ablations


def test_cut_points_have_a_row_per_head_and_the_papers_name_for_the_largest(results: Path) -> None:
    words = words_in(results, "cut-points")
    assert {"Hopper-v5\nhead = final", "Hopper-v5\nhead = cumulative", "m = 0", "m = 1", "m = T−1"} <= set(words)
    assert any(text.startswith("PointMaze_UMaze-v3") for text in words)
    assert "m = 5, 100; head = final on PointMaze_UMaze-v3: no runs." in captions(results, "cut-points")


def test_cut_points_with_other_settings_have_a_row_of_their_own(tmp_path: Path) -> None:
    for m in (0, 1):
        make_run(tmp_path / str(m), {0: [1.0]}, env="Hopper-v5", method={**CUTS, "n_cuts": m})
    make_run(tmp_path / "odd", {0: [1.0]}, env="Hopper-v5", method={**CUTS, "n_cuts": 5, "hidden": 8})
    make_run(tmp_path / "short", {0: [1.0]}, every=10, env="Hopper-v5", method={**CUTS, "n_cuts": 5})
    words = words_in(tmp_path, "cut-points")
    rows = [text.partition("\n")[2] for text in words if text.startswith("Hopper-v5")]
    assert rows == [
        "head = cumulative, 100 steps", "head = cumulative, 10 steps", "head = cumulative, hidden = 8",
    ]  # fmt: skip
    assert {"m = 0", "m = 1", "m = 5"} <= set(words)


def test_cut_points_that_were_trained_twice_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        make_run(tmp_path / name, {0: [value]}, method={**CUTS, "n_cuts": 0})
    assert {"m = 0, in a", "m = 0, in b"} <= set(words_in(tmp_path, "cut-points"))


def test_the_step_reward_is_compared_with_its_twin_alone(results: Path, tmp_path: Path) -> None:
    assert {"with r̂", "without r̂ (differences alone)"} <= set(words_in(results, "step-reward"))
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5", method={"reward_source": "difference", "hidden": 8})
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5")
    text = captions(tmp_path, "step-reward")
    assert "with r̂ on Hopper-v5: no runs." in text
    assert "1 other curve of diaster: not compared, no run without r̂ has the same settings." in text


# Recordings


def test_the_proxy_reward_has_spearmans_correlation_in_the_corner(results: Path) -> None:
    words = words_in(results, "proxy-reward")
    assert any(text.startswith("ρ(r̂) = 0.") and text.endswith("ρ(r) = 1.00") for text in words)
    assert "forward motion (m/step)" in words
    assert "Swimmer, Walker2d, Humanoid: no runs." in captions(results, "proxy-reward")


def test_a_robot_that_was_not_recorded_is_noted(results: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_rollouts(run)
    make_run(tmp_path / "b", {0: [1.0]}, env="Swimmer-v5")
    assert "diaster on Swimmer-v5: nothing recorded ('diaster record RUN' does)." in captions(tmp_path, "proxy-reward")


def test_every_recorded_run_has_a_panel_whatever_its_settings_and_its_robot(tmp_path: Path) -> None:
    """A folder was said to have no recorded steps, as the plainest run had none."""
    make_run(tmp_path / "plain", {0: [1.0]}, env="Hopper-v5")
    make_rollouts(make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5", method={"hidden": 8}))
    make_rollouts(make_run(tmp_path / "b", {0: [1.0]}, env="Runner-v0", method="rrd"))
    words = words_in(tmp_path, "proxy-reward")
    assert {"Hopper-v5\ndiaster, hidden = 8", "Runner-v0\nrrd"} <= set(words)
    assert {"r̂ of diaster", "r̂ of rrd", "true reward r"} <= set(words)


def test_a_recording_of_the_true_reward_alone_is_not_said_to_be_missing(tmp_path: Path) -> None:
    make_rollouts(make_run(tmp_path / "runs" / "a", {0: [1.0]}, env="Hopper-v5", method="dense"))
    for name in ("proxy-reward", "credit", "heatmap"):
        assert "whose step rewards are learnt" in refusal(name, tmp_path / "runs", tmp_path / "x.png")


def test_a_learnt_reward_has_the_colour_of_its_method(tmp_path: Path) -> None:
    make_rollouts(make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5", method="rrd"))
    figure, _ = draw("credit", read_results(tmp_path))
    assert METHODS["rrd"].colour in [line.get_color() for axes in figure.axes for line in axes.lines]


def test_credit_says_how_many_other_runs_were_recorded(tmp_path: Path) -> None:
    for method in ("rrd", "rd"):
        make_rollouts(make_run(tmp_path / method, {0: [1.0]}, env="Hopper-v5", method=method))
    assert "1 other recorded run can be chosen with --only." in captions(tmp_path, "credit")


def test_a_stale_recording_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "results" / "a", {0: [1.0]}, env="Hopper-v5")
    make_rollouts(run)
    (run / "policy.safetensors").write_bytes(b"other")
    assert "recorded with other nets" in refusal("proxy-reward", tmp_path / "results", tmp_path / "x.png")


def test_the_heat_map_has_a_panel_per_number_of_cuts_and_notes_those_missing(results: Path) -> None:
    assert {"m = 0", "m = 10", "m = T−1", "x (m)", "y (m)"} <= set(words_in(results, "heatmap"))
    assert "m = 1: no recorded runs." in captions(results, "heatmap")


def test_the_heat_map_shows_every_recorded_run_in_a_maze(tmp_path: Path) -> None:
    maze = {"env": "PointMaze_UMaze-v3", "horizon": 100}
    make_maze_rollouts(make_run(tmp_path / "a", {0: [1.0]}, **maze, method={**CUTS, "n_cuts": 5}), 1.0, episodes=4)
    make_maze_rollouts(make_run(tmp_path / "b", {0: [1.0]}, **maze, method="rrd"), 1.0, episodes=4)
    make_maze_rollouts(make_run(tmp_path / "c", {0: [1.0]}, env="Other-v0", method="rd"), 1.0, episodes=4)
    titles = [text for text in words_in(tmp_path, "heatmap") if "\n" in text and not text.startswith("Other-v0,")]
    assert [title.partition("\n")[2] for title in titles[:3]] == ["rd", "diaster", "rrd"]


def test_credit_shows_frames_where_there_are_any_and_says_where_there_are_none(results: Path, tmp_path: Path) -> None:
    assert {"t = 0", "t = 5", "reward per step", "running sum"} <= set(words_in(results, "credit"))
    assert "frames" not in captions(results, "credit")
    make_rollouts(make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5"), true_reward=np.full(150, np.nan))
    text = captions(tmp_path, "credit")
    assert "frames: none were recorded" in text and "true reward: the environment has none" in text


# Style


def test_every_method_has_a_colour_and_a_marker_of_its_own() -> None:
    assert len({method.colour for method in METHODS.values()}) == len(METHODS)
    assert len({method.marker for method in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_the_first_twenty_curves_of_a_method_look_different(method: str) -> None:
    assert len({method_style(method, variant) for variant in range(20)}) == 20


def test_a_further_curve_of_a_method_keeps_its_hue_and_dashes_are_the_references() -> None:
    import colorsys

    hues = [colorsys.rgb_to_hsv(*method_style("diaster", variant).colour)[0] for variant in range(5)]
    assert hues == [pytest.approx(hues[0], abs=0.01)] * 5
    assert method_style("dense").line == "--" and all(method_style(m).line != "--" for m in METHODS if m != "dense")


def test_a_figure_can_be_had_as_matplotlib_has_it(tmp_path: Path) -> None:
    make_run(tmp_path / "one", {0: [1.0, 2.0, 4.0], 1: [2.0, 2.0, 3.0]})
    figure = diaster.figure("performance", str(tmp_path), width=3.3)
    assert isinstance(figure, matplotlib.figure.Figure)
    assert figure.get_figwidth() == 3.3
    assert any(list(line.get_ydata()) == [1.5, 2.0, 3.5] for axes in figure.axes for line in axes.lines)
    for name, width in (("performanse", 3.3), ("performance", 1.0)):
        with pytest.raises(DiasterError):
            diaster.figure(name, tmp_path, width)

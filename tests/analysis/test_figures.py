"""Figures by name: kinds of files, captions that say what is missing, and refusals that leave nothing behind."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import make_maze_rollouts, make_rollouts, make_run

from diaster.analysis.figures import FIGURES, draw, write_figure
from diaster.analysis.figures.style import drawing, method_style, panels_across
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
        run = make_run(root / method, curve, env="Hopper-v5", method=method)
        if method == "diaster":
            make_rollouts(run, frames=np.zeros((6, 8, 8, 3), np.uint8), frame_step=np.arange(6))
    for m in (0, 1, 999):
        for head in ("final", "cumulative"):
            make_run(root / f"{head}{m}", curve, env="Hopper-v5", method={**CUTS, "head": head, "n_cuts": m})
    make_run(root / "without", curve, env="Hopper-v5", method={"reward_source": "difference"})
    for m in (0, 10, 99):
        run = make_run(root / f"m{m}", curve, env="PointMaze_UMaze-v3", horizon=100, method={**CUTS, "n_cuts": m})
        make_maze_rollouts(run, 1.0, episodes=6)
    return root


def captions(path: Path, name: str) -> str:
    with drawing():
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
    "credit": "diaster record RUN",
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


def test_performance_says_what_it_leaves_out(results: Path) -> None:
    text = captions(results, "performance")
    assert "Mean and standard error over 2 seeds." in text
    assert "InvertedPendulum-v5, Swimmer-v5, Walker2d-v5, Ant-v5, Humanoid-v5, HumanoidStandup-v5: no runs." in text
    assert "7 further curves: other settings than the plainest" in text
    assert "PointMaze_UMaze-v3: not shown, one method with changed settings." in text


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


def test_a_method_with_other_settings_on_one_task_says_so(tmp_path: Path) -> None:
    for number, env in enumerate(("Hopper-v5", "Ant-v5", "Swimmer-v5")):
        settings = {"head": "final"} if env == "Ant-v5" else {}
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, method=settings)
    assert "diaster on Ant-v5: with head = final, unlike elsewhere." in captions(tmp_path, "performance")


def test_horizons_are_never_mixed_in_a_panel(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5")
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5", method="rrd", horizon=50)
    assert {"Hopper-v5", "Hopper-v5, T = 50"} <= set(words_in(tmp_path, "performance"))


# Ablations


def test_cut_points_have_a_row_per_head_and_the_papers_name_for_the_largest(results: Path) -> None:
    words = words_in(results, "cut-points")
    assert {"Hopper-v5\nhead = final", "Hopper-v5\nhead = cumulative", "m = 0", "m = 1", "m = T−1"} <= set(words)
    text = captions(results, "cut-points")
    assert "m = 5, 10, 100: no runs." in text
    assert "PointMaze_UMaze-v3: not shown together with the paper's tasks." in text


def test_cut_points_with_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    for m in (0, 1):
        make_run(tmp_path / str(m), {0: [1.0]}, env="Hopper-v5", method={**CUTS, "n_cuts": m})
    make_run(tmp_path / "odd", {0: [1.0]}, env="Hopper-v5", method={**CUTS, "n_cuts": 5, "hidden": 8})
    words = words_in(tmp_path, "cut-points")
    assert "m = 0" in words and "m = 5" not in words
    assert "further runs with other settings are not shown" in captions(tmp_path, "cut-points")


def test_the_step_reward_is_compared_with_its_twin_alone(results: Path, tmp_path: Path) -> None:
    assert {"with r̂", "without r̂ (differences alone)"} <= set(words_in(results, "step-reward"))
    make_run(tmp_path / "a", {0: [1.0]}, env="Hopper-v5", method={"reward_source": "difference", "hidden": 8})
    make_run(tmp_path / "b", {0: [1.0]}, env="Hopper-v5")
    assert "with r̂ on Hopper-v5: no runs." in captions(tmp_path, "step-reward")


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
    assert "diaster on Swimmer-v5: nothing recorded ('diaster record b')." in captions(tmp_path, "proxy-reward")


def test_a_stale_recording_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "results" / "a", {0: [1.0]}, env="Hopper-v5")
    make_rollouts(run)
    (run / "policy.safetensors").write_bytes(b"other")
    assert "recorded with other nets" in refusal("proxy-reward", tmp_path / "results", tmp_path / "x.png")


def test_the_heat_map_has_a_panel_per_number_of_cuts_and_notes_those_missing(results: Path) -> None:
    assert {"m = 0", "m = 10", "m = T−1", "x (m)", "y (m)"} <= set(words_in(results, "heatmap"))
    assert "m = 1: no recorded runs." in captions(results, "heatmap")


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


def test_a_further_curve_of_a_method_keeps_its_hue_and_dashes_are_the_references() -> None:
    import colorsys

    first, second = method_style("diaster"), method_style("diaster", 1)
    hues = [colorsys.rgb_to_hsv(*style.colour)[0] for style in (first, second)]
    assert hues[0] == pytest.approx(hues[1], abs=0.01)
    assert first != second
    assert method_style("dense").line == "--" and all(method_style(m).line != "--" for m in METHODS if m != "dense")


def test_panels_are_never_narrower_than_can_be_read() -> None:
    assert [panels_across(7, width) for width in (2.5, 3.3, 6.75, 40.0)] == [1, 2, 4, 7]

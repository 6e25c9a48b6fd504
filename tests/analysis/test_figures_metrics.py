"""The figure of metrics: which panels it has, and what its caption says."""

from pathlib import Path

import pytest
from made_runs import make_run

from diaster.analysis.figures import draw
from diaster.analysis.results import read_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    fits = {"fit_r2": [-9.0, 0.5], "return_gap": [0.5, 0.1]}
    make_run(tmp_path / "a", {0: [1.0, 2.0]}, env="Hopper-v5", columns=fits)
    make_run(tmp_path / "b", {0: [1.0, 2.0]}, env="Hopper-v5", method="uniform", columns={"return_gap": [1.0, 1.0]})
    make_run(tmp_path / "c", {0: [1.0, 2.0]}, env="Ant-v5", columns={"fit_r2": [float("nan"), 0.5]})
    return tmp_path


def test_there_is_a_panel_for_each_metric_that_a_task_has(results: Path) -> None:
    figure, _ = draw("metrics", read_results(results))
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["Hopper-v5\nfit_r2", "Hopper-v5\nreturn_gap", "Ant-v5\nfit_r2"]


def test_its_caption_tells_what_is_beyond_the_axis_what_is_not_there_and_what_gaps_are(results: Path) -> None:
    _, lines = draw("metrics", read_results(results))
    text = "\n".join(lines)
    assert "fit_r2 below −1 on Hopper-v5: diaster 1 of 2 times (down to −9)." in text
    assert "uniform on Hopper-v5: no fit_r2." in text
    assert "Evaluations without a number are gaps." in text and "Arrows are numbers beyond the axis." in text


def test_a_caption_does_not_explain_what_is_not_there(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0, 2.0]}, columns={"fit_r2": [0.1, 0.5]})
    _, [first, *_] = draw("metrics", read_results(tmp_path))
    assert first == "On held-out episodes. One seed each: no bands."

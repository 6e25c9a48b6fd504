"""Curves for how often feedback comes: which are compared, what they are called, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from diaster.analysis.figures import draw, feedback
from diaster.analysis.figures.feedback import label_of
from diaster.analysis.figures.style import drawing
from diaster.analysis.results import read_results
from diaster.errors import DiasterError

CURVE = {0: [1.0, 2.0, 3.0], 1: [2.0, 3.0, 4.0]}


def make(root: Path, name: str, every: int | str = "episode", env: str = "Hopper-v5", **settings: Any) -> None:
    make_run(root / name, CURVE, env=env, feedback_every=every, **settings)


def drawn(root: Path) -> tuple[list[list[str]], list[str], str]:
    """The labels of the curves of each row, the titles of the panels, and the caption."""
    shown: list[list[str]] = []
    original = feedback.draw_rows

    def noting(rows: Any, label: Any, styles: Any, width: float) -> Any:
        shown.extend([label(curve) for curve in curves] for curves in rows.values())
        return original(rows, label, styles, width)

    with pytest.MonkeyPatch.context() as patch, drawing():
        patch.setattr(feedback, "draw_rows", noting)
        figure, caption = draw("feedback", read_results(root))
        figure.draw_without_rendering()
    return shown, [axes.get_title() for axes in figure.axes if axes.lines], "\n".join(caption)


@pytest.mark.parametrize(
    ("interval", "words"),
    [(1, "every step"), (10, "every 10 steps"), (1000, "every 1,000 steps"), ("episode", "once an episode")],
)
def test_an_interval_is_called_by_what_it_is(interval: int | str, words: str) -> None:
    assert label_of(interval) == words


def test_a_panel_has_a_curve_for_each_interval_and_one_of_dense_and_says_what_is_missing(tmp_path: Path) -> None:
    for every in (100, 1, "episode"):
        make(tmp_path, f"every-{every}", every)
    make(tmp_path, "dense", method="dense")
    make(tmp_path, "walker", 10, env="Walker2d-v5")
    make(tmp_path, "marks", "environment")
    make(tmp_path, "elsewhere", env="Swimmer-v5")
    labels, titles, caption = drawn(tmp_path)
    assert titles == ["Hopper-v5", "Walker2d-v5"]
    [of_both] = labels
    hopper = ["dense (reference)", "every 100 steps", "every step", "once an episode"]
    assert sorted(of_both) == sorted([*hopper, "every 10 steps"])
    assert "feedback every 500 steps: no runs." in caption
    assert "2 other curves: not compared, no run with the same settings" in caption
    assert "Mean and standard error over 2 seeds." in caption


def test_a_method_has_a_row_of_its_own(tmp_path: Path) -> None:
    for method in ("diaster", "rrd"):
        make(tmp_path, f"{method}-10", 10, method=method)
        make(tmp_path, f"{method}-all", method=method)
    labels, titles, _ = drawn(tmp_path)
    assert titles == ["Hopper-v5\ndiaster", "Hopper-v5\nrrd"]
    assert [sorted(row) for row in labels] == [["every 10 steps", "once an episode"]] * 2


def test_runs_with_other_settings_have_a_row_of_their_own_or_are_named(tmp_path: Path) -> None:
    for every in (1, 10, "episode"):
        make(tmp_path, f"every-{every}", every)
    for every in (10, "episode"):
        make(tmp_path, f"wide-{every}", every, method={"hidden": 512})
    make(tmp_path, "alone", method={"hidden": 128})  # nothing to be compared with
    make(tmp_path, "dense", method="dense")
    labels, titles, caption = drawn(tmp_path)
    assert [sorted(row) for row in labels] == [
        ["dense (reference)", "every 10 steps", "every step", "once an episode"],
        ["dense (reference)", "every 10 steps", "once an episode"],
    ]
    assert titles == ["Hopper-v5\ndiaster", "Hopper-v5\ndiaster, hidden = 512"]
    assert "1 other curve: not compared" in caption


def test_with_one_number_per_episode_alone_there_is_nothing_to_compare(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    make(tmp_path, "marks", "environment")
    with pytest.raises(DiasterError, match="--feedback-every 100"):
        drawn(tmp_path)

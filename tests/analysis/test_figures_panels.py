"""Panels of curves: axes that show everything and follow nothing that explodes, ticks, points, legends."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import make_run
from matplotlib.figure import Figure

from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.figures.panels import (
    Panel,
    add_legend,
    beyond_notes,
    draw_panels,
    even_rows,
    legend_handle,
    line_of,
    lonely,
    panels_across,
)
from diaster.analysis.figures.style import Style, drawing, new_figure, wrapped_text, wrapped_title
from diaster.analysis.results import read_results
from diaster.errors import DiasterError

NAN = float("nan")


def curves_below(path: Path) -> list[Curve]:
    return curves_in(read_results(path))


def drawn(curves: list[Curve], metric: str = "return_mean", width: float = 3.3) -> Figure:
    with drawing():
        figure = draw_panels([[Panel("a panel", [line_of(curve) for curve in curves], metric)]], width)
        figure.draw_without_rendering()
    return figure


def points(figure: Figure) -> list[tuple[str, list[float], list[float]]]:
    """Marker, x and y of what is drawn without a line."""
    found: list[Any] = [line for line in figure.axes[0].lines if line.get_linestyle() == "None"]
    return [(line.get_marker(), list(line.get_xdata()), list(line.get_ydata())) for line in found]


def test_a_single_evaluation_is_a_point(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [3.0]})
    make_run(tmp_path / "b", {0: [5.0], 1: [7.0]}, method="dense")
    assert points(drawn(curves_below(tmp_path))) == [("o", [100], [6.0]), ("o", [100], [3.0])]


def test_what_stands_between_gaps_is_a_point() -> None:
    shown = np.array([True, False, True, True, False, True])
    assert lonely(shown).tolist() == [True, False, False, False, False, True]
    assert lonely(np.array([True])).tolist() == [True]


def test_numbers_that_are_not_there_are_gaps(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 5}, columns={"fit_r2": [NAN, 0.1, 0.2, NAN, 0.4]})
    figure = drawn(curves_below(tmp_path), "fit_r2")
    [line] = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    np.testing.assert_array_equal(line.get_ydata(), [NAN, 0.1, 0.2, NAN, 0.4])
    assert points(figure) == [("o", [500], [0.4])]


def test_a_metric_that_explodes_does_not_take_the_axis_with_it(tmp_path: Path) -> None:
    columns = {"fit_r2": [-3.2e10, -5.0, 0.5, 0.9], "return_gap": [1e5, 3.0, 0.5, 0.1]}
    make_run(tmp_path / "a", {0: [1.0] * 4, 1: [1.0] * 4}, columns=columns)
    curves = curves_below(tmp_path)
    low, high = drawn(curves, "fit_r2").axes[0].get_ylim()
    assert -1.2 < low < -1.0 and 0.9 < high < 1.1
    assert ("v", [100, 200], [0.03, 0.03]) in points(drawn(curves, "fit_r2"))
    low, high = drawn(curves, "return_gap").axes[0].get_ylim()
    assert -0.1 < low < 0.1 and 2.0 < high < 2.2
    assert ("^", [100, 200], [0.97, 0.97]) in points(drawn(curves, "return_gap"))
    [note] = beyond_notes(curves, "fit_r2")
    assert (note.subject, note.text) == ("fit_r2 below −1 on Toy-v0", "diaster 2 of 4 times (down to −3.2e+10)")
    [note] = beyond_notes(curves, "return_gap")
    assert (note.subject, note.text) == ("return_gap above 2 on Toy-v0", "diaster 2 of 4 times (up to 100,000)")


def test_a_correlation_of_one_is_not_beyond_an_axis_for_its_rounding(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, columns={"reward_correlation": [1.0 + 1e-12]})
    assert beyond_notes(curves_below(tmp_path), "reward_correlation") == []


@pytest.mark.parametrize(
    "returns", [[1000.0] * 4, [0.0] * 4, [1000.0, 1000.0 + 1e-9], [-3.0, 160_000.0], [1e-7, 2e-7], [-1e9, 1e12]]
)
@pytest.mark.parametrize("width", [1.6, 3.3])
def test_no_curve_lies_on_the_frame_and_no_two_ticks_overlap(
    returns: list[float], width: float, tmp_path: Path
) -> None:
    make_run(tmp_path / "a", {0: returns}, every=250_000)
    figure = drawn(curves_below(tmp_path), width=width)
    [axes] = figure.axes
    box = axes.get_window_extent()
    pixels = axes.transData.transform(np.column_stack([250_000 * np.arange(1, len(returns) + 1), returns]))
    assert (pixels[:, 1] > box.y0 + 0.02 * box.height).all() and (pixels[:, 1] < box.y1 - 0.02 * box.height).all()
    assert (pixels[:, 0] > box.x0 + 0.02 * box.width).all() and (pixels[:, 0] < box.x1 - 0.02 * box.width).all()
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        labels = [
            label
            for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
            if low <= place <= high
        ]
        assert len({label.get_text() for label in labels}) == len(labels) >= 2
        boxes = [label.get_window_extent() for label in labels]
        assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])


def test_a_short_legend_is_above_and_a_long_one_is_a_table_below() -> None:
    for n, is_above in ((3, True), (30, False)):
        with drawing():
            figure = new_figure(3.3, 2.0)
            axes = figure.subplots()
            add_legend(figure, [legend_handle(Style("red"))] * n, [f"a curve, hidden = {k}" for k in range(n)], 3.3)
            figure.draw_without_rendering()
            legend, panel = figure.legends[0].get_window_extent(), axes.get_tightbbox()
        assert (legend.y0 >= panel.y1) if is_above else (legend.y1 <= panel.y0)
        assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1
        assert panel.height > 1.5 * figure.dpi  # the figure has grown, the panel has not shrunk


def test_a_name_that_is_wider_than_the_figure_is_broken_into_lines() -> None:
    with drawing():
        figure = new_figure(3.3, 2.0)
        figure.subplots()
        add_legend(
            figure,
            [legend_handle(Style("red"))],
            ["diaster, " + ", ".join(f"setting_{k} = {k}" for k in range(9))],
            3.3,
        )
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1


def test_panels_are_never_narrower_than_can_be_read() -> None:
    assert [panels_across(7, width) for width in (2.5, 3.3, 6.75, 40.0)] == [1, 2, 4, 7]


@pytest.mark.parametrize(
    ("sizes", "most", "across"),
    [
        ([1], 1, 1),
        ([5], 4, 3),
        ([4], 4, 4),
        ([6], 4, 3),
        ([7], 4, 4),
        ([5, 5, 2], 4, 3),
        ([5, 3], 5, 5),
        ([4, 3], 4, 4),
    ],
)
def test_rows_are_filled_evenly(sizes: list[int], most: int, across: int) -> None:
    assert even_rows([range(size) for size in sizes], most) == across


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "within_correlation", "HumanoidStandup-v5"])
def test_a_word_that_fits_is_not_cut(name: str) -> None:
    assert wrapped_title(name, 1.6) == [name]
    lines = wrapped_title(name, 0.8)
    assert len(lines) > 1 and "".join(lines) == name


@pytest.mark.parametrize("width", [0.0, 3.0, 20.0, 50.0, 75.0])
def test_pieces_of_a_word_are_never_joined_by_a_space(width: float) -> None:
    lines = wrapped_text("InvertedPendulum", width)
    assert "".join(lines) == "InvertedPendulum" and all(lines)


def test_more_panels_or_curves_than_anyone_can_look_at_are_refused_with_what_to_do(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    [curve] = curves_below(tmp_path)
    with pytest.raises(DiasterError, match=r"61 panels .* at most 60; choose runs with --only"):
        draw_panels([[Panel("x", [line_of(curve)])] * 61], 6.75)
    lines = [line_of(curve)._replace(label=str(n)) for n in range(101)]
    with pytest.raises(DiasterError, match=r"101 kinds of curves .* at most 100; choose runs with --only"):
        draw_panels([[Panel("x", lines)]], 6.75)


def test_panels_with_many_curves_are_larger(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    [curve] = curves_below(tmp_path)
    for n, across in ((9, 4), (10, 3), (17, 2)):
        lines = [line_of(curve)._replace(label=str(k)) for k in range(n)]
        with drawing():
            figure = draw_panels([[Panel("x", lines)] * 12], 6.75)
        assert figure.axes[0].get_gridspec().ncols == across

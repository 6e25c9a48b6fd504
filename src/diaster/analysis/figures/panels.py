"""Panels of curves over environment steps: how they are arranged, labelled and drawn, and one legend for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve
from diaster.analysis.figures.style import (
    COLUMN,
    SMALL,
    Style,
    grow,
    method_style,
    new_figure,
    text_width,
    wrapped_text,
    wrapped_title,
)
from diaster.analysis.metrics import RETURN, metric_of
from diaster.analysis.notes import Note, number_text, steps_text
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS, MOST_CURVES = 60, 100
MOST_ROWS_ABOVE = 3  # of a legend; a longer one is a table below the panels
MANY, VERY_MANY = 9, 16  # curves in a panel; more of them need more room
MARK = 3.2  # points
ROUNDING = 1e-6
MOST_TOLD = 5  # curves in a note
ROUND_NUMBERS = (1, 2, 2.5, 5, 10)


class Line(NamedTuple):
    """A curve as a panel shows it."""

    curve: Curve
    style: Style
    label: str


class Panel(NamedTuple):
    """Curves that share axes."""

    title: str
    lines: Sequence[Line]
    metric: str = RETURN


def line_of(curve: Curve) -> Line:
    """A curve under its name, in the look that it has in every figure."""
    return Line(curve, method_style(curve.method, curve.variant), curve.name)


def draw_panels(groups: Sequence[Sequence[Panel]], width: float) -> Figure:
    """All panels and one legend; each group begins a new row."""
    panels = [panel for group in groups for panel in group]
    _check_amount(panels)
    most = max(len(panel.lines) for panel in panels)
    least = 1.55 if most <= MANY else 2.1 if most <= VERY_MANY else COLUMN
    across = even_rows(groups, panels_across(max(map(len, groups)), width, least))
    rows = [group[first : first + across] for group in groups for first in range(0, len(group), across)]
    titles = [_title(panel, width / across) for panel in panels]
    height = panel_height(width, across) + 0.12 * (1 + max(title.count("\n") for title in titles))
    figure = new_figure(width, 0.15 + len(rows) * height)
    engine: Any = figure.get_layout_engine()
    engine.set(h_pad=0.07)
    places = figure.subplots(len(rows), across, squeeze=False)
    metrics = {panel.metric for panel in panels}
    for number, (row, of_row) in enumerate(zip(rows, places, strict=True)):
        for column, axes in enumerate(of_row):
            if column >= len(row):
                axes.set_axis_off()
                continue
            draw_panel(axes, row[column], width / across)
            if number + 1 == len(rows) or column >= len(rows[number + 1]):
                axes.set_xlabel("environment steps")
            if column == 0 and len(metrics) == 1:
                axes.set_ylabel(metric_of(row[0].metric).title)
    styles = {line.label: line.style for panel in panels for line in panel.lines}
    add_legend(figure, [legend_handle(style) for style in styles.values()], list(styles), width)
    return figure


def check_panels(n: int) -> None:
    """Refuse more panels than anyone could look at."""
    if n > MOST_PANELS:
        raise DiasterError(
            f"there are {n} panels to draw, and a figure shows at most {MOST_PANELS}; choose runs with --only."
        )


def _check_amount(panels: Sequence[Panel]) -> None:
    check_panels(len(panels))
    n = len({line.label for panel in panels for line in panel.lines})
    if n > MOST_CURVES:
        raise DiasterError(
            f"there are {n} kinds of curves to draw, and a figure shows at most {MOST_CURVES}; choose runs with --only."
        )


def _title(panel: Panel, width: float) -> str:
    return "\n".join(part for line in panel.title.split("\n") for part in wrapped_title(line, width))


def draw_panel(axes: Axes, panel: Panel, width: float) -> None:
    """One panel of about this width in inches; the first curve is on top."""
    for line in reversed(panel.lines):
        draw_curve(axes, line.curve, line.style, panel.metric)
    axes.set_title(_title(panel, width))
    metric = panel.metric
    ends = [line.curve.mean_of(metric) + sign * line.curve.error_of(metric) for line in panel.lines for sign in (-1, 1)]
    limit_values(axes, np.concatenate(ends), metric)
    label_steps(axes, width)


def draw_curve(axes: Axes, curve: Curve, style: Style, metric: str = RETURN, thickness: float = 1.3) -> None:
    """Mean and standard error over seeds. A number without neighbours is a point; one beyond the axis an arrow."""
    mean, error = curve.mean_of(metric), curve.error_of(metric)
    is_low, is_high = beyond(mean, metric)
    is_shown = ~(is_low | is_high | np.isnan(mean))
    line = np.where(is_shown, mean, np.nan)
    known = np.flatnonzero(is_shown)
    every = max(1, len(known) // 6)  # a few, for readers who do not see the colours
    look: dict[str, Any] = {"color": style.colour, "markersize": MARK, "markeredgewidth": 0}
    axes.plot(
        curve.steps,
        line,
        linestyle=style.line,
        linewidth=thickness,
        marker=style.marker,
        markevery=known[every // 2 :: every].tolist(),
        **look,
    )
    alone = lonely(is_shown)
    if alone.any():
        x, y = curve.steps[alone], mean[alone]
        axes.plot(x, y, linestyle="", marker=style.marker or "o", **{**look, "markersize": MARK + 1})
        axes.errorbar(x, y, error[alone], fmt="none", ecolor=style.colour, elinewidth=0.9)
    if curve.returns.shape[1] > 1:
        low, high = (clipped(line + sign * error, metric) for sign in (-1, 1))
        axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.2, linewidth=0)
    for is_beyond, height, marker in ((is_low, 0.03, "v"), (is_high, 0.97, "^")):
        if is_beyond.any():
            x = curve.steps[is_beyond]
            places = np.full(len(x), height)
            axes.plot(x, places, linestyle="", marker=marker, transform=axes.get_xaxis_transform(), **look)


def lonely(is_shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which points have no neighbour that a line could lead to.  # [E]"""
    padded = np.concatenate([[False], is_shown, [False]])
    return np.asarray(is_shown & ~padded[:-2] & ~padded[2:])


def beyond(values: NDArray[np.float64], metric: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which numbers lie below the axis, and which above; a correlation of 1 may be rounded to a little more."""
    low, high = metric_of(metric).low, metric_of(metric).high
    return values < low - ROUNDING, values > high + ROUNDING


def clipped(values: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Numbers far beyond the axis brought to where they cannot be seen either; a picture has no room for 10¹⁰."""
    low, high = metric_of(metric).low, metric_of(metric).high
    span = high - low  # infinite where there is no limit
    return np.clip(values, low - span, high + span)


def limit_values(axes: Axes, values: NDArray[np.float64], metric: str) -> None:
    """An axis that shows these values with some room around them, and does not follow a metric that explodes."""
    found = metric_of(metric)
    known = np.clip(values[~np.isnan(values)], found.low, found.high)
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    least = 1e-3 * max(abs(low), abs(high))  # numbers that are alike would all have the same tick
    if high - low <= least:
        around = 50 * least or 1.0
        low, high = low - around, high + around
    room = 0.06 * (high - low)
    axes.set_ylim(low - room, high + room)


def beyond_notes(curves: Sequence[Curve], metric: str) -> list[Note]:
    """What an axis that is cut off does not show of the curves of a panel: how often, and how far."""
    found, notes = metric_of(metric), []
    means = [curve.mean_of(metric) for curve in curves]
    lows, highs = zip(*(beyond(mean, metric) for mean in means), strict=True)
    for limit, sides, extreme, word, way in (
        (found.low, lows, np.nanmin, "below", "down"),
        (found.high, highs, np.nanmax, "above", "up"),
    ):
        told = [
            f"{curve.name} {side.sum()} of {len(mean)} times ({way} to {number_text(float(extreme(mean)), 3)})"
            for curve, mean, side in zip(curves, means, sides, strict=True)
            if side.any()
        ]
        if told:
            more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
            subject = f"{metric} {word} {number_text(limit)} on {curves[0].task.title}"
            notes.append(Note(subject, "; ".join(told[:MOST_TOLD]) + more))
    return notes


def label_steps(axes: Axes, width: float = COLUMN) -> None:
    """Steps along the bottom from 0 on, as many ticks as have room, faint lines behind the curves."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    last = max((float(np.max(line.get_xdata())) for line in axes.lines if np.size(line.get_xdata())), default=1.0)
    axes.set_xlim(-0.03 * last, 1.05 * last)
    room = max(2, min(6, int((width - 0.55) / 0.36)))
    axes.xaxis.set_major_locator(MaxNLocator(room, steps=ROUND_NUMBERS, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_NUMBERS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: steps_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.tick_params(labelsize=SMALL)  # ticks are made when the figure is drawn, with whatever settings hold then
    axes.grid(True)
    axes.set_axisbelow(True)


def plain_log(axes: Axes) -> None:
    """A logarithmic axis upwards, with the ticks of Matplotlib and plain numbers, since formulas are not typeset."""
    from matplotlib.ticker import LogFormatter

    class PlainNumbers(LogFormatter):
        def __call__(self, value: float, pos: Any = None) -> str:
            return number_text(value) if super().__call__(value, pos) else ""

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PlainNumbers())
    axes.yaxis.set_minor_formatter(PlainNumbers())


def label_grid(places: Any, n: int, x: str, y: str) -> None:
    """Axis labels on the lowest panel of each column and the first of each row; unused places stay empty."""
    across = places.shape[1]
    for number, axes in enumerate(places.flat):
        if number >= n:
            axes.set_axis_off()
            continue
        if number + across >= n:
            axes.set_xlabel(x)
        if number % across == 0:
            axes.set_ylabel(y)


def panels_across(n: int, width: float, least: float = 1.55) -> int:
    """How many panels fit in a row, none too narrow to be read."""
    return max(1, min(n, int(width // least)))


def even_rows(groups: Sequence[Sequence[object]], most: int) -> int:
    """How many panels to put in a row, so that there are no more rows than with the most, and few empty places."""

    def rows(across: int) -> int:
        return sum(-(-len(group) // across) for group in groups)

    return min(across for across in range(1, most + 1) if rows(across) == rows(most))


def panel_height(width: float, across: int, ratio: float = 0.78) -> float:
    """The height of a panel in a row; a single one does not fill the page."""
    return min(width / across, COLUMN) * ratio


def legend_handle(style: Style) -> Any:
    """A piece of a curve."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], color=style.colour, linestyle=style.line, marker=style.marker, markersize=MARK, markeredgewidth=0
    )


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], width: float) -> None:
    """One for all panels: above them, or where it is long a table below them. The figure grows by its height."""
    room = width * 72 - 10
    handle = 28.0  # points, with its space
    texts = ["\n".join(wrapped_text(label, room - handle)) for label in labels]
    longest = max((text_width(line) for text in texts for line in text.split("\n")), default=0.0)
    columns = max(1, min(len(texts), int(room / (longest + handle))))
    rows = -(-len(texts) // columns)
    columns = -(-len(texts) // rows)  # even rows
    by_column = [texts[first : first + rows] for first in range(0, len(texts), rows)]
    lines = max(sum(text.count("\n") + 1 for text in column) for column in by_column)
    height = (lines * SMALL * 1.2 + rows * SMALL * 0.5 + 8) / 72
    is_above = rows <= MOST_ROWS_ABOVE
    grow(figure, **{"above" if is_above else "below": height})
    place: Any = "upper center" if is_above else "lower center"
    figure.legend(handles, texts, loc=place, ncols=columns, columnspacing=1.2, handletextpad=0.5)

"""What the report shows, as plain texts and numbers. The template makes a page of it."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster import __version__
from diaster.analysis.curves import (
    Curve,
    Series,
    by_task,
    changed_settings,
    curves_in,
    panel_notes,
    plainest,
    series_order,
    settings_text,
)
from diaster.analysis.figures import FIGURES, draw
from diaster.analysis.figures.style import COLUMN, PAGE, drawing, picture_bytes, series_labels, series_styles
from diaster.analysis.notes import sentences, steps_text
from diaster.analysis.report.command import train_command
from diaster.analysis.results import Results
from diaster.errors import LONGEST_SENTENCE, DiasterError, shortened

MOST_POINTS = 250  # of a curve: as many as a screen can show

Labels = dict[Series, str]


class ReturnEntry(NamedTuple):
    """The final return of one method on one task."""

    value: str
    n_seeds: int
    steps: str


class TaskReturns(NamedTuple):
    """A task in the table of returns; None where a method has no runs."""

    task: str
    cells: list[ReturnEntry | None]


class FigureEntry(NamedTuple):
    """A figure in two widths, or the reason why there is none."""

    name: str
    help: str
    command: str
    caption: str = ""
    wide: str = ""
    narrow: str = ""
    error: str = ""


class RunEntry(NamedTuple):
    """The runs of one curve, and the command that made them."""

    task: str
    name: str
    value: str
    area: str
    seeds: str
    steps: str
    state: str
    command: str


class Content(NamedTuple):
    """Everything on the page, by the names that the template uses."""

    title: str
    version: str
    command: str
    n_seeds: int
    n_settings: int
    n_methods: int
    n_tasks: int
    missing: list[str]
    columns: list[str]
    rows: list[TaskReturns]
    n_changed: int
    """Curves with changed settings, which are hidden at first."""
    chart: dict[str, Any]
    figures: list[FigureEntry]
    runs: list[RunEntry]


def page_content(results: Results) -> Content:
    """All that the page shows of some runs."""
    curves = curves_in(results)
    kept = [curve for of_task in by_task(curves).values() for curve in plainest(of_task)[0]]
    labels = series_labels(curves)
    shown = sorted({curve.series for curve in kept}, key=series_order)
    return Content(
        title=f"{results.path.resolve().name or results.path}: runs",
        version=__version__,
        command=f"diaster report {_quoted(results.path)}",
        n_seeds=sum(len(curve.seeds) for curve in curves),
        n_settings=len(curves),
        n_methods=len({curve.series for curve in curves}),
        n_tasks=len({curve.task for curve in curves}),
        missing=_missing(results, curves, labels),
        columns=[labels[series] for series in shown],
        rows=[TaskReturns(task.title, _cells(of_task, shown)) for task, of_task in by_task(kept).items()],
        n_changed=len(curves) - len(kept),
        chart=_chart(curves, kept, labels),
        figures=[_figure(name, results) for name in FIGURES],
        runs=[_run(curve, labels) for curve in curves],
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _missing(results: Results, curves: list[Curve], labels: Labels) -> list[str]:
    """What the runs lack, one sentence for each kind."""
    notes = list(results.notes)
    for of_task in by_task(curves).values():
        notes += panel_notes(of_task, [_name(curve, labels) for curve in of_task])
    return sentences(notes, most_subjects=12)


def _name(curve: Curve, labels: Labels) -> str:
    """The label of a curve, with its settings where they differ from the preset."""
    changed = settings_text(changed_settings(curve.config), most=4)
    return f"{labels[curve.series]}, {changed}" if changed else labels[curve.series]


def _mean_and_error(of_seeds: NDArray[np.float64]) -> str:
    """Mean ± standard error over seeds, both with the digits that the mean needs."""
    mean, n = float(of_seeds.mean()), len(of_seeds)
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2
    values = [mean, float(of_seeds.std(ddof=1)) / n**0.5] if n > 1 else [mean]
    return " ± ".join(f"{value:,.{digits}f}" for value in values).replace("-", "−")


def _last_step(curve: Curve) -> str:
    return steps_text(float(curve.steps[-1]))


def _cells(curves: list[Curve], columns: list[Series]) -> list[ReturnEntry | None]:
    """A row of the table: the final return of each method."""
    of_series = {
        curve.series: ReturnEntry(_mean_and_error(curve.final()), len(curve.seeds), _last_step(curve))
        for curve in curves
    }
    return [of_series.get(series) for series in columns]


def _chart(curves: list[Curve], kept: list[Curve], labels: Labels) -> dict[str, Any]:
    """What the script draws."""
    series = sorted({curve.series for curve in curves}, key=series_order)
    lines = {one: style.line for one, style in series_styles(series).items()}

    def drawn(curve: Curve) -> dict[str, Any]:
        is_plain = any(curve is one for one in kept)
        return {
            "name": _name(curve, labels),
            "series": labels[curve.series],
            "method": curve.method,
            "dash": _dash(lines[curve.series]) if is_plain else "1 3",
            "plain": is_plain,
            "seeds": len(curve.seeds),
            **_points(curve),
        }

    return {
        "series": [{"name": labels[one], "method": one[0], "dash": _dash(lines[one])} for one in series],
        "tasks": [
            {"title": task.title, "curves": [drawn(curve) for curve in of_task]}
            for task, of_task in by_task(curves).items()
        ],
    }


def _dash(line: Any) -> str:
    """A line style of Matplotlib as SVG has it."""
    if line == "--":
        return "6 4"
    return "" if line == "-" else " ".join(str(2 * part) for part in line[1])


def _points(curve: Curve) -> dict[str, list[float]]:
    """The curve, thinned to what a screen can show; its last point is always there."""
    places = np.unique(np.linspace(0, len(curve.steps) - 1, min(MOST_POINTS, len(curve.steps))).round().astype(int))
    return {
        "steps": curve.steps[places].tolist(),
        "mean": [float(f"{value:.6g}") for value in curve.mean[places]],
        "error": [float(f"{value:.4g}") for value in curve.error[places]],
    }


def _figure(name: str, results: Results) -> FigureEntry:
    entry = FigureEntry(name, FIGURES[name].help, f"diaster figure {name} {_quoted(results.path)} -o {name}.svg")
    try:
        wide, lines = _picture(name, results, PAGE)
        narrow, _ = _picture(name, results, COLUMN)
    except DiasterError as error:
        return entry._replace(error=str(error))
    return entry._replace(caption=" ".join(lines), wide=wide, narrow=narrow)


def _picture(name: str, results: Results, width: float) -> tuple[str, list[str]]:
    """A figure as part of the page, and its caption."""
    with drawing():
        figure, lines = draw(name, results, width)
        return f"data:image/png;base64,{base64.b64encode(picture_bytes(figure, '.png')).decode()}", lines


def _run(curve: Curve, labels: Labels) -> RunEntry:
    return RunEntry(
        task=curve.task.title,
        name=_name(curve, labels),
        value=_mean_and_error(curve.final()),
        area=_mean_and_error(curve.area),
        seeds=", ".join(map(str, curve.seeds)),
        steps=_last_step(curve),
        state="; ".join(curve.notes) or "complete",
        command=shortened(train_command(curve.config, curve.seeds), LONGEST_SENTENCE),
    )

"""What the report shows, as plain texts and numbers. The template makes a page of it."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from diaster import __version__
from diaster.analysis.captions import panel_notes, settings_notes
from diaster.analysis.curves import Curve, TaskKey, by_name, by_task
from diaster.analysis.figures import FIGURES, draw
from diaster.analysis.figures.style import COLUMN, PAGE, picture_bytes
from diaster.analysis.metrics import DECOMPOSITION
from diaster.analysis.notes import mean_and_error, number_text, sentences, steps_text
from diaster.analysis.report.chart import chart_data, look_of
from diaster.analysis.report.command import train_command
from diaster.analysis.results import Results
from diaster.errors import LONGEST_NAME, LONGEST_SENTENCE, DiasterError, shortened


class ReturnEntry(NamedTuple):
    """The final return of a curve on one task."""

    value: str
    n_seeds: int
    steps: str


class KindReturns(NamedTuple):
    """A row in the table of returns: curves with one name; None where there are no runs of a task."""

    name: str
    look: str
    """The class of its colour."""
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
    """A curve, the runs behind it, and the command that made them."""

    task: str
    name: str
    look: str
    value: str
    area: str
    metrics: list[str]
    """Those at the last evaluation, in the order of `DECOMPOSITION`."""
    seeds: str
    steps: str
    state: str
    folders: list[str]
    command: str


class Content(NamedTuple):
    """Everything on the page, by the names that the template uses."""

    title: str
    version: str
    command: str
    n_runs: int
    n_curves: int
    n_methods: int
    missing: list[str]
    tasks: list[str]
    rows: list[KindReturns]
    metrics: list[str]
    chart: dict[str, Any]
    figures: list[FigureEntry]
    runs: list[RunEntry]


def page_content(results: Results, curves: Sequence[Curve]) -> Content:
    """All that the page shows of some runs, which are these curves."""
    looks = {name: look_of(n) for n, name in enumerate(by_name(curves))}
    tasks = list(by_task(curves))
    return Content(
        title=f"{results.path.resolve().name or results.path}: runs",
        version=__version__,
        command=f"diaster report {_arguments(results)}",
        n_runs=len(results.runs),
        n_curves=len(curves),
        n_methods=len({curve.method for curve in curves}),
        missing=_missing(results, curves),
        tasks=[task.title for task in tasks],
        rows=[KindReturns(name, looks[name], _cells(of, tasks)) for name, of in by_name(curves).items()],
        metrics=list(DECOMPOSITION),
        chart=chart_data(curves),
        figures=[_figure(name, results) for name in FIGURES],
        runs=[_run(curve, looks[curve.name]) for curve in curves],
    )


def _arguments(results: Results) -> str:
    """The folder and what was chosen of it, as words of a command."""
    words = [str(results.path)]
    words += ["--only", *results.only] if results.only else []
    words += ["--label", *results.labels] if results.labels else []
    return shlex.join(words)


def _missing(results: Results, curves: Sequence[Curve]) -> list[str]:
    """What the runs lack, and what names do not tell, one sentence for each kind."""
    notes = [*results.notes, *settings_notes(curves)]
    for of_task in by_task(curves).values():
        notes += panel_notes(of_task)
    return sentences(notes, most_subjects=12)


def _last_step(curve: Curve) -> str:
    return steps_text(float(curve.steps[-1]))


def _cells(curves: Sequence[Curve], tasks: Sequence[TaskKey]) -> list[ReturnEntry | None]:
    """A row of the table: the final return on each task."""
    of_task = {
        curve.task: ReturnEntry(mean_and_error(curve.final()), len(curve.seeds), _last_step(curve)) for curve in curves
    }
    return [of_task.get(task) for task in tasks]


def _figure(name: str, results: Results) -> FigureEntry:
    entry = FigureEntry(name, FIGURES[name].help, f"diaster figure {name} {_arguments(results)} -o {name}.svg")
    try:
        wide, lines = _picture(name, results, PAGE)
        narrow, _ = _picture(name, results, COLUMN)
    except DiasterError as error:
        return entry._replace(error=str(error))
    return entry._replace(caption=" ".join(lines), wide=wide, narrow=narrow)


def _picture(name: str, results: Results, width: float) -> tuple[str, list[str]]:
    """A figure as part of the page, and its caption."""
    figure, lines = draw(name, results, width)
    return f"data:image/png;base64,{base64.b64encode(picture_bytes(figure, '.png')).decode()}", lines


def _run(curve: Curve, look: str) -> RunEntry:
    return RunEntry(
        task=curve.task.title,
        name=curve.name,
        look=look,
        value=mean_and_error(curve.final()),
        area=mean_and_error(curve.area),
        metrics=[_metric_text(name, float(curve.mean_of(name)[-1])) for name in DECOMPOSITION],
        seeds=", ".join(map(str, curve.seeds)),
        steps=_last_step(curve),
        state="; ".join(curve.notes) or "complete",
        folders=[shortened(folder, LONGEST_NAME) for folder in curve.folders],
        command=shortened(train_command(curve.config, curve.seeds), LONGEST_SENTENCE),
    )


def _metric_text(name: str, value: float) -> str:
    """A metric in the table; how far an R² lies below -1 tells no more than that it does."""
    if value != value:
        return "–"
    return "< −1" if name == "fit_r2" and value < -1.0 else number_text(value, 3)

"""plot, figure and report: pictures and pages of recorded files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro

from diaster.cli.parsing import parse
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once


@dataclass(frozen=True)
class PlotArguments:
    """Draw the learning curves of one or several runs of an environment, or another column of their tables."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curve.png")
    """Picture to write: .png, .svg or .pdf."""
    metric: Annotated[str, tyro.conf.arg(metavar="NAME")] = "return_mean"
    """What to draw over steps: a column of progress.csv, e.g. fit_r2."""


def plot(argv: Sequence[str]) -> None:
    """diaster plot"""
    arguments = parse("plot", argv, PlotArguments())
    if not arguments.runs:
        raise DiasterError("no run directory was given; e.g. diaster plot runs/hopper -o hopper.png.")
    with leaving_at_once():
        from diaster.analysis.plots import plot_learning_curves

    _say_written(arguments.out, plot_learning_curves(arguments.runs, arguments.out, arguments.metric))


def _say_written(out: Path, lines: Sequence[str]) -> None:
    print("\n".join([f"wrote {out}", *(f"  {line}" for line in lines)]))


Patterns = tyro.conf.UseAppendAction[Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(metavar="PATTERN")]]
Labels = tyro.conf.UseAppendAction[Annotated[tuple[tuple[str, ...], ...], tyro.conf.arg(metavar="PATTERN=TEXT")]]


@dataclass(frozen=True)
class FigureArguments:
    """Draw a figure of all runs below a folder, from recorded files alone."""

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """proxy-reward, performance, metrics, heatmap, cut-points, step-reward, feedback, credit or summary."""
    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None
    """Picture to write: .png, .svg or .pdf; by default NAME.png."""
    width: float = 6.75
    """Width in inches, as printed: 6.75 is a page, 3.3 a column. Print has the same size in both."""
    only: Patterns = ()
    """Only runs whose folder below RESULTS, or a folder around it, fits one of these; * stands for anything."""
    label: Labels = ()
    """A name for the curve of the runs whose folder fits, e.g. 'hopper*=tuned'; the first that fits counts."""


def figure(argv: Sequence[str]) -> None:
    """diaster figure"""
    arguments = parse("figure", argv, FigureArguments())
    if arguments.results is None:
        raise DiasterError("a figure and a folder with runs are needed; e.g. diaster figure performance runs -o p.png.")
    with leaving_at_once():
        from diaster.analysis.figures import write_figure

    out = arguments.out or Path(f"{arguments.name}.png")
    chosen = list(chain(*arguments.only)), list(chain(*arguments.label))
    _say_written(out, write_figure(arguments.name, arguments.results, out, arguments.width, *chosen))


@dataclass(frozen=True)
class ReportArguments:
    """Write one page with the tables, curves and figures of all runs below a folder; it needs no network."""

    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Page to write: .html."""
    only: Patterns = ()
    """Only runs whose folder below RESULTS, or a folder around it, fits one of these; * stands for anything."""
    label: Labels = ()
    """A name for the curve of the runs whose folder fits, e.g. 'hopper*=tuned'; the first that fits counts."""


def report(argv: Sequence[str]) -> None:
    """diaster report"""
    arguments = parse("report", argv, ReportArguments())
    if arguments.results is None:
        raise DiasterError("no folder with runs was given; e.g. diaster report runs -o report.html.")
    with leaving_at_once():
        from diaster.analysis.report import write_page

    chosen = list(chain(*arguments.only)), list(chain(*arguments.label))
    _say_written(arguments.out, write_page(arguments.results, arguments.out, *chosen))

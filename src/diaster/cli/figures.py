"""plot, figure and report: pictures and pages of recorded files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from diaster.cli.parsing import parse
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once


@dataclass(frozen=True)
class PlotArguments:
    """Draw the learning curves of one or several runs of an environment."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curve.png")
    """Picture to write: .png, .svg or .pdf."""


def plot(argv: Sequence[str]) -> None:
    """diaster plot"""
    arguments = parse("plot", argv, PlotArguments())
    if not arguments.runs:
        raise DiasterError("no run directory was given; e.g. diaster plot runs/hopper -o hopper.png.")
    with leaving_at_once():
        from diaster.analysis.plots import plot_learning_curves

    plot_learning_curves(list(arguments.runs), arguments.out)
    print(f"wrote {arguments.out}")


@dataclass(frozen=True)
class FigureArguments:
    """Draw a figure of all runs below a folder, from recorded files alone."""

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """proxy-reward, performance, heatmap, cut-points, step-reward, credit or summary."""
    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None
    """Picture to write: .png, .svg or .pdf; by default NAME.png."""
    width: float = 6.75
    """Width in inches, as printed: 6.75 is a page, 3.3 a column. Print has the same size in both."""


def figure(argv: Sequence[str]) -> None:
    """diaster figure"""
    arguments = parse("figure", argv, FigureArguments())
    if arguments.results is None:
        raise DiasterError("a figure and a folder with runs are needed; e.g. diaster figure performance runs -o p.png.")
    with leaving_at_once():
        from diaster.analysis.figures import write_figure

    out = arguments.out or Path(f"{arguments.name}.png")
    caption = write_figure(arguments.name, arguments.results, out, arguments.width)
    print("\n".join([f"wrote {out}", *(f"  {line}" for line in caption)]))


@dataclass(frozen=True)
class ReportArguments:
    """Write one page with the tables, curves and figures of all runs below a folder; it needs no network."""

    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Page to write: .html."""


def report(argv: Sequence[str]) -> None:
    """diaster report"""
    arguments = parse("report", argv, ReportArguments())
    if arguments.results is None:
        raise DiasterError("no folder with runs was given; e.g. diaster report runs -o report.html.")
    with leaving_at_once():
        from diaster.analysis.report import write_page

    left_out = write_page(arguments.results, arguments.out)
    print("\n".join([f"wrote {arguments.out}", *(f"  {line}" for line in left_out)]))

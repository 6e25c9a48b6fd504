"""Every figure by name, drawn from the files of runs only: `diaster figure NAME RESULTS -o FILE`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diaster.analysis.figures.ablations import draw_cut_points, draw_step_reward
from diaster.analysis.figures.credit import draw_credit
from diaster.analysis.figures.heatmap import draw_heatmap
from diaster.analysis.figures.performance import draw_performance
from diaster.analysis.figures.proxy_reward import draw_proxy_reward
from diaster.analysis.figures.style import PAGE, add_caption, check_picture, check_width, drawing, write_picture
from diaster.analysis.figures.summary import draw_summary
from diaster.analysis.notes import Note, sentences
from diaster.analysis.results import Results, read_results
from diaster.errors import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """A figure: one line of help, and the function that draws it."""

    help: str
    draw: Callable[[Results, float], tuple[Figure, list[str], list[Note]]]
    """From results and a width in inches: the figure, the first lines of its caption, notes on what it leaves out."""


FIGURES = {
    "proxy-reward": Drawing("forward motion against learnt and true reward (needs recordings)", draw_proxy_reward),
    "performance": Drawing("learning curves on all tasks, all methods", draw_performance),
    "heatmap": Drawing("future proxy reward in a maze, by position (needs recordings)", draw_heatmap),
    "cut-points": Drawing("learning curves for numbers of cut points, each head", draw_cut_points),
    "step-reward": Drawing("learning curves with and without the step reward", draw_step_reward),
    "credit": Drawing("one episode: rewards over time, learnt and true (needs recordings)", draw_credit),
    "summary": Drawing("gains in return as fractions of dense's, over all tasks", draw_summary),
}


def draw(name: str, results: Results, width: float = PAGE) -> tuple[Figure, list[str]]:
    """A figure with its caption, and the lines of the caption; to be called inside `drawing`."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    figure, caption, notes = FIGURES[name].draw(results, width)
    lines = [*caption, *sentences([*notes, *results.notes])]
    add_caption(figure, lines)
    return figure, lines


def write_figure(name: str, results: Path, out: Path, width: float = PAGE) -> list[str]:
    """Draw a figure of the runs below a folder into a file; returns its caption."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    check_width(width)
    check_picture(out)
    found = read_results(results)
    with drawing():
        figure, lines = draw(name, found, width)
        write_picture(figure, out)
    return lines

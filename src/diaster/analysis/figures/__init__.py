"""Every figure by name, drawn from the files of runs only: `diaster figure NAME RESULTS -o FILE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diaster.analysis.figures.ablations import draw_cut_points, draw_step_reward
from diaster.analysis.figures.credit import draw_credit
from diaster.analysis.figures.feedback import draw_feedback
from diaster.analysis.figures.heatmap import draw_heatmap
from diaster.analysis.figures.metrics import draw_metrics
from diaster.analysis.figures.performance import draw_performance
from diaster.analysis.figures.proxy_reward import draw_proxy_reward
from diaster.analysis.figures.style import PAGE, add_caption, check_picture, check_width, drawing, write_picture
from diaster.analysis.figures.summary import draw_summary
from diaster.analysis.notes import NO_RUNS, NONE_CHOSEN, Note, sentences
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
    "performance": Drawing("learning curves of all runs, a panel per task", draw_performance),
    "metrics": Drawing("fit_r2, correlations and return gap over steps", draw_metrics),
    "heatmap": Drawing("future proxy reward in a maze, by position (needs recordings)", draw_heatmap),
    "cut-points": Drawing("learning curves for numbers of cut points, each head", draw_cut_points),
    "step-reward": Drawing("learning curves with and without the step reward", draw_step_reward),
    "feedback": Drawing("learning curves for how often feedback comes", draw_feedback),
    "credit": Drawing("one episode: rewards over time, learnt and true (needs recordings)", draw_credit),
    "summary": Drawing("gains in return as fractions of dense's, over all tasks", draw_summary),
}


@drawing()
def draw(name: str, results: Results, width: float = PAGE) -> tuple[Figure, list[str]]:
    """A figure with its caption, and the lines of the caption."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    figure, caption, notes = FIGURES[name].draw(results, width)
    if results.only:  # there may be some among the others
        notes = [note._replace(text=NONE_CHOSEN) if note.text == NO_RUNS else note for note in notes]
    lines = [*caption, *sentences([*notes, *results.notes])]
    add_caption(figure, lines)
    return figure, lines


def figure(name: str, results: str | Path, width: float = PAGE, only: Sequence[str] = ()) -> Figure:
    """A Matplotlib figure of all runs below a folder; `diaster figure --help` lists the names of figures.

    `width` is in inches, as printed: 6.75 is a page, 3.3 a column. `only` chooses runs, as `--only` does.

    Examples:
        >>> diaster.figure("performance", "runs").savefig("performance.svg")
    """
    check_width(width)
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    found = read_results(Path(results), only)
    with drawing():
        return draw(name, found, width)[0]


def write_figure(
    name: str, results: Path, out: Path, width: float = PAGE, only: Sequence[str] = (), labels: Sequence[str] = ()
) -> list[str]:
    """Draw a figure of the runs below a folder, or of those chosen, into a file; returns its caption."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    check_width(width)
    check_picture(out)
    found = read_results(results, only, labels)
    figure, lines = draw(name, found, width)
    write_picture(figure, out)
    return lines

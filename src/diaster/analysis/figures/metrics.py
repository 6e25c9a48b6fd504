"""How well the learnt rewards explain returns and hidden rewards, over steps: a row of panels per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diaster.analysis.captions import panel_notes, seeds_line, settings_notes
from diaster.analysis.curves import by_task, curves_in
from diaster.analysis.figures.panels import Panel, beyond_notes, draw_panels, line_of
from diaster.analysis.metrics import DECOMPOSITION
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_metrics(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel for each metric that any run of the task has."""
    curves = curves_in(results)
    groups: list[list[Panel]] = []
    beyond: list[Note] = []
    notes = settings_notes(curves)
    for task, of_task in by_task(curves).items():
        panels = []
        for metric in DECOMPOSITION:
            shown = [curve for curve in of_task if curve.has(metric)]
            if shown:
                panels.append(Panel(f"{task.title}\n{metric}", [line_of(curve) for curve in shown], metric))
                beyond += beyond_notes(shown, metric)
            lacking = [curve for curve in of_task if not curve.has(metric)]
            notes += [Note(f"{curve.name} on {task.title}", f"no {metric}") for curve in lacking]
        if panels:
            groups.append(panels)
        notes += panel_notes(of_task)
    if not groups:
        raise DiasterError(
            f"no run in {results.place} has a number in {', '.join(DECOMPOSITION)}; they come with evaluations of "
            "methods that learn step rewards."
        )
    caption = f"On held-out episodes. {seeds_line(curves)}"
    lines = [line.curve.mean_of(panel.metric) for group in groups for panel in group for line in panel.lines]
    if any(np.isnan(line).any() for line in lines):
        caption += " Evaluations without a number are gaps."
    if beyond:
        caption += " Arrows are numbers beyond the axis."
    return draw_panels(groups, width), [caption], [*beyond, *notes]

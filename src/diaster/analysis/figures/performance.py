"""Learning curves of all runs, a panel per task: the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from diaster.analysis.captions import panel_notes, seeds_line, settings_notes
from diaster.analysis.curves import TaskKey, by_task, curves_in
from diaster.analysis.figures.panels import Panel, draw_panels, line_of
from diaster.analysis.naming import kind_text
from diaster.analysis.notes import NO_RUNS, Note
from diaster.analysis.results import Results
from diaster.config import PAPER_TASKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_performance(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel per task, with a curve for all runs that differ only in their seeds."""
    curves = curves_in(results)
    tasks = by_task(curves)
    figure = draw_panels(
        [[Panel(task.title, [line_of(one) for one in of_task]) for task, of_task in tasks.items()]], width
    )
    notes = settings_notes(curves)
    for of_task in tasks.values():
        notes += panel_notes(of_task)
    notes += absent_notes(tasks)
    kinds = {kind_text(curve.config, with_agent=True) for curve in curves}
    for kind in sorted(kinds):
        having = {curve.task for curve in curves if kind_text(curve.config, with_agent=True) == kind}
        lacking = [task for task in tasks if task not in having]
        if len(lacking) <= len(tasks) / 2:  # a method on few tasks is not missing on the others
            notes += [Note(f"{kind} on {task.title}", NO_RUNS) for task in lacking]
    return figure, [seeds_line(curves)], notes


def absent_notes(tasks: Iterable[TaskKey]) -> list[Note]:
    """The paper's tasks that are not there, where some of them are."""
    absent = [name for name in PAPER_TASKS if name not in {task.env for task in tasks}]
    return [Note(", ".join(absent), NO_RUNS)] if absent and len(absent) < len(PAPER_TASKS) else []

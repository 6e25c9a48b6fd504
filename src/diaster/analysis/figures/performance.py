"""Learning curves on all tasks, all methods: the paper's Figure 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diaster.analysis.curves import (
    Curve,
    Series,
    TaskKey,
    by_task,
    changed_settings,
    curves_in,
    left_out_note,
    method_order,
    panel_notes,
    plainest,
    series_order,
    settings_text,
)
from diaster.analysis.figures.style import (
    add_legend,
    draw_curve,
    label_grid,
    label_steps,
    new_figure,
    panel_height,
    panels_across,
    series_labels,
    series_styles,
)
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.config import PAPER_TASKS
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS = 60


def draw_performance(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel per task, a curve per method."""
    every = by_task(curves_in(results))
    panels = {task: curves for task, curves in every.items() if _is_compared(task, curves)} or every
    if len(panels) > MOST_PANELS:
        raise DiasterError(f"'{results.path}' has runs of {len(panels)} tasks; a figure shows at most {MOST_PANELS}.")
    chosen = {task: plainest(curves) for task, curves in panels.items()}
    shown = [curve for kept, _ in chosen.values() for curve in kept]
    labels = series_labels(shown)
    series = sorted(labels, key=series_order)
    styles = series_styles(series)
    across = panels_across(len(panels), width)
    down = -(-len(panels) // across)
    figure = new_figure(width, 0.35 + down * (panel_height(width, across) + 0.12))
    places = figure.subplots(down, across, squeeze=False)
    notes: list[Note] = []
    handles: dict[str, Any] = {}
    for number, (task, (kept, _)) in enumerate(chosen.items()):
        axes = places.flat[number]
        for curve in sorted(kept, key=lambda curve: -method_order(curve.method)):  # the first method on top
            draw_curve(axes, curve, styles[curve.series], labels[curve.series])
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        axes.set_title(task.title)
        label_steps(axes)
        notes += panel_notes(kept, [labels[curve.series] for curve in kept])
    label_grid(places, len(chosen), "environment steps", "return of an episode")
    ordered = [labels[one] for one in series]
    add_legend(figure, [handles[label] for label in ordered], ordered, width)
    absent = [name for name in PAPER_TASKS if name not in {task.env for task in panels}]
    if absent and len(absent) < len(PAPER_TASKS):
        notes.append(Note(", ".join(absent), "no runs"))
    notes += [Note(task.title, "not shown, one method with changed settings") for task in every if task not in panels]
    for one in series:
        lacking = [task for task, (kept, _) in chosen.items() if one not in {curve.series for curve in kept}]
        if len(lacking) <= len(chosen) / 2:  # a method on few tasks is not missing on the others
            notes += [Note(f"{labels[one]} on {task.title}", "no runs") for task in lacking]
    notes += _settings_notes(shown, labels)
    left_out = sum(len(others) for _, others in chosen.values())
    if left_out:
        notes.append(left_out_note(left_out))
    return figure, [seeds_line([len(curve.seeds) for curve in shown])], notes


def _is_compared(task: TaskKey, curves: Sequence[Curve]) -> bool:
    """False where a single method was run only with changed settings: that is another experiment."""
    if task.env in PAPER_TASKS or len({curve.series for curve in curves}) > 1:
        return True
    return any(not changed_settings(curve.config) for curve in curves)


def _settings_notes(curves: Sequence[Curve], labels: dict[Series, str]) -> list[Note]:
    """A note for each curve whose settings differ from those of its method on other tasks."""
    notes = []
    for series, label in labels.items():
        mine = [(curve, settings_text(changed_settings(curve.config))) for curve in curves if curve.series == series]
        usual, _ = Counter(text for _, text in mine).most_common(1)[0]
        notes += [
            Note(f"{label} on {curve.task.title}", f"with {text or 'the preset as it is'}, unlike elsewhere")
            for curve, text in mine
            if text != usual
        ]
    return notes


def seeds_line(counts: list[int]) -> str:
    """What lines and bands are, and how many seeds are behind them."""
    least, most = min(counts), max(counts)
    if most == 1:
        return "One seed each: no bands."
    many = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"Mean and standard error over {many}."

"""All tasks in one: gains in return as fractions of those of `dense`, with intervals, profiles and probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.captions import panel_notes, settings_notes
from diaster.analysis.curves import Curve, TaskKey, by_name, by_task, curves_in
from diaster.analysis.figures.style import Style, method_style, new_figure, wrapped_text
from diaster.analysis.notes import Note, number_text, steps_text
from diaster.analysis.results import Results
from diaster.analysis.statistics import (
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from diaster.errors import DiasterError, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST, MOST = -1.0, 4.0  # fractions that the axes reach at the utmost: those of a poor reference have no bounds
MOST_SUBSETS = 1000  # of tasks to compare methods on; real results need far fewer


class Summary(NamedTuple):
    """Final returns between those of untrained policies, 0, and of `dense`, 1, for curves that have all tasks."""

    tasks: list[TaskKey]
    scores: dict[str, list[NDArray[np.float64]]]
    """By the names of curves: the runs of each task."""
    styles: dict[str, Style]
    notes: list[Note]


def summarise(results: Results) -> Summary:
    """Scores that can be compared: the same tasks for every curve, all measured at the same step."""
    curves = curves_in(results)
    notes = settings_notes(curves)
    scores: dict[TaskKey, dict[str, NDArray[np.float64]]] = {}
    for task, of_task in by_task(curves).items():
        found, more = _scores(task, of_task)
        notes += more
        if found:
            scores[task] = found
    if not scores:
        raise DiasterError(
            f"no task in {results.place} has runs of dense (above untrained ones) together with others; "
            "train it with --method dense, the unit of every fraction."
        )
    kinds = by_name(curves)
    names, tasks = largest_block({one: {t for t in scores if one in scores[t]} for one in kinds}, list(scores))
    measured = {name for of_task in scores.values() for name in of_task}
    notes += [Note(one, "left out, it lacks tasks that others have") for one in measured if one not in names]
    notes += [Note(task.title, "left out, not all curves have it") for task in scores if task not in tasks]
    styles = {name: method_style(kinds[name][0].method, kinds[name][0].variant) for name in names}
    return Summary(tasks, {one: [scores[task][one] for task in tasks] for one in names}, styles, notes)


def _scores(task: TaskKey, curves: list[Curve]) -> tuple[dict[str, NDArray[np.float64]], list[Note]]:
    """The gain of each curve of a task as a fraction of that of `dense`, by name; empty where there is no such unit."""
    references = [curve for curve in curves if curve.method == "dense"]
    if not references or len(curves) < 2:
        what = "runs of dense alone" if references else "no runs of dense to measure with"
        return {}, [Note(task.title, f"left out, {what}")]
    reference = max(references, key=lambda curve: int(curve.steps[-1]))  # of equal ones the first, the plainest
    notes = []
    kept = []
    for curve in curves:
        # A run that was hardly begun would have all others measured before they have learnt anything.
        if curve.steps[-1] * 2 < reference.steps[-1]:
            end, far = (steps_text(float(one.steps[-1])) for one in (curve, reference))
            text = f"{curve.name} left out, it ends at {end} of the {far} steps of {reference.name}"
            notes.append(Note(task.title, text))
        else:
            kept.append(curve)
    last = min(int(curve.steps[-1]) for curve in kept)
    if last < max(int(curve.steps[-1]) for curve in kept):
        notes.append(Note(task.title, f"compared at {steps_text(float(last))} steps, the last that all have"))
    late = [curve for curve in kept if curve.steps[0] > last]
    notes += [Note(task.title, f"{one.name} left out, it has no evaluation so early") for one in late]
    kept = [curve for curve in kept if curve.steps[0] <= last]
    if reference.steps[0] > last:
        return {}, notes
    early = np.concatenate([curve.untrained for curve in kept])
    zero = float(early.mean()) if len(early) else 0.0
    if not len(early):
        notes.append(Note(task.title, "no evaluation before learning began; fractions are of the whole return"))
    unit = float(reference.final(last).mean()) - zero
    if unit <= 0:
        above = "that of an untrained policy" if len(early) else "0"
        return {}, [*notes, Note(task.title, f"left out, the return of dense is not above {above}")]
    # All are measured at one step, wherever they end.
    notes += [note for note in panel_notes(kept) if not note.text.startswith("ends at")]
    return {curve.name: (curve.final(last) - zero) / unit for curve in kept}, notes


def largest_block(tasks_of: dict[str, set[TaskKey]], order: list[TaskKey]) -> tuple[list[str], list[TaskKey]]:
    """Kinds of curves and tasks of which every pair has runs: the choice with the most pairs. `dense` has all tasks."""
    subsets = {frozenset(tasks) for tasks in tasks_of.values() if tasks}
    while len(subsets) <= MOST_SUBSETS:
        more = {first & second for first in subsets for second in subsets if first & second} - subsets
        if not more:
            break
        subsets |= more

    def size(tasks: frozenset[TaskKey]) -> tuple[int, int, list[int]]:
        n = sum(tasks <= own for own in tasks_of.values())
        return n * len(tasks), len(tasks), [-order.index(task) for task in order if task in tasks]

    best = max(subsets, key=size)
    return [one for one, own in tasks_of.items() if best <= own], [task for task in order if task in best]


def draw_summary(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """Interquartile means, how likely the first curve beats each other one, and performance profiles."""
    summary = summarise(results)
    is_wide = width >= 5.5
    labels = ["\n".join(wrapped_text(name, (0.2 if is_wide else 0.35) * width * 72)) for name in summary.scores]
    rows = len(labels) * (0.16 + 0.1 * max(label.count("\n") for label in labels)) + 0.75
    figure = new_figure(width, max(1.9, rows) if is_wide else 2 * rows + 1.9)
    if is_wide:
        means, chances, profiles = figure.subplots(1, 3, width_ratios=(1, 0.8, 1))
    else:
        means, chances, profiles = figure.subplots(3, 1, height_ratios=(rows, rows, 1.9))
    outside = _draw_means(means, summary)
    _draw_chances(chances, summary)
    _draw_profiles(profiles, summary)
    for axes in (means, chances):  # the same rows in both
        axes.set_yticks(range(len(labels)), labels if axes is means or not is_wide else [])
        axes.set_ylim(len(labels) - 0.4, -0.6)
    for axes in (means, chances, profiles):
        axes.grid(True, axis="both" if axes is profiles else "x")
        axes.set_axisbelow(True)
    titles = ", ".join(task.title for task in summary.tasks)
    counts = sorted({len(runs) for scores in summary.scores.values() for runs in scores})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    many = "s" * (len(summary.tasks) > 1)
    caption = (
        f"{len(summary.tasks)} task{many} ({titles}), {seeds} seed{'s' * (counts[-1] > 1)} each; "
        "0 is the untrained policy, 1 is dense; bands are 95 % intervals of a bootstrap stratified by task."
    )
    return figure, [caption], [*outside, *summary.notes]


def _draw_means(axes: Axes, summary: Summary) -> list[Note]:
    """The interquartile mean of each curve; returns which are beyond the axis."""
    notes, ends = [], [0.0]
    for row, (name, scores) in enumerate(summary.scores.items()):
        value = float(interquartile_mean(scores))
        low, high = bootstrap_interval(interquartile_mean, scores)
        _draw_interval(axes, row, value, (float(low), float(high)), summary.styles[name])
        ends += [float(low), float(high)]
        if not LEAST <= value <= MOST:
            notes.append(Note(name, f"an interquartile mean of {number_text(value)}, beyond the axis"))
    first, last = max(LEAST, min(ends)), min(MOST, max(ends))
    room = 0.05 * (last - first or 1.0)
    axes.set_xlim(first - room, last + room)
    axes.set_xlabel("gain in return / that of dense")
    axes.set_title("interquartile mean")
    return notes


def _draw_interval(axes: Axes, row: int, value: float, interval: tuple[float, float], style: Style) -> None:
    low, high = interval
    axes.barh(row, high - low, left=low, height=0.6, color=style.colour, alpha=0.35, linewidth=0)
    axes.plot([value, value], [row - 0.3, row + 0.3], color=style.colour, linewidth=1.6)


def _draw_profiles(axes: Axes, summary: Summary) -> None:
    """The share of runs above each fraction of `dense`."""
    every = np.concatenate([runs for scores in summary.scores.values() for runs in scores])
    first, last = min(0.0, float(every.min())), float(np.percentile(every, 99.5)) * 1.02
    levels = np.linspace(max(LEAST, first), max(0.1, min(MOST, last)), 201)
    for one, scores in reversed(summary.scores.items()):
        style = summary.styles[one]
        axes.plot(
            levels,
            performance_profile(scores, levels),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=(10, 40),
            markersize=3.2,
            markeredgewidth=0,
        )
        low, high = bootstrap_interval(lambda drawn: performance_profile(drawn, levels), scores, resamples=500)
        axes.fill_between(levels, low, high, color=style.colour, alpha=0.1, linewidth=0)
    axes.set_xlabel("fraction τ of dense's gain")
    axes.set_ylabel("share of runs above τ")
    axes.set_ylim(0, 1.02)
    axes.set_title("performance profile")


def _draw_chances(axes: Axes, summary: Summary) -> None:
    """How likely a run of the first curve beats one of each other curve; the first has no row."""
    first, *others = summary.scores
    for row, one in enumerate(others, start=1):
        pair = summary.scores[first], summary.scores[one]
        value = float(probability_of_improvement(*pair))
        low, high = bootstrap_interval(probability_of_improvement, *pair, resamples=1000)
        _draw_interval(axes, row, value, (float(low), float(high)), summary.styles[one])
    axes.axvline(0.5, color="#8a8a8a", linewidth=0.7, linestyle=":")
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"P({shortened(first)} > this)")
    axes.set_title("probability of improvement")

"""All tasks in one: gains in return as fractions of those of `dense`, with intervals, profiles and probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import (
    Series,
    TaskKey,
    by_task,
    curves_in,
    left_out_note,
    panel_notes,
    plainest,
    series_order,
)
from diaster.analysis.figures.style import Style, new_figure, series_labels, series_styles
from diaster.analysis.notes import Note, steps_text
from diaster.analysis.results import Results
from diaster.analysis.statistics import (
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SUBSETS = 1000  # of tasks to compare methods on; real results need far fewer


class Summary(NamedTuple):
    """Final returns between those of untrained policies, 0, and of `dense`, 1, for methods that have all tasks."""

    tasks: list[TaskKey]
    scores: dict[Series, list[NDArray[np.float64]]]
    """Of each series: the runs of each task."""
    labels: dict[Series, str]
    notes: list[Note]


def summarise(results: Results) -> Summary:
    """Scores that can be compared: the same tasks for every method, all measured at the same step."""
    every = curves_in(results)
    panels = {task: plainest(curves)[0] for task, curves in by_task(every).items()}
    curves = [curve for kept in panels.values() for curve in kept]
    labels = series_labels(curves)
    notes: list[Note] = []
    if len(every) > len(curves):
        notes.append(left_out_note(len(every) - len(curves)))
    scores: dict[TaskKey, dict[Series, NDArray[np.float64]]] = {}
    for task, kept in panels.items():
        reference = next((curve for curve in kept if curve.method == "dense"), None)
        if reference is None or len(kept) < 2:
            what = "no runs of dense to measure with" if reference is None else "runs of dense alone"
            notes.append(Note(task.title, f"left out, {what}"))
            continue
        last = min(int(curve.steps[-1]) for curve in kept)
        if last < max(int(curve.steps[-1]) for curve in kept):
            notes.append(Note(task.title, f"compared at {steps_text(float(last))} steps, the last that all have"))
        late = [curve for curve in kept if curve.steps[0] > last]
        notes += [Note(task.title, f"{labels[one.series]} left out, it has no evaluation so early") for one in late]
        kept = [curve for curve in kept if curve.steps[0] <= last]
        if reference.steps[0] > last:
            continue
        early = np.concatenate([curve.untrained for curve in kept])
        zero = float(early.mean()) if len(early) else 0.0
        if not len(early):
            notes.append(Note(task.title, "no evaluation before learning began; fractions are of the whole return"))
        unit = float(reference.final(last).mean()) - zero
        if unit <= 0:
            above = "that of an untrained policy" if len(early) else "0"
            notes.append(Note(task.title, f"left out, the return of dense is not above {above}"))
            continue
        stated = panel_notes(kept, [labels[curve.series] for curve in kept])
        notes += [note for note in stated if not note.text.startswith("ends at")]  # all are measured at one step
        scores[task] = {curve.series: (curve.final(last) - zero) / unit for curve in kept}
    if not scores:
        raise DiasterError(
            f"no task in '{results.path}' has runs of dense (above untrained ones) together with others; "
            "train it with --method dense, the unit of every fraction."
        )
    series, tasks = largest_block({one: {t for t in scores if one in scores[t]} for one in labels}, list(scores))
    notes += [Note(labels[one], "left out, it lacks tasks that others have") for one in labels if one not in series]
    notes += [Note(task.title, "left out, not all methods have it") for task in scores if task not in tasks]
    ordered = sorted(series, key=series_order)
    return Summary(tasks, {one: [scores[task][one] for task in tasks] for one in ordered}, labels, notes)


def largest_block(tasks_of: dict[Series, set[TaskKey]], order: list[TaskKey]) -> tuple[list[Series], list[TaskKey]]:
    """Methods and tasks of which every pair has runs: the choice with the most pairs. `dense` has all tasks."""
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
    """Interquartile means, performance profiles, and how likely the first method beats each other one."""
    summary = summarise(results)
    series = list(summary.scores)
    styles = series_styles(series)
    side_by_side = width >= 5.5
    height = 0.16 * len(series) + 0.75
    shape = (1, 3) if side_by_side else (3, 1)
    figure = new_figure(width, max(1.9, height) if side_by_side else 2 * height + 2.0)
    means, profiles, chances = figure.subplots(*shape)
    for row, one in enumerate(series):
        value = interquartile_mean(summary.scores[one])
        low, high = bootstrap_interval(interquartile_mean, summary.scores[one])
        means.barh(row, high - low, left=low, height=0.6, color=styles[one].colour, alpha=0.35, linewidth=0)
        means.plot([value, value], [row - 0.3, row + 0.3], color=styles[one].colour, linewidth=1.6)
    means.set_yticks(range(len(series)), [summary.labels[one] for one in series])
    means.invert_yaxis()
    means.set_xlim(left=min(0.0, means.get_xlim()[0]))
    means.set_xlabel("gain in return / that of dense")
    means.set_title("interquartile mean")
    _draw_profiles(profiles, summary, styles)
    _draw_chances(chances, summary, styles)
    for axes in (means, profiles, chances):
        axes.grid(True)
        axes.set_axisbelow(True)
    names = ", ".join(task.title for task in summary.tasks)
    counts = sorted({len(runs) for scores in summary.scores.values() for runs in scores})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    many = "s" * (len(summary.tasks) > 1)
    caption = (
        f"{len(summary.tasks)} task{many} ({names}), {seeds} seed{'s' * (counts[-1] > 1)} each; "
        "0 is the untrained policy, 1 is dense; bands are 95 % intervals of a bootstrap stratified by task."
    )
    return figure, [caption], summary.notes


def _draw_profiles(axes: Axes, summary: Summary, styles: dict[Series, Style]) -> None:
    """The share of runs above each fraction of `dense`."""
    every = np.concatenate([runs for scores in summary.scores.values() for runs in scores])
    levels = np.linspace(min(0.0, float(every.min())), float(np.percentile(every, 99.5)) * 1.02, 201)
    for one, scores in reversed(summary.scores.items()):
        style = styles[one]
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


def _draw_chances(axes: Axes, summary: Summary, styles: dict[Series, Style]) -> None:
    """How likely a run of the first method beats one of each other method."""
    first, *others = summary.scores
    for row, one in enumerate(others):
        pair = summary.scores[first], summary.scores[one]
        value = probability_of_improvement(*pair)
        low, high = bootstrap_interval(probability_of_improvement, *pair, resamples=1000)
        axes.barh(row, high - low, left=low, height=0.6, color=styles[one].colour, alpha=0.35, linewidth=0)
        axes.plot([value, value], [row - 0.3, row + 0.3], color=styles[one].colour, linewidth=1.6)
    axes.axvline(0.5, color="#8a8a8a", linewidth=0.7, linestyle=":")
    axes.set_yticks(range(len(others)), [summary.labels[one] for one in others])
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"P({summary.labels[first]} > other)")
    axes.set_title("probability of improvement")

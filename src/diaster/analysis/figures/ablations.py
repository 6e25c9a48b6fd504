"""Learning curves of Diaster with one setting changed: the paper's Figures 5 and 6."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from diaster.analysis.curves import NO_MATTER, Curve, by_task, curves_in, panel_notes
from diaster.analysis.figures.performance import seeds_line
from diaster.analysis.figures.style import (
    SEQUENCE,
    Style,
    add_legend,
    draw_curve,
    label_steps,
    method_style,
    new_figure,
    panel_height,
    panels_across,
)
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.config import PAPER_TASKS, DiasterConfig, RunConfig
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_CUTS = (0, 1, 5, 10, 100)
MARKS = ("o", "s", "D", "^", "v", "P")


def n_cuts(config: RunConfig) -> int | None:
    """m of a run that cuts whole episodes; None for any other run."""
    of = config.method
    if not isinstance(of, DiasterConfig) or of.segments != "all" or of.reward_source != "step_reward":
        return None
    return 1 if of.n_cuts == "auto" else of.n_cuts


def cuts_label(config: RunConfig) -> str:
    """m, by the paper's name for the largest."""
    m = n_cuts(config)
    return "T−1" if isinstance(config.horizon, int) and m == config.horizon - 1 else str(m)


def draw_cut_points(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A row per head, a panel per task, a curve per number of cut points."""
    every = [curve for curve in curves_in(results) if n_cuts(curve.config) is not None]
    curves, notes = papers_tasks(every)
    if not curves:
        raise DiasterError(
            f"'{results.path}' has no runs of diaster with method.segments=all, which alone have cut points; "
            "train some with --method.segments all --method.n-cuts M."
        )
    heads = sorted({_head(curve.config) for curve in curves}, key=("final", "cumulative").index)
    labels = sorted({cuts_label(curve.config) for curve in curves}, key=_cuts_order)
    styles = cut_styles(labels)
    rows: dict[str, list[Curve]] = {}
    for head in heads:
        mine = [curve for curve in curves if _head(curve.config) == head]
        kept, left_out = one_background(mine, lambda config: n_cuts(config), {"n_cuts": "auto"})
        rows[f"head = {head}"] = kept
        notes += _left_out(left_out, f"head = {head}")
    figure, more = _grid(rows, lambda config: f"m = {cuts_label(config)}", _prefixed("m = ", styles), width)
    missing = [m for m in map(str, PAPER_CUTS) if m not in labels] + (["T−1"] if "T−1" not in labels else [])
    if missing:
        notes.append(Note(f"m = {', '.join(missing)}", "no runs"))
    shown = [curve for kept in rows.values() for curve in kept]
    return figure, [seeds_line([len(curve.seeds) for curve in shown])], [*notes, *more]


def cut_styles(labels: Sequence[str]) -> dict[str, Style]:
    """Dark to light with m; both ends of the scale are always used."""
    places = [round(n * (len(SEQUENCE) - 1) / max(1, len(labels) - 1)) for n in range(len(labels))]
    lines = {"0": (0, (1, 1)), "T−1": (0, (5, 1, 1, 1))}
    return {
        label: Style(SEQUENCE[place], lines.get(label, "-"), MARKS[n % len(MARKS)])
        for n, (label, place) in enumerate(zip(labels, places, strict=True))
    }


def draw_step_reward(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel per task, a curve with the step reward and one without."""
    every = [curve for curve in curves_in(results) if isinstance(curve.config.method, DiasterConfig)]
    sources = {_source(curve.config) for curve in every}
    if "difference" not in sources:
        raise DiasterError(
            f"'{results.path}' has no runs of diaster without the step reward; "
            "train some with --method.reward-source difference."
        )
    neutral = {"reward_source": "step_reward", "relabel_every": 1}
    # Only what was also trained without r̂ can be compared with it.
    backgrounds = {_background(curve.config, neutral) for curve in every if _source(curve.config) == "difference"}
    paired, notes = papers_tasks([curve for curve in every if _background(curve.config, neutral) in backgrounds])
    kept, left_out = one_background(paired, _source, neutral)
    names = {"step_reward": "with r̂", "difference": "without r̂ (differences alone)"}
    styles = {names["step_reward"]: method_style("diaster"), names["difference"]: method_style("diaster", 1)}
    figure, more = _grid({"": kept}, lambda config: names[_source(config)], styles, width)
    for task, of_task in by_task(kept).items():
        absent = {"step_reward", "difference"} - {_source(curve.config) for curve in of_task}
        notes += [Note(f"{names[source]} on {task.title}", "no runs") for source in sorted(absent)]
    return figure, [seeds_line([len(curve.seeds) for curve in kept])], [*notes, *more, *_left_out(left_out, "diaster")]


def papers_tasks(curves: Sequence[Curve]) -> tuple[list[Curve], list[Note]]:
    """The curves on the paper's tasks; all curves where there are none."""
    kept = [curve for curve in curves if curve.config.env in PAPER_TASKS] or list(curves)
    others = dict.fromkeys(curve.task.title for curve in curves if not any(curve is one for one in kept))
    return kept, [Note(name, "not shown together with the paper's tasks") for name in others]


def one_background(
    curves: Sequence[Curve], value: Callable[[RunConfig], Hashable], neutral: dict[str, Any]
) -> tuple[list[Curve], list[Curve]]:
    """Curves with the same settings except the one that is compared; in each task the most frequent settings."""
    kept: list[Curve] = []
    for of_task in by_task(curves).values():
        counts = Counter(_background(curve.config, neutral) for curve in of_task)
        best, _ = counts.most_common(1)[0]
        taken: set[Hashable] = set()
        for curve in of_task:
            if _background(curve.config, neutral) == best and value(curve.config) not in taken:
                taken.add(value(curve.config))
                kept.append(curve)
    return kept, [curve for curve in curves if not any(curve is one for one in kept)]


def _background(config: RunConfig, neutral: dict[str, Any]) -> RunConfig:
    method = dataclasses.replace(config.method, **neutral)
    # A preset is only a name for settings; the settings themselves are compared.
    return dataclasses.replace(config, **NO_MATTER, preset="", method=method)


def _left_out(curves: Sequence[Curve], what: str) -> list[Note]:
    return [Note(f"{what} on {curve.task.title}", "further runs with other settings are not shown") for curve in curves]


def _head(config: RunConfig) -> str:
    assert isinstance(config.method, DiasterConfig)
    return config.method.head


def _source(config: RunConfig) -> str:
    assert isinstance(config.method, DiasterConfig)
    return config.method.reward_source


def _cuts_order(label: str) -> float:
    return float("inf") if label == "T−1" else float(label)


def _prefixed(prefix: str, styles: dict[str, Style]) -> dict[str, Style]:
    return {prefix + label: style for label, style in styles.items()}


def _grid(
    rows: dict[str, list[Curve]], label: Callable[[RunConfig], str], styles: dict[str, Style], width: float
) -> tuple[Figure, list[Note]]:
    """A row of panels for each name (several where they do not fit in one), one task in each panel."""
    tasks = list(by_task([curve for curves in rows.values() for curve in curves]))
    across = panels_across(len(tasks), width)
    lines = [
        (name, tasks[first : first + across]) for name in rows for first in range(0, len(tasks), across)
    ]  # rows of the figure
    figure = new_figure(width, 0.35 + len(lines) * (panel_height(width, across) + 0.2))
    places = figure.subplots(len(lines), across, squeeze=False)
    notes: list[Note] = []
    handles: dict[str, Any] = {}
    for line, (name, of_line) in enumerate(lines):
        is_last = line + 1 == len(lines)
        for column, axes in enumerate(places[line]):
            if column >= len(of_line):
                axes.set_axis_off()
                continue
            task = of_line[column]
            curves = [curve for curve in rows[name] if curve.task == task]
            for curve in curves:
                text = label(curve.config)
                draw_curve(axes, curve, styles[text], text)
            for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(text, handle)
            axes.set_title(f"{task.title}\n{name}" if name else task.title)
            label_steps(axes)
            if column == 0:
                axes.set_ylabel("return of an episode")
            if is_last or (line + 2 == len(lines) and column >= len(lines[-1][1])):
                axes.set_xlabel("environment steps")
            prefix = f"{name}, " if len(rows) > 1 else ""
            if curves:
                notes += panel_notes(curves, [prefix + label(curve.config) for curve in curves])
            else:
                notes.append(Note(f"{name} on {task.title}", "no runs"))
    ordered = [text for text in styles if text in handles]
    add_legend(figure, [handles[text] for text in ordered], ordered, width)
    return figure, notes

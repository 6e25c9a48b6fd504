"""Learning curves of Diaster with one setting changed: the paper's Figures 5 and 6.

Curves share a panel where they have everything but that setting in common; every other difference makes a row of its
own, whose title says what it is.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diaster.analysis.captions import panel_notes, seeds_line
from diaster.analysis.curves import Curve, by_task, curves_in
from diaster.analysis.figures.panels import Line, Panel, draw_panels
from diaster.analysis.figures.style import SEQUENCE, VARIANT_LINES, Style, method_style
from diaster.analysis.naming import Subject, names_of
from diaster.analysis.notes import NO_RUNS, Note
from diaster.analysis.results import Results
from diaster.analysis.settings import without_what_does_not_matter
from diaster.config import DiasterConfig, RunConfig
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_CUTS = (0, 1, 5, 10, 100)
MARKS = ("o", "s", "D", "^", "v", "P")
MOST_HEADINGS = 4  # rows that are expected of every task


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
    """A panel per task, a curve per number of cut points; a row per head, and per other difference."""
    curves = [curve for curve in curves_in(results) if n_cuts(curve.config) is not None]
    if not curves:
        raise DiasterError(
            f"{results.place} has no runs of diaster with the step reward and method.segments=all, which alone have "
            "cut points; train some with --method.segments all --method.n-cuts M."
        )
    labels = sorted({cuts_label(curve.config) for curve in curves}, key=_cuts_order)
    styles = {f"m = {label}": style for label, style in cut_styles(labels).items()}
    missing = [m for m in map(str, PAPER_CUTS) if m not in labels] + (["T−1"] if "T−1" not in labels else [])
    notes = [Note(f"m = {', '.join(missing)}", NO_RUNS)] if missing else []
    curves.sort(key=lambda curve: ("final", "cumulative").index(_head(curve)))
    rows = _rows(curves, {"n_cuts": "auto", "head": "cumulative"}, lambda curve: f"head = {_head(curve)}")
    figure, more = draw_rows(rows, lambda curve: f"m = {cuts_label(curve.config)}", styles, width)
    return figure, [seeds_line(curves)], [*notes, *more]


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
    neutral = {"reward_source": "step_reward", "relabel_every": 1}
    # Only what was also trained without r̂ can be compared with it.
    without = {_background(curve.config, neutral) for curve in every if _source(curve) == "difference"}
    if not without:
        raise DiasterError(
            f"{results.place} has no runs of diaster without the step reward; "
            "train some with --method.reward-source difference."
        )
    paired = [curve for curve in every if _background(curve.config, neutral) in without]
    names = {"step_reward": "with r̂", "difference": "without r̂ (differences alone)"}
    styles = {names["step_reward"]: method_style("diaster"), names["difference"]: method_style("diaster", 1)}
    rows = _rows(paired, neutral, lambda _: "")
    figure, notes = draw_rows(rows, lambda curve: names[_source(curve)], styles, width)
    for row, curves in rows.items():
        for task, of_task in by_task(curves).items():
            absent = sorted(names.keys() - {_source(curve) for curve in of_task})
            where = f"{task.title}, {row}" if row else task.title
            notes += [Note(f"{names[source]} on {where}", NO_RUNS) for source in absent]
    others = len(every) - len(paired)
    if others:
        notes.append(
            Note(
                f"{others} other curve{'s' * (others > 1)} of diaster",
                "not compared, no run without r̂ has the same settings",
            )
        )
    return figure, [seeds_line(paired)], notes


def _background(config: RunConfig, neutral: dict[str, Any]) -> RunConfig:
    """All that matters of a run but the settings that are compared."""
    method = dataclasses.replace(config.method, **neutral)
    # A preset is only a name for settings; the settings themselves are compared.
    return dataclasses.replace(without_what_does_not_matter(config), preset="default", method=method)


def _rows(curves: Sequence[Curve], neutral: dict[str, Any], heading: Callable[[Curve], str]) -> dict[str, list[Curve]]:
    """Curves with everything in common but the setting that is compared, by what tells them from the others."""
    backgrounds = [_background(curve.config, neutral) for curve in curves]
    distinct = list(dict.fromkeys(backgrounds))
    names = dict(zip(distinct, names_of([Subject(config, "", "") for config in distinct]), strict=True))
    rows: dict[str, list[Curve]] = {}
    for curve, background in zip(curves, backgrounds, strict=True):
        kind, _, settings = names[background].partition(", ")
        parts = [heading(curve), kind.removeprefix("diaster").strip(" ()"), settings]
        rows.setdefault(", ".join(filter(None, parts)), []).append(curve)
    return rows


def draw_rows(
    rows: dict[str, list[Curve]], label: Callable[[Curve], str], styles: dict[str, Style], width: float
) -> tuple[Figure, list[Note]]:
    """A row of panels for each group of curves, one task in each panel."""
    tasks = list(by_task(curve for curves in rows.values() for curve in curves))
    groups, notes = [], []
    for name, curves in rows.items():
        found = by_task(curves)
        panels = []
        for task in sorted(found, key=tasks.index):
            lines = _lines(found[task], label, styles)
            panels.append(Panel(f"{task.title}\n{name}" if name else task.title, lines))
            of_row = f", {name}" if len(rows) > 1 and name else ""
            notes += panel_notes([line.curve._replace(name=line.label + of_row) for line in lines])
        groups.append(panels)
        if len(rows) <= MOST_HEADINGS and name:
            notes += [Note(f"{name} on {task.title}", NO_RUNS) for task in tasks if task not in found]
    return draw_panels(groups, width), notes


def _lines(curves: Sequence[Curve], label: Callable[[Curve], str], styles: dict[str, Style]) -> list[Line]:
    """The curves of a panel, in the order of the legend; folders tell two with the same value apart."""
    lines: list[Line] = []
    counts = Counter(map(label, curves))
    for curve in sorted(curves, key=lambda curve: list(styles).index(label(curve))):
        text = label(curve)
        if counts[text] > 1:
            text = f"{text}, in {curve.folders[0]}"
        again = sum(label(line.curve) == label(curve) for line in lines)
        style = styles[label(curve)]
        lines.append(
            Line(curve, style._replace(line=VARIANT_LINES[again % len(VARIANT_LINES)]) if again else style, text)
        )
    return lines


def _head(curve: Curve) -> str:
    assert isinstance(curve.config.method, DiasterConfig)
    return curve.config.method.head


def _source(curve: Curve) -> str:
    assert isinstance(curve.config.method, DiasterConfig)
    return curve.config.method.reward_source


def _cuts_order(label: str) -> float:
    return float("inf") if label == "T−1" else float(label)

"""Learning curves for how often feedback comes: a number for every step, for more and more of them, for an episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diaster.analysis.captions import seeds_line
from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.figures.ablations import cut_styles, draw_rows
from diaster.analysis.figures.style import method_style
from diaster.analysis.naming import Subject, names_of
from diaster.analysis.notes import NO_RUNS, Note
from diaster.analysis.results import Results
from diaster.analysis.settings import without_what_does_not_matter
from diaster.config import RunConfig
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPECTED: tuple[int | str, ...] = (1, 10, 100, 500, "episode")  # those of experiments/feedback.toml
REFERENCE = "dense (reference)"


def draw_feedback(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel per task, a curve per interval, `dense` dashed where it was trained; a row per other difference."""
    every = curves_in(results)
    compared = [curve for curve in every if curve.method != "dense" and curve.config.feedback_every != "environment"]
    # Only what was also trained with feedback in pieces has anything to be compared with.
    cut = {_background(curve.config) for curve in compared if curve.config.feedback_every != "episode"}
    if not cut:
        raise DiasterError(
            f"{results.place} has no runs with a number of feedback for every few steps; "
            "train some with --feedback-every 100."
        )
    paired = [curve for curve in compared if _background(curve.config) in cut]
    rows = _rows(paired)
    for curves in rows.values():
        references = [_reference(every, curve) for curve in curves]
        curves += {one.paths: one for one in references if one is not None}.values()
    intervals = sorted({curve.config.feedback_every for curve in paired}, key=_order)
    styles = {**cut_styles([label_of(interval) for interval in intervals]), REFERENCE: method_style("dense")}
    figure, notes = draw_rows(rows, _label, styles, width)
    missing = [label_of(interval) for interval in EXPECTED if interval not in intervals]
    if missing:
        notes.append(Note(f"feedback {', '.join(missing)}", NO_RUNS))
    n_others = sum(curve.method != "dense" for curve in every) - len(paired)
    if n_others:
        what = "not compared, no run with the same settings has a number for every few steps"
        notes.append(Note(f"{n_others} other curve{'s' * (n_others > 1)}", what))
    shown = [curve for curves in rows.values() for curve in curves]
    return figure, ["A number of feedback is the sum of the rewards since the last.", seeds_line(shown)], notes


def label_of(interval: int | str) -> str:
    """How often a number comes, in words."""
    if isinstance(interval, str):
        return "once an episode"
    return "every step" if interval == 1 else f"every {interval:,} steps"


def _label(curve: Curve) -> str:
    return REFERENCE if curve.method == "dense" else label_of(curve.config.feedback_every)


def _order(interval: int | str) -> float:
    return float(interval) if isinstance(interval, int) else float("inf")


def _background(config: RunConfig) -> RunConfig:
    """All that matters of a run but the interval. A preset is only a name for settings; they are compared."""
    return dataclasses.replace(without_what_does_not_matter(config), preset="default", feedback_every="episode")


def _rows(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Curves with everything in common but the interval, by what tells them from others; one row needs no name."""
    backgrounds = [_background(curve.config) for curve in curves]
    distinct = list(dict.fromkeys(backgrounds))
    names = dict(zip(distinct, names_of([Subject(config, "", "") for config in distinct]), strict=True))
    rows: dict[str, list[Curve]] = {}
    for curve, background in zip(curves, backgrounds, strict=True):
        rows.setdefault(names[background], []).append(curve)
    return rows if len(rows) > 1 else {"": next(iter(rows.values()))}


def _reference(every: Sequence[Curve], curve: Curve) -> Curve | None:
    """The plainest curve of `dense` with the same agent on the same task."""
    found = [
        one
        for one in every
        if one.method == "dense" and one.task == curve.task and one.config.agent == curve.config.agent
    ]
    return min(found, key=lambda one: one.variant, default=None)

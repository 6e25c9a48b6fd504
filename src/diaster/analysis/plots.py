"""Learning curves of runs that the user names: `diaster plot`, and a curve for the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diaster.analysis.curves import Curve, curve_of, named
from diaster.analysis.figures.panels import (
    add_legend,
    beyond_notes,
    clipped,
    draw_curve,
    label_steps,
    legend_handle,
    limit_values,
)
from diaster.analysis.figures.style import (
    add_caption,
    check_picture,
    drawing,
    method_style,
    new_figure,
    write_picture,
)
from diaster.analysis.metrics import DRAWN, RETURN, check_metric, metric_of
from diaster.analysis.notes import Note, sentences, steps_text
from diaster.analysis.results import RecordedRun, seed_evaluations, settings_shown
from diaster.errors import DiasterError, printable, shortened
from diaster.rundir.files import damaged, is_file
from diaster.rundir.records import DONE, PROGRESS, read_config
from diaster.rundir.results import read_progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 5.0  # inches
HIDDEN = "hidden rewards"


def learning_curve(path: Path) -> Curve:
    """The curve of a run directory, up to the last evaluation that every seed has."""
    config = read_config(path)
    has_table = os.path.lexists(path / PROGRESS)  # it comes with the first evaluation
    evaluations = seed_evaluations(path, config, read_progress(path)) if has_table else {}
    if not evaluations:
        raise DiasterError(f"'{path}' has no evaluation yet; plot it when its first one is done.")
    shortest = min(rows.n_rows for rows in evaluations.values())
    if len({tuple(rows["step"][:shortest].tolist()) for rows in evaluations.values()}) > 1:
        raise damaged(path / PROGRESS, "its seeds were not evaluated at the same steps")
    config = settings_shown(config, evaluations)
    return curve_of([RecordedRun(path, config, evaluations, is_file(path / DONE), folder=path.resolve().name)])


def curves_of(paths: Sequence[Path]) -> list[Curve]:
    """A curve for each run directory, with names that tell them apart; all of one environment."""
    if not paths:
        raise DiasterError("no run directory was given; there is nothing to plot.")
    different = list(dict.fromkeys(paths))
    curves = [learning_curve(path) for path in different]
    if len({curve.folders for curve in curves}) < len(curves):
        curves = [curve._replace(folders=(str(path),)) for path, curve in zip(different, curves, strict=True)]
    curves = named(curves)
    envs = {curve.task.env for curve in curves}
    if len(envs) > 1:
        raise DiasterError(
            f"these runs are of different environments ({', '.join(sorted(envs))}); plot those of one at a time."
        )
    if len({curve.task for curve in curves}) > 1:
        curves = [curve._replace(name=f"{curve.name}, T = {curve.config.horizon}") for curve in curves]
    return curves


def plot(*runs: str | Path, metric: str = RETURN) -> Figure:
    """The learning curves of one or several runs of an environment, in one figure of Matplotlib.

    `metric` is a column of their tables.

    Examples:
        >>> diaster.plot("runs/hopper", "runs/hopper-rrd").savefig("hopper.png")
        >>> diaster.plot("runs/hopper", metric="fit_r2")
    """
    return _drawn([Path(run) for run in runs], metric)[0]


def plot_learning_curves(paths: Sequence[Path], out: Path, metric: str = RETURN) -> list[str]:
    """Draw a column of the tables of some runs against environment steps into a file; returns the caption."""
    check_picture(out)
    figure, lines = _drawn(paths, metric)
    write_picture(figure, out)
    return lines


def _drawn(paths: Sequence[Path], metric: str) -> tuple[Figure, list[str]]:
    check_metric(metric, DRAWN)
    curves = curves_of(paths)
    check_metric(metric, [name for curve in curves for name in DRAWN if curve.has(name)])
    return figure_of(curves, metric)


@drawing()
def figure_of(curves: Sequence[Curve], metric: str = RETURN) -> tuple[Figure, list[str]]:
    """A metric over steps, mean and standard error with every seed as a thin line, and what it does not show."""
    shown = [curve for curve in curves if curve.has(metric)]
    figure = new_figure(WIDTH, 3.0)
    axes = figure.subplots()
    styles = [method_style(curve.method, curve.variant) for curve in shown]
    for curve, style in reversed(list(zip(shown, styles, strict=True))):
        if len(curve.seeds) > 1:
            seeds = clipped(curve.values(metric), metric)
            axes.plot(curve.steps, seeds, color=style.colour, linestyle=style.line, alpha=0.25, linewidth=0.8)
        draw_curve(axes, curve, style, metric, thickness=2.0)
    limit_values(axes, np.concatenate([curve.values(metric).ravel() for curve in shown]), metric)
    label_steps(axes, WIDTH)
    axes.set_xlabel("environment steps per seed")
    axes.set_ylabel(metric_of(metric).title)
    seen = sorted({seen_by(curve) for curve in shown} - {HIDDEN}) or [HIDDEN]
    are_alike = len(seen) == 1
    told = seen[0] if are_alike else "feedback of several kinds"
    axes.set_title(f"{printable(shortened(shown[0].task.env))}, learnt from {told}")
    labels = [curve_label(curve, with_feedback=not are_alike) for curve in shown]
    add_legend(figure, [legend_handle(style) for style in styles], labels, WIDTH)
    notes = beyond_notes(shown, metric)
    notes += [Note(curve.name, f"no {metric}") for curve in curves if not curve.has(metric)]
    lines = sentences(notes)
    add_caption(figure, lines)
    return figure, lines


def seen_by(curve: Curve) -> str:
    """What a curve's runs were told of their episodes; `dense` learns from what is hidden from every method."""
    if curve.method == "dense":
        return HIDDEN
    every, horizon = curve.config.feedback_every, curve.config.horizon
    if isinstance(every, int) and not (isinstance(horizon, int) and every >= horizon):
        numbers = "one number per step" if every == 1 else f"one number per {every:,} steps"
    else:
        numbers = "one number per span" if every == "environment" else "one number per episode"
    return f"{numbers} and known rewards" if curve.config.known_rewards else numbers


def curve_label(curve: Curve, with_feedback: bool = False) -> str:
    """Its name, the number of its seeds and, on demand, what it learns from, which is always said of `dense`."""
    seen = seen_by(curve)
    sees = f", sees {'the ' * (seen == HIDDEN)}{seen}" if with_feedback or seen == HIDDEN else ""
    return f"{curve.name}, {len(curve.seeds)} seed{'s' * (len(curve.seeds) > 1)}{sees}"


def terminal_curve(curve: Curve, width: int = 60, height: int = 10) -> str:
    """The mean as text, for the terminal: a column per evaluation, eighths of a line high."""
    low, high = float(min(0.0, curve.mean.min())), float(max(0.0, curve.mean.max()))
    span = (high - low) or 1.0
    places = np.linspace(0, len(curve.mean) - 1, min(width, max(len(curve.mean), 2)))
    levels = (np.interp(places, np.arange(len(curve.mean)), curve.mean) - low) / span * height * 8
    widen = max(1, width // len(levels))
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for row in reversed(range(height)):
        cells = "".join(blocks[int(np.clip(round(level - row * 8), 0, 8))] * widen for level in levels)
        label = high if row == height - 1 else low if row == 0 else None
        lines.append(f"{'' if label is None else f'{label:,.4g}':>9} │{cells}")
    axis = f"{'':>9} └{'─' * (widen * len(levels))}"
    last = f"{steps_text(float(curve.steps[-1]))} steps"
    return "\n".join([*lines, axis, f"{'':>10} {last:>{widen * len(levels)}}"])

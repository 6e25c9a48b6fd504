"""Learning curves of runs that the user names: `diaster plot`, and a curve for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from diaster.analysis.curves import Curve, curve_of
from diaster.analysis.figures.style import check_picture, drawing, label_steps, method_style, new_figure, write_picture
from diaster.analysis.notes import steps_text
from diaster.analysis.results import RecordedRun, seed_evaluations
from diaster.errors import DiasterError, printable, shortened
from diaster.rundir.files import damaged, is_file
from diaster.rundir.records import DONE, PROGRESS, read_config
from diaster.rundir.results import read_progress


def learning_curve(path: Path) -> Curve:
    """The curve of a run directory, up to the last evaluation that every seed has."""
    config, table = read_config(path), read_progress(path)
    evaluations = seed_evaluations(path, config, table)
    if not evaluations:
        raise DiasterError(f"'{path}' has no evaluation yet; plot it when its first one is done.")
    shortest = min(len(steps) for steps, _ in evaluations.values())
    if len({tuple(steps[:shortest].tolist()) for steps, _ in evaluations.values()}) > 1:
        raise damaged(path / PROGRESS, "its seeds were not evaluated at the same steps")
    return curve_of([RecordedRun(path, config, evaluations, is_file(path / DONE))])


def curve_label(curve: Curve) -> str:
    """The method, its preset and the number of seeds; `dense` learns from what is hidden from every method."""
    what = "upper reference: sees the hidden rewards" if curve.method == "dense" else curve.config.preset
    return f"{curve.method} ({what}), {len(curve.seeds)} seed{'s' * (len(curve.seeds) > 1)}"


def plot_learning_curves(paths: list[Path], out: Path) -> None:
    """Return against environment steps: mean, standard error, and every seed as a thin line."""
    check_picture(out)
    if not paths:
        raise DiasterError("no run directory was given; there is nothing to plot.")
    curves = [learning_curve(path) for path in paths]
    envs = {curve.config.env for curve in curves}
    if len(envs) > 1:
        raise DiasterError(
            f"these runs are of different environments ({', '.join(sorted(envs))}); plot those of one at a time."
        )
    with drawing():
        figure = new_figure(5.0, 3.4)
        axes = figure.subplots()
        seen: dict[str, int] = {}
        for curve in curves:
            style = method_style(curve.method, seen.get(curve.method, 0))
            seen[curve.method] = seen.get(curve.method, 0) + 1
            drawn: Any = {"color": style.colour, "linestyle": style.line}
            if curve.returns.shape[1] > 1:
                axes.plot(curve.steps, curve.returns, alpha=0.25, linewidth=0.8, **drawn)
                low, high = curve.mean - curve.error, curve.mean + curve.error
                axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.2, linewidth=0)
            marker = "o" if len(curve.steps) <= 30 else None  # more of them would hide the line
            axes.plot(
                curve.steps, curve.mean, linewidth=2.0, label=curve_label(curve), marker=marker, markersize=3, **drawn
            )
        axes.set_xlabel("environment steps per seed")
        axes.set_ylabel("return of an episode")
        told = "hidden rewards" if all(curve.method == "dense" for curve in curves) else "one number per episode"
        axes.set_title(f"{printable(shortened(curves[0].config.env))}, learnt from {told}")
        label_steps(axes)
        axes.legend(loc="best")
        write_picture(figure, out)


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

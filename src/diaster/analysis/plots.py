"""Learning curves of runs that the user names: `diaster plot`, and a curve for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import seed_evaluations, steps_text
from diaster.analysis.figures.style import (
    check_picture,
    drawing,
    label_steps,
    method_style,
    new_figure,
    write_picture,
)
from diaster.errors import DiasterError
from diaster.rundir.files import damaged
from diaster.rundir.records import PROGRESS, read_config
from diaster.rundir.results import Table, read_progress


class Curve(NamedTuple):
    """A learning curve: mean and standard error over seeds at each evaluation."""

    label: str
    env: str
    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    of_seeds: NDArray[np.float64]  # [evaluations, seeds]
    method: str = "diaster"

    @property
    def is_reference(self) -> bool:
        """`dense` learns from what is hidden from every method."""
        return self.method == "dense"


def learning_curve(path: Path) -> Curve:
    """The curve of a run directory, up to the last evaluation that every seed has."""
    config, table = read_config(path), read_progress(path)
    seed_evaluations(path, config, table)
    returns, steps = by_seed(table, "return_mean"), by_seed(table, "step")
    if not len(returns):
        raise DiasterError(f"'{path}' has no evaluation yet; plot it when its first one is done.")
    if (steps != steps[:, :1]).any():
        raise damaged(path / PROGRESS, "its seeds were not evaluated at the same steps")
    n_seeds = returns.shape[1]
    error = returns.std(axis=1, ddof=1) / np.sqrt(n_seeds) if n_seeds > 1 else np.zeros(len(returns))
    is_reference = config.method.name == "dense"
    what = "upper reference: sees the hidden rewards" if is_reference else config.preset
    label = f"{config.method.name} ({what}), {n_seeds} seed{'s' * (n_seeds > 1)}"
    return Curve(label, config.env, steps[:, 0], returns.mean(axis=1), error, returns, config.method.name)


def by_seed(table: Table, column: str) -> NDArray[Any]:
    """A column with a row per evaluation and a column per seed.  # [evaluations, S]"""
    seeds = list(dict.fromkeys(table["seed"].tolist()))
    of_seed = [table.where(seed=seed)[column] for seed in seeds]
    shortest = min((len(values) for values in of_seed), default=0)
    return np.stack([values[:shortest] for values in of_seed], axis=1) if shortest else np.zeros((0, 0))


def plot_learning_curves(paths: list[Path], out: Path) -> None:
    """Return against environment steps: mean, standard error, and every seed as a thin line."""
    check_picture(out)
    if not paths:
        raise DiasterError("no run directory was given; there is nothing to plot.")
    curves = [learning_curve(path) for path in paths]
    envs = {curve.env for curve in curves}
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
            if curve.of_seeds.shape[1] > 1:
                axes.plot(curve.steps, curve.of_seeds, alpha=0.25, linewidth=0.8, **drawn)
                low, high = curve.mean - curve.error, curve.mean + curve.error
                axes.fill_between(curve.steps, low, high, color=style.colour, alpha=0.2, linewidth=0)
            marker = "o" if len(curve.steps) <= 30 else None  # more of them would hide the line
            axes.plot(curve.steps, curve.mean, linewidth=2.0, label=curve.label, marker=marker, markersize=3, **drawn)
        axes.set_xlabel("environment steps per seed")
        axes.set_ylabel("return of an episode")
        told = "hidden rewards" if all(curve.is_reference for curve in curves) else "one number per episode"
        axes.set_title(f"{curves[0].env}, learnt from {told}")
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

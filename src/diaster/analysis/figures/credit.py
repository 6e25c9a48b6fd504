"""One episode over time: frames, learnt and true reward of every step, and the running sums of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.figures.recorded import decomposers_first, recordings
from diaster.analysis.figures.style import PROXY, SMALL, TRUTH, add_legend, new_figure
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.errors import DiasterError, shortened
from diaster.rundir.recordings import Rollouts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_credit(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """The first recorded episode of a run; a run with frames and true rewards is preferred."""
    curve, path, recorded = _chosen(results)
    steps = recorded.steps_of(0)
    proxy, true = recorded.step_reward[steps], recorded.true_reward[steps]
    is_known = not np.isnan(true).any()
    shown = _frames_shown(len(recorded.frames), width)
    n_frames = len(shown)
    height = 2.6 + (width / max(n_frames, 1) if n_frames else 0.0)
    figure = new_figure(width, height)
    shares = ([width / n_frames] if n_frames else []) + [1.3, 1.0]
    rows = figure.add_gridspec(len(shares), max(n_frames, 1), height_ratios=shares)
    for column, number in enumerate(shown):
        axes = figure.add_subplot(rows[0, column])
        axes.imshow(recorded.frames[number])
        axes.set_axis_off()
        axes.set_title(f"t = {recorded.frame_step[number]}", fontsize=SMALL, pad=2)
    of_steps = figure.add_subplot(rows[-2, :])
    of_sums = figure.add_subplot(rows[-1, :], sharex=of_steps)
    time = np.arange(len(proxy))
    handles, labels = [], []
    if is_known:
        handles += of_steps.plot(time, true, color=TRUTH, linewidth=0.9, linestyle="--")
        labels.append("true reward r")
        of_sums.plot(time, np.cumsum(true), color=TRUTH, linestyle="--")
    handles += of_steps.plot(time, proxy, color=PROXY, linewidth=0.9)
    labels.append("learnt reward r̂")
    of_sums.plot(time, np.cumsum(proxy), color=PROXY)
    total = float(recorded.episode_return[0])
    of_sums.axhline(total, color="#8a8a8a", linewidth=0.7, linestyle=":")
    of_sums.annotate(
        f"return {total:,.4g}".replace("-", "−"),
        (0.0, total),
        xycoords=("axes fraction", "data"),
        xytext=(3, -2),
        textcoords="offset points",
        fontsize=SMALL,
        va="top",
        color="#555555",
    )
    of_steps.set_ylabel("reward per step")
    of_sums.set_ylabel("running sum")
    of_sums.set_xlabel("time t (steps)")
    of_steps.tick_params(labelbottom=False)
    for axes in (of_steps, of_sums):
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.margins(x=0.01)
    add_legend(figure, handles, labels, width)
    who = f"{curve.task.title}, {curve.method}, seed {recorded.seed[0]}"
    caption = f"{who}: one episode of the policy ({shortened(path.name)})."
    notes = [] if n_frames else [Note("frames", "none were recorded; 'diaster record' found nothing to draw them with")]
    if not is_known:
        notes.append(Note("true reward", "the environment has none"))
    return figure, [caption], notes


def _frames_shown(n: int, width: float) -> list[int]:
    """The frames to show, from the first to the last: as many as can be recognised at this width."""
    most = max(2, int(width / 0.8))
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist() if n else []


def _chosen(results: Results) -> tuple[Curve, Path, Rollouts]:
    best: tuple[Curve, Path, Rollouts] | None = None
    for curve in decomposers_first(curves_in(results)):
        for path, recorded in recordings(curve):
            if len(recorded.frames) and not np.isnan(recorded.true_reward[recorded.steps_of(0)]).any():
                return curve, path, recorded
            best = best or (curve, path, recorded)
    if best is None:
        raise DiasterError(f"no run in '{results.path}' has recorded episodes; record some with 'diaster record RUN'.")
    return best

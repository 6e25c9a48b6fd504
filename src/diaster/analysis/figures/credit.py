"""One episode over time: frames, learnt and true reward of every step, and the running sums of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.figures.panels import add_legend
from diaster.analysis.figures.recorded import learnt_first, recorded_paths
from diaster.analysis.figures.style import SMALL, TRUTH, new_figure
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.config import METHODS
from diaster.errors import DiasterError, shortened
from diaster.rundir.recordings import Rollouts, read_rollouts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_credit(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """The first recorded episode of a run; a run with frames and true rewards is preferred."""
    curve, path, recorded, others = _chosen(results)
    steps = recorded.steps_of(0)
    true = recorded.true_reward[steps]
    is_known = not np.isnan(true).any()
    frames = [(recorded.frame_step[n], recorded.frames[n]) for n in _frames_shown(len(recorded.frames), width)]
    total = float(recorded.episode_return[0])
    shown = true if is_known else None
    figure = draw_episode(curve.method, recorded.step_reward[steps], shown, total, width, frames)
    who = f"{curve.task.title}, {curve.name}, seed {recorded.seed[0]}"
    caption = f"{who}: one episode of the policy ({shortened(path.name)})."
    if others:
        caption += f" {others} other recorded run{'s' * (others > 1)} can be chosen with --only."
    notes = [] if frames else [Note("frames", "none were recorded; 'diaster record' found nothing to draw them with")]
    if not is_known:
        notes.append(Note("true reward", "the environment has none"))
    return figure, [caption], notes


def draw_episode(
    method: str,
    proxy: NDArray[np.float64],
    true: NDArray[Any] | None,
    total: float,
    width: float,
    frames: Sequence[tuple[int, NDArray[np.uint8]]] = (),
) -> Figure:
    """Frames with their steps, learnt and true reward of every step, and their running sums up to the return."""
    learnt, n_frames = METHODS[method].colour, len(frames)
    height = 2.6 + (width / max(n_frames, 1) if n_frames else 0.0)
    figure = new_figure(width, height)
    shares = ([width / n_frames] if n_frames else []) + [1.3, 1.0]
    rows = figure.add_gridspec(len(shares), max(n_frames, 1), height_ratios=shares)
    for column, (step, picture) in enumerate(frames):
        axes = figure.add_subplot(rows[0, column])
        axes.imshow(picture)
        axes.set_axis_off()
        axes.set_title(f"t = {step}", fontsize=SMALL, pad=2)
    of_steps = figure.add_subplot(rows[-2, :])
    of_sums = figure.add_subplot(rows[-1, :], sharex=of_steps)
    time = np.arange(len(proxy))
    handles, labels = [], []
    if true is not None:
        handles += of_steps.plot(time, true, color=TRUTH, linewidth=0.9, linestyle="--")
        labels.append("true reward r")
        of_sums.plot(time, np.cumsum(true), color=TRUTH, linestyle="--")
    handles += of_steps.plot(time, proxy, color=learnt, linewidth=0.9)
    labels.append("learnt reward r̂")
    of_sums.plot(time, np.cumsum(proxy), color=learnt)
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
    return figure


def _frames_shown(n: int, width: float) -> list[int]:
    """The frames to show, from the first to the last: as many as can be recognised at this width."""
    most = max(2, int(width / 0.8))
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist() if n else []


def _chosen(results: Results) -> tuple[Curve, Path, Rollouts, int]:
    """The recording that shows most: with frames and true rewards if there is one. Also: how many others there are."""
    recorded = [(curve, path) for curve in learnt_first(curves_in(results)) for path in recorded_paths(curve)]
    best: tuple[Curve, Path, Rollouts] | None = None
    for curve, path in recorded:
        found = read_rollouts(path)
        is_complete = len(found.frames) > 0 and not np.isnan(found.true_reward[found.steps_of(0)]).any()
        if is_complete or best is None:
            best = curve, path, found
        if is_complete:
            break
    if best is None:
        raise DiasterError(
            f"no run in {results.place} whose step rewards are learnt has recorded episodes; "
            "record some with 'diaster record RUN'."
        )
    return *best, len(recorded) - 1

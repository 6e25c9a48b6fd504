"""Forward motion of sampled steps against their learnt and their true reward: the paper's Figure 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve, TaskKey, by_task, curves_in, plainest
from diaster.analysis.figures.recorded import decomposers_first, recordings, unrecorded_notes
from diaster.analysis.figures.style import (
    PROXY,
    SMALL,
    TRUTH,
    add_legend,
    label_grid,
    new_figure,
    panel_height,
    panels_across,
)
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.analysis.statistics import spearman
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_ROBOTS = ("Hopper", "Swimmer", "Walker2d", "Humanoid")
MOST_POINTS = 700


def draw_proxy_reward(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel per robot."""
    panels, notes = _panels(results)
    if not panels:
        raise DiasterError(
            f"no run in '{results.path}' has recorded steps of a robot that moves forward; train one, e.g. on "
            "Hopper-v5, and record it with 'diaster record RUN'."
        )
    across = panels_across(len(panels), width)
    down = -(-len(panels) // across)
    figure = new_figure(width, 0.3 + down * (panel_height(width, across, 0.85) + 0.1))
    places = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, (curve, moved, proxy, true) in zip(places.flat, panels, strict=False):
        random = np.random.default_rng(0)
        chosen = random.permutation(len(moved))[:MOST_POINTS]
        known = ~np.isnan(true)
        shown = chosen[known[chosen]]
        point: Any = {"s": 5, "alpha": 0.45, "linewidths": 0, "rasterized": True}
        if len(shown):
            handles["true reward r"] = axes.scatter(moved[shown], true[shown], color=TRUTH, marker="s", **point)
        handles["learnt reward r̂"] = axes.scatter(moved[chosen], proxy[chosen], color=PROXY, marker="o", **point)
        lines = [f"ρ(r̂) = {_number(spearman(moved, proxy))}"]
        if known.any():
            lines.append(f"ρ(r) = {_number(spearman(moved[known], true[known]))}")
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        axes.text(0.03, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=SMALL, bbox=box)
        axes.margins(y=0.18)
        method = "" if curve.method == "diaster" else f", {curve.method}"
        axes.set_title(f"{curve.task.title}{method}")
        axes.grid(True)
        axes.set_axisbelow(True)
    label_grid(places, len(panels), "forward motion (m/step)", "reward of the step")
    add_legend(figure, list(handles.values()), list(handles), width)
    caption = (
        "Steps of recorded episodes, from the policy's to random behaviour. ρ is Spearman's rank correlation with "
        "forward motion, over all recorded steps; points are a sample."
    )
    return figure, [caption], notes


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−")


Panel = tuple[Curve, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _panels(results: Results) -> tuple[list[Panel], list[Note]]:
    """Motion and rewards of all recorded steps, for each of the paper's robots; for all robots if those are missing."""
    tasks = by_task(curves_in(results))
    wanted = {task: curves for task, curves in tasks.items() if robot(task) in PAPER_ROBOTS} or tasks
    panels: list[Panel] = []
    notes: list[Note] = []
    for _, curves in sorted(wanted.items(), key=lambda item: _robot_order(item[0])):
        candidates = list(decomposers_first(plainest(curves)[0]))
        for curve in candidates:
            found = [recording for _, recording in recordings(curve) if recording.position.shape[1] >= 1]
            if found:
                moved = [recording.next_position[:, 0] - recording.position[:, 0] for recording in found]
                proxy, true = ([getattr(one, name) for one in found] for name in ("step_reward", "true_reward"))
                panels.append((curve, np.concatenate(moved), np.concatenate(proxy), np.concatenate(true)))
                break
        else:
            notes += unrecorded_notes(candidates[:1])
    absent = [name for name in PAPER_ROBOTS if name not in {robot(task) for task in wanted}]
    if absent and len(absent) < len(PAPER_ROBOTS):
        notes.append(Note(", ".join(absent), "no runs"))
    return panels, notes


def robot(task: TaskKey) -> str:
    """The name of an environment without its version."""
    return task.env.partition("-")[0]


def _robot_order(task: TaskKey) -> int:
    name = robot(task)
    return PAPER_ROBOTS.index(name) if name in PAPER_ROBOTS else len(PAPER_ROBOTS)

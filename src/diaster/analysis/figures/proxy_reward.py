"""Forward motion of sampled steps against their learnt and their true reward: the paper's Figure 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve, TaskKey, by_task, curves_in
from diaster.analysis.figures.panels import add_legend, check_panels, label_grid, panel_height, panels_across
from diaster.analysis.figures.recorded import learnt_first, recordings, unrecorded_notes
from diaster.analysis.figures.style import SMALL, TRUTH, new_figure, wrapped_title
from diaster.analysis.notes import NO_RUNS, Note
from diaster.analysis.results import Results
from diaster.analysis.statistics import spearman
from diaster.config import METHODS
from diaster.errors import DiasterError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_ROBOTS = ("Hopper", "Swimmer", "Walker2d", "Humanoid")
MOST_POINTS = 700


def draw_proxy_reward(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel for each recorded kind of run on each robot."""
    panels, notes = _panels(results)
    if not panels:
        raise DiasterError(
            f"no run in {results.place} whose step rewards are learnt has recorded steps of a robot that moves "
            "forward; train one, e.g. on Hopper-v5, and record it with 'diaster record RUN'."
        )
    check_panels(len(panels))
    across = panels_across(len(panels), width)
    down = -(-len(panels) // across)
    titles = max(len(wrapped_title(curve.name, width / across)) for curve, *_ in panels)
    is_single = len({curve.name for curve, *_ in panels}) == 1
    figure = new_figure(width, 0.15 + down * (panel_height(width, across, 0.85) + 0.1 + 0.12 * titles))
    places = figure.subplots(down, across, squeeze=False)
    n_methods = len({curve.method for curve, *_ in panels})
    handles: dict[str, Any] = {}
    for axes, (curve, moved, proxy, true) in zip(places.flat, panels, strict=False):
        random = np.random.default_rng(0)
        chosen = random.permutation(len(moved))[:MOST_POINTS]
        known = ~np.isnan(true)
        shown = chosen[known[chosen]]
        point: Any = {"s": 5, "alpha": 0.45, "linewidths": 0, "rasterized": True}
        if len(shown):
            handles["true reward r"] = axes.scatter(moved[shown], true[shown], color=TRUTH, marker="s", **point)
        of = METHODS[curve.method]
        name = "learnt reward r̂" if n_methods == 1 else f"r̂ of {curve.method}"
        handles[name] = axes.scatter(moved[chosen], proxy[chosen], color=of.colour, marker=of.marker, **point)
        lines = [f"ρ(r̂) = {_number(spearman(moved, proxy))}"]
        if known.any():
            lines.append(f"ρ(r) = {_number(spearman(moved[known], true[known]))}")
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        axes.text(0.03, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=SMALL, bbox=box)
        axes.margins(y=0.18)
        axes.set_title(
            curve.task.title if is_single else "\n".join([curve.task.title, *wrapped_title(curve.name, width / across)])
        )
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
    """Motion and rewards of all recorded steps of every curve that has them, the paper's robots first."""
    curves = learnt_first(curves_in(results))
    panels: list[Panel] = []
    notes: list[Note] = []
    tasks = by_task(curves)
    for task in sorted(tasks, key=_robot_order):
        for curve in tasks[task]:
            found = [one for one in recordings(curve) if one.position.shape[1] and one.maze is None]
            if found:
                moved = [recording.next_position[:, 0] - recording.position[:, 0] for recording in found]
                proxy, true = ([getattr(one, name) for one in found] for name in ("step_reward", "true_reward"))
                panels.append((curve, np.concatenate(moved), np.concatenate(proxy), np.concatenate(true)))
    shown = {curve.task for curve, *_ in panels}
    notes += unrecorded_notes([curve for curve in curves if curve.task in shown or robot(curve.task) in PAPER_ROBOTS])
    absent = [name for name in PAPER_ROBOTS if name not in {robot(task) for task in tasks}]
    if absent and len(absent) < len(PAPER_ROBOTS):
        notes.append(Note(", ".join(absent), NO_RUNS))
    return panels, notes


def robot(task: TaskKey) -> str:
    """The name of an environment without its version."""
    return task.env.partition("-")[0]


def _robot_order(task: TaskKey) -> int:
    name = robot(task)
    return PAPER_ROBOTS.index(name) if name in PAPER_ROBOTS else len(PAPER_ROBOTS)

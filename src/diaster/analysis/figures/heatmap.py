"""Expected future proxy reward at every place of a maze, for numbers of cut points: the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve, curves_in, task_order
from diaster.analysis.figures.ablations import cuts_label, n_cuts
from diaster.analysis.figures.panels import check_panels, panels_across
from diaster.analysis.figures.recorded import learnt_first, recorded_paths, recordings, unrecorded_notes
from diaster.analysis.figures.style import NOTHING, new_figure, wrapped_title
from diaster.analysis.notes import Note
from diaster.analysis.results import Results
from diaster.config.limits import MOST
from diaster.errors import DiasterError
from diaster.rundir.recordings import Maze, Rollouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PAPER_CUTS = ("0", "1", "10", "T−1")
BINS_PER_CELL = 4
WALL = "#4d4d4d"


def draw_heatmap(results: Results, width: float) -> tuple[Figure, list[str], list[Note]]:
    """A panel for each recorded curve, with cut points ordered by their number."""
    curves = [curve for curve in learnt_first(curves_in(results)) if "Maze" in curve.task.env or recorded_paths(curve)]
    found = [(curve, [one for one in recordings(curve) if one.maze is not None]) for curve in curves]
    panels = sorted(((curve, recorded) for curve, recorded in found if recorded), key=lambda panel: _order(panel[0]))
    if not panels:
        raise DiasterError(
            f"no run in {results.place} whose step rewards are learnt has recorded episodes in a maze; train diaster "
            "on PointMaze_UMaze-v3 with --method.segments all and record it with 'diaster record RUN'."
        )
    check_panels(len(panels))
    mazes = {curve.task for curve, _ in panels}
    notes = unrecorded_notes([curve for curve in curves if curve.task in mazes])
    across = min(panels_across(len(panels), width), 4)
    down = -(-len(panels) // across)
    titles = _titles([curve for curve, _ in panels], 0.85 * width / across)  # the bar takes the rest
    lines = max(title.count("\n") for title in titles)
    figure = new_figure(width, 0.15 + down * (width / across * 0.82 + 0.25 + 0.12 * lines))
    places = figure.subplots(down, across, squeeze=False)
    image = None
    windows = set()
    for axes, title, (curve, recorded) in zip(places.flat, titles, panels, strict=False):
        maze = recorded[0].maze
        assert maze is not None
        horizon = curve.config.horizon if isinstance(curve.config.horizon, int) else int(recorded[0].length.max())
        window = max(1, horizon // 2)
        windows.add(window)
        values = future_rewards(recorded, maze, window, horizon)
        image = _draw_map(axes, maze, normalised(values), recorded)
        axes.set_title(title)
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in places[:, 0]:
        axes.set_ylabel("y (m)")
    for column in range(across):
        places.flat[max(place for place in range(len(panels)) if place % across == column)].set_xlabel("x (m)")
    assert image is not None
    bar = figure.colorbar(image, ax=places, location="right", shrink=0.8, pad=0.02, aspect=25)
    bar.set_label("future r̂ (0 to 1 in each panel)")
    has_cuts = any(n_cuts(curve.config) is not None for curve, _ in panels)
    absent = [m for m in PAPER_CUTS if m not in {cuts_label(curve.config) for curve, _ in panels}]
    if has_cuts and absent:
        notes.append(Note(f"m = {', '.join(absent)}", "no recorded runs"))
    where = ", ".join(dict.fromkeys(curve.task.title for curve, _ in panels))
    span = f"{min(windows)}" if len(windows) == 1 else f"{min(windows)} to {max(windows)}"
    caption = (
        f"{where}: mean sum of r̂ over the {span} steps that follow, by position, normalised in "
        "each panel; the star is the goal, light grey was not visited."
    )
    return figure, [caption], notes


def _order(curve: Curve) -> tuple[tuple[int, str, str], int, int]:
    """By maze, then by the number of cut points; curves without any come last, in the order of legends."""
    cuts = n_cuts(curve.config)
    return task_order(curve.task), MOST if cuts is None else cuts, curve.variant


def _titles(curves: Sequence[Curve], width: float) -> list[str]:
    """The number of cut points where that alone tells panels apart, else names; and the maze if there are several."""
    cuts = [None if n_cuts(curve.config) is None else f"m = {cuts_label(curve.config)}" for curve in curves]
    is_enough = None not in cuts and len(set(cuts)) == len(cuts)
    mazes = [[curve.task.title] if len({one.task for one in curves}) > 1 else [] for curve in curves]
    texts = [cut if is_enough and cut else curve.name for cut, curve in zip(cuts, curves, strict=True)]
    return ["\n".join([*maze, *wrapped_title(text, width)]) for maze, text in zip(mazes, texts, strict=True)]


def future_rewards(recorded: list[Rollouts], maze: Maze, window: int, horizon: int) -> NDArray[np.float64]:
    """The mean of Σ r̂ over the following steps, for every bin of the map; NaN where no step was.  # [rows, columns]

    All sums have the same number of steps, so that late visits count as much as early ones. Only after the early
    end of an episode nothing is added.
    """
    rows, columns = (side * BINS_PER_CELL for side in maze.walls.shape)
    left, right, bottom, top = maze.extent
    sums, counts = np.zeros((rows, columns)), np.zeros((rows, columns))
    for one in recorded:
        for episode in np.flatnonzero(one.is_spread):
            steps = one.steps_of(int(episode))
            total = np.concatenate([[0.0], np.cumsum(one.step_reward[steps])])
            length = len(total) - 1
            first = np.arange(length if length < horizon else max(1, length - window + 1))
            future = total[np.minimum(first + window, length)] - total[first]
            x, y = one.position[steps][first].T
            column = np.clip(((x - left) / (right - left) * columns).astype(int), 0, columns - 1)
            row = np.clip(((top - y) / (top - bottom) * rows).astype(int), 0, rows - 1)
            np.add.at(sums, (row, column), future)
            np.add.at(counts, (row, column), 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def normalised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scaled to 0 … 1; constant values become 0.5."""
    known = values[~np.isnan(values)]
    if not len(known) or known.max() - known.min() <= 1e-12:
        return np.where(np.isnan(values), values, 0.5)
    return np.asarray((values - known.min()) / (known.max() - known.min()), np.float64)


def _draw_map(axes: Axes, maze: Maze, values: NDArray[np.float64], recorded: list[Rollouts]) -> AxesImage:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps["viridis"].with_extremes(bad=NOTHING)
    left, right, bottom, top = maze.extent
    image = axes.imshow(values, extent=maze.extent, cmap=colours, vmin=0.0, vmax=1.0, interpolation="nearest")
    for row, column in np.argwhere(maze.walls):
        corner = (left + column * maze.cell, top - (row + 1) * maze.cell)
        axes.add_patch(Rectangle(corner, maze.cell, maze.cell, facecolor=WALL, edgecolor=WALL, linewidth=0.3))
    goals = [one.goal[one.is_spread] for one in recorded if one.goal.shape[1] == 2 and one.is_spread.any()]
    if goals:
        x, y = np.concatenate(goals).mean(axis=0)
        axes.plot(x, y, marker="*", markersize=9, color="#e0201b", markeredgecolor="white", markeredgewidth=0.6)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return image

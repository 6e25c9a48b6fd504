"""Learning curves from runs: settings decide which runs belong to one curve, never the names of folders.

A curve averages runs that differ only in their seeds and were evaluated at the same steps. Every run is part of a
curve. What a curve lacks is stated in notes, which every figure carries in its caption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.metrics import DRAWN, RETURN
from diaster.analysis.naming import Subject, names_of
from diaster.analysis.notes import seeds_text, steps_text
from diaster.analysis.results import LARGEST, RecordedRun, Results
from diaster.analysis.settings import changed_settings, without_what_does_not_matter
from diaster.config import DEFAULT_AGENT, METHODS, PAPER_TASKS, RunConfig, task_name
from diaster.errors import DiasterError, printable, shortened
from diaster.rundir.results import Table

LONGEST_TITLE = 55  # signs: an id and a few arguments
FINAL = 10  # evaluations that a final return is the mean of


class TaskKey(NamedTuple):
    """The environment, with its arguments, and horizon that runs must share to be compared."""

    env: str
    horizon: int | str
    is_unlike: bool = False
    """Whether there are runs of the same environment with another horizon."""

    @property
    def title(self) -> str:
        """The environment, with its horizon where that is not the usual one or not the only one; long names are cut."""
        usual = PAPER_TASKS[self.env].horizon if self.env in PAPER_TASKS else self.horizon
        name = printable(shortened(self.env, LONGEST_TITLE))
        is_told = self.horizon != usual or (self.is_unlike and self.env not in PAPER_TASKS)
        return f"{name}, T = {self.horizon}" if is_told else name


class Curve(NamedTuple):
    """The learning curve of runs that differ only in their seeds, over the evaluations that all of them have."""

    config: RunConfig  # of the first run; the seeds are those below
    seeds: tuple[int, ...]
    steps: NDArray[np.int64]  # [E]
    returns: NDArray[np.float64]  # [E, S]
    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    columns: Mapping[str, NDArray[np.float64]] = {}
    """Other numbers of the evaluations, NaN where there is none.  # [E, S]"""
    folders: tuple[str, ...] = ()
    """What the runs are called below the results folder."""
    label: str = ""
    """The name that the user has given."""
    is_done: bool = True
    name: str = ""
    """Tells it from every other curve of its environment in the same folder."""
    variant: int = 0
    """Its place among the curves of its method, the plainest first: it decides shade, line and marker."""
    has_sibling_horizon: bool = False

    @property
    def method(self) -> str:
        return self.config.method.name

    @property
    def task(self) -> TaskKey:
        return TaskKey(task_name(self.config), self.config.horizon, self.has_sibling_horizon)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Of the return, over seeds.  # [E]"""
        return self.mean_of(RETURN)

    @property
    def error(self) -> NDArray[np.float64]:
        """The standard error of that mean; 0 where there is one seed.  # [E]"""
        return self.error_of(RETURN)

    def values(self, metric: str) -> NDArray[np.float64]:
        """A number of every evaluation; NaN where the table has none.  # [E, S]"""
        if metric == RETURN:
            return self.returns
        return self.columns.get(metric, np.full(self.returns.shape, np.nan))

    def has(self, metric: str) -> bool:
        """Whether there is any such number."""
        return not np.isnan(self.values(metric)).all()

    def mean_of(self, metric: str) -> NDArray[np.float64]:
        """Over the seeds that have a number; NaN where none has.  # [E]"""
        values = self.values(metric)
        known = (~np.isnan(values)).sum(axis=1)
        total = np.nansum(values, axis=1)
        return np.where(known > 0, total / np.maximum(known, 1), np.nan)

    def error_of(self, metric: str) -> NDArray[np.float64]:
        """The standard error of that mean; 0 where one seed has a number, NaN where none has.  # [E]"""
        values, mean = self.values(metric), self.mean_of(metric)
        known = (~np.isnan(values)).sum(axis=1)
        squares = np.nansum((values - mean[:, None]) ** 2, axis=1)
        error = np.sqrt(squares / np.maximum(known - 1, 1) / np.maximum(known, 1))
        return np.where(known > 0, error, np.nan)

    def final(self, step: int | None = None) -> NDArray[np.float64]:
        """The return of each seed in the end, or at a step: the mean of the last evaluations up to there.  # [S]

        One evaluation of a few episodes is noise. Of ten, the curve has moved little; of few evaluations, a quarter.
        """
        n = len(self.steps) if step is None else int(np.searchsorted(self.steps, step, side="right"))
        return np.asarray(self.returns[n - max(1, min(FINAL, n // 4)) : n].mean(axis=0), np.float64)

    @property
    def area(self) -> NDArray[np.float64]:
        """The mean of each seed's whole curve, evaluations weighed by the steps they stand for.  # [S]"""
        return np.asarray(np.average(self.returns, axis=0, weights=np.diff(self.steps, prepend=0)), np.float64)

    @property
    def untrained(self) -> NDArray[np.float64]:
        """Returns of policies that have not learnt yet; empty if none was evaluated so early."""
        warmup = self.config.warmup_steps
        is_early = self.steps <= (warmup if isinstance(warmup, int) else 0)
        return np.asarray(self.returns[is_early].ravel(), np.float64)


def curves_in(results: Results) -> list[Curve]:
    """All runs as curves with names; ordered by task and method, the plainest of a method first."""
    return named([curve_of(runs) for runs in alike(results.runs)])


def alike(runs: Iterable[RecordedRun]) -> list[list[RecordedRun]]:
    """Runs that one curve averages: with the same settings and label, and evaluated at the same steps.

    A seed that was trained again, with other numbers, begins another curve: a program or a machine has changed.
    """
    found: dict[tuple[RunConfig, str, bytes], list[list[RecordedRun]]] = {}
    for run in runs:
        key = without_what_does_not_matter(run.config), run.label, common_steps(run).tobytes()
        groups = found.setdefault(key, [])
        group = next((one for one in groups if _agree(one, run)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return [group for groups in found.values() for group in groups]


def _agree(group: Sequence[RecordedRun], run: RecordedRun) -> bool:
    """Whether no seed of the run has other returns in another run."""
    return all(
        np.array_equal(other.evaluations[seed][RETURN], rows[RETURN])
        for seed, rows in run.evaluations.items()
        for other in group
        if seed in other.evaluations
    )


def common_steps(run: RecordedRun) -> NDArray[np.int64]:
    """The steps at which all seeds of a run were evaluated.  # [E]"""
    first, *others = (rows["step"] for rows in run.evaluations.values())
    common: NDArray[np.int64] = first
    for steps in others:
        common = np.intersect1d(common, steps)
    if not len(common):
        raise DiasterError(f"the seeds of '{run.path}' share no evaluation; plot them when they have come as far.")
    return common


def curve_of(runs: Sequence[RecordedRun]) -> Curve:
    """The curve of runs that are alike; its name is that of a single curve."""
    chosen: dict[int, RecordedRun] = {}
    notes = []
    for run in runs:
        for seed in run.evaluations:
            if seed in chosen:
                notes.append(f"{seeds_text([seed])} was trained more than once, with the same numbers, and counts once")
            chosen.setdefault(seed, run)
    silent = sorted({seed for run in runs for seed in run.config.seeds} - chosen.keys())
    if silent:
        notes.append(f"{seeds_text(silent)} without an evaluation")
    seeds = tuple(sorted(chosen))
    tables = [chosen[seed].evaluations[seed] for seed in seeds]
    common = common_steps(runs[0])
    if max(int(table["step"][-1]) for table in tables) > common[-1]:
        notes.append(f"seeds of unequal length: cut at {steps_text(float(common[-1]))} steps")
    unfinished = [seed for seed in seeds if not chosen[seed].is_done]
    if unfinished:
        which = "" if len(unfinished) == len(seeds) else f" ({seeds_text(unfinished)})"
        planned = steps_text(float(runs[0].config.steps))
        notes.append(f"unfinished{which}: {steps_text(float(common[-1]))} of {planned} steps")
    rows = [np.isin(table["step"], common) for table in tables]
    columns = {name: _column(name, tables, rows) for name in DRAWN if any(name in table for table in tables)}
    return Curve(
        config=runs[0].config,
        seeds=seeds,
        steps=common,
        returns=columns[RETURN],
        paths=tuple(run.path for run in runs),
        notes=tuple(dict.fromkeys(notes)),
        columns=columns,
        folders=tuple(run.folder or run.path.name for run in runs),
        label=runs[0].label,
        is_done=not unfinished,
    )


def _column(name: str, tables: Sequence[Table], rows: Sequence[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Some rows of a column of all seeds; NaN in a table of an earlier version that lacks it.  # [E, S]"""
    columns = [
        table[name][kept] if name in table else np.full(int(kept.sum()), np.nan)
        for table, kept in zip(tables, rows, strict=True)
    ]
    # An infinite number is as far beyond every axis as this one, and has a mean.
    return np.clip(np.stack(columns, axis=1).astype(np.float64), -LARGEST, LARGEST)


def named(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with their names and their places among those of their method, in the order of every legend."""
    horizons: dict[str, set[int | str]] = {}
    for curve in curves:
        horizons.setdefault(curve.task.env, set()).add(curve.config.horizon)
    names = names_of([_subject(curve) for curve in curves])
    found = [
        curve._replace(name=name, has_sibling_horizon=len(horizons[curve.task.env]) > 1)
        for curve, name in zip(curves, names, strict=True)
    ]
    found.sort(key=lambda curve: (method_order(curve.method), _plainness(curve)))
    places: dict[str, list[str]] = {}
    for curve in found:
        known = places.setdefault(curve.method, [])
        if curve.name not in known:
            known.append(curve.name)
    found = [curve._replace(variant=places[curve.method].index(curve.name)) for curve in found]
    return sorted(found, key=lambda curve: (task_order(curve.task), *legend_order(curve)))


def _subject(curve: Curve) -> Subject:
    reached = "" if curve.is_done else f"unfinished at {steps_text(float(curve.steps[-1]))} steps"
    return Subject(curve.config, reached, curve.folders[0] if curve.folders else "", curve.label)


def _plainness(curve: Curve) -> tuple[bool, bool, int, int, list[str | int]]:
    """Curves with fewer changes and longer runs come first; numbers in names are ordered as numbers."""
    config = curve.config
    is_other = config.agent.name != DEFAULT_AGENT
    parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", curve.name)]
    return config.preset != "default", is_other, len(changed_settings(config)), -config.steps, parts


def by_task(curves: Iterable[Curve]) -> dict[TaskKey, list[Curve]]:
    """Curves that may share a panel."""
    found: dict[TaskKey, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.task, []).append(curve)
    return found


def by_name(curves: Iterable[Curve]) -> dict[str, list[Curve]]:
    """Curves of the same kind on different environments, in the order of every legend."""
    found: dict[str, list[Curve]] = {}
    for curve in sorted(curves, key=legend_order):
        found.setdefault(curve.name, []).append(curve)
    return found


def legend_order(curve: Curve) -> tuple[int, int]:
    """The place of a curve in every legend and table."""
    return method_order(curve.method), curve.variant


def task_order(task: TaskKey) -> tuple[int, str, str]:
    """The paper's tasks in its order, then others by name."""
    known = list(PAPER_TASKS)
    return (known.index(task.env) if task.env in known else len(known), task.env, str(task.horizon).zfill(10))


def method_order(method: str) -> int:
    """The place of a method in every legend and table."""
    return list(METHODS).index(method)

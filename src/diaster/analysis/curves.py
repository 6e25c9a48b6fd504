"""Learning curves from runs: settings decide which runs belong to one curve, never the names of folders.

A curve averages runs that differ only in their seeds, over the evaluations that all of them have. What it leaves out
(seeds, evaluations, whole runs) is stated in notes, which every figure carries in its caption.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.notes import Note, seeds_text, steps_text
from diaster.analysis.results import RecordedRun, Results
from diaster.config import METHODS, PAPER_TASKS, RunConfig, combine
from diaster.errors import DiasterError, printable, shortened

# Settings that do not change a result (up to rounding), with a common value: runs that differ in them share a curve.
NO_MATTER: dict[str, Any] = {
    "seeds": (0,),
    "steps": 1,  # the planned length; how far a run came is in its table
    "device": "auto",
    "devices": 1,
    "workers": "auto",
    "checkpoint_every": "auto",
    "env_retries": 0,
    "isolate_envs": False,
    "step_seconds": 60.0,
}
UNRESOLVED = ("horizon", "warmup_steps", "imports")  # written as numbers where the settings had `auto`
OF_LENGTH = "agent.annealing_updates"  # likewise, with xqc; with dqn it is a setting like any other
FINAL = 10  # evaluations that a final return is the mean of
Series = tuple[str, str, str]  # method, preset and agent: what a legend tells apart


class TaskKey(NamedTuple):
    """The environment and horizon that runs must share to be compared."""

    env: str
    horizon: int | str

    @property
    def title(self) -> str:
        """The environment, with its horizon where that is not the usual one; long names are cut."""
        usual = PAPER_TASKS[self.env].horizon if self.env in PAPER_TASKS else self.horizon
        name = printable(shortened(self.env))
        return name if self.horizon == usual else f"{name}, T = {self.horizon}"


class Curve(NamedTuple):
    """The learning curve of runs that differ only in their seeds, over the evaluations that all of them have."""

    config: RunConfig  # of the first run; the seeds are those below
    seeds: tuple[int, ...]
    steps: NDArray[np.int64]  # [E]
    returns: NDArray[np.float64]  # [E, S]
    paths: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def method(self) -> str:
        return self.config.method.name

    @property
    def task(self) -> TaskKey:
        return TaskKey(self.config.env, self.config.horizon)

    @property
    def series(self) -> Series:
        return self.method, self.config.preset, self.config.agent.name

    @property
    def mean(self) -> NDArray[np.float64]:
        """Over seeds.  # [E]"""
        return np.asarray(self.returns.mean(axis=1), np.float64)

    @property
    def error(self) -> NDArray[np.float64]:
        """The standard error of the mean; 0 where there is one seed.  # [E]"""
        n_seeds = self.returns.shape[1]
        if n_seeds == 1:
            return np.zeros(len(self.returns))
        return np.asarray(self.returns.std(axis=1, ddof=1) / np.sqrt(n_seeds), np.float64)

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
    """One curve for all runs that differ only in their seeds; ordered by task, method and settings."""
    alike: dict[RunConfig, list[RecordedRun]] = {}
    for run in results.runs:
        alike.setdefault(dataclasses.replace(run.config, **NO_MATTER), []).append(run)
    curves = [curve_of(runs) for runs in alike.values()]
    return sorted(curves, key=lambda curve: (task_order(curve.task), method_order(curve.method)))


def curve_of(runs: Sequence[RecordedRun]) -> Curve:
    """The curve of runs with the same settings."""
    chosen: dict[int, tuple[RecordedRun, NDArray[np.int64], NDArray[np.float64]]] = {}
    notes = []
    for run in runs:
        for seed, (steps, returns) in run.evaluations.items():
            if seed in chosen:
                notes.append(f"seed {seed} was trained more than once; the longest run counts")
                if len(steps) <= len(chosen[seed][1]):
                    continue
            chosen[seed] = (run, steps, returns)
    silent = sorted({seed for run in runs for seed in run.config.seeds} - chosen.keys())
    if silent:
        notes.append(f"{seeds_text(silent)} without an evaluation")
    seeds = tuple(sorted(chosen))
    used = [chosen[seed][0] for seed in seeds]
    common = chosen[seeds[0]][1]
    for seed in seeds[1:]:
        common = np.intersect1d(common, chosen[seed][1])
    if not len(common):
        folders = ", ".join(sorted({f"'{run.path}'" for run in used}))
        raise DiasterError(f"the seeds of {folders} share no evaluation; plot them when they have come as far.")
    returns = np.stack([chosen[seed][2][np.isin(chosen[seed][1], common)] for seed in seeds], axis=1)
    longest = max(int(steps[-1]) for _, steps, _ in chosen.values())
    if longest > common[-1]:
        notes.append(f"seeds of unequal length: cut at {steps_text(float(common[-1]))} steps")
    unfinished = [seed for seed in seeds if not chosen[seed][0].is_done]
    if unfinished:
        planned = steps_text(float(max(run.config.steps for run in used)))
        which = "" if len(unfinished) == len(seeds) else f" ({seeds_text(unfinished)})"
        notes.append(f"unfinished{which}: {steps_text(float(common[-1]))} of {planned} steps")
    paths = tuple(dict.fromkeys(run.path for run in used))
    return Curve(used[0].config, seeds, common, returns, paths, tuple(dict.fromkeys(notes)))


def by_task(curves: Iterable[Curve]) -> dict[TaskKey, list[Curve]]:
    """Curves that may share a panel."""
    found: dict[TaskKey, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.task, []).append(curve)
    return found


def plainest(curves: Sequence[Curve]) -> tuple[list[Curve], list[Curve]]:
    """Of each series the curve that is nearest to its preset, and the others."""
    of_series: dict[Series, list[Curve]] = {}
    for curve in curves:
        of_series.setdefault(curve.series, []).append(curve)
    kept = [min(alike, key=lambda curve: len(changed_settings(curve.config))) for alike in of_series.values()]
    return kept, [curve for curve in curves if not any(curve is one for one in kept)]


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that differ from those of the preset, by dotted names, without those that change no result."""
    given = {"env": config.env, "method": config.method.name, "agent": config.agent.name}
    usual = flat(combine(config.preset, {}, "", given))
    return {
        name: value
        for name, value in flat(config).items()
        if usual[name] != value
        and name not in NO_MATTER
        and name not in UNRESOLVED
        and not (name == OF_LENGTH and usual[name] == "auto")
    }


def flat(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        found |= {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return found


def settings_text(changed: dict[str, Any], most: int = 3) -> str:
    """A few settings, short enough for a caption."""
    named = [f"{name.removeprefix('method.')} = {value}" for name, value in changed.items()]
    return ", ".join(named[:most]) + (" …" if len(named) > most else "")


def panel_notes(curves: Sequence[Curve], labels: Sequence[str]) -> list[Note]:
    """What is missing in a panel: the notes of its curves, and what some of them lack and others have."""
    every = sorted({seed for curve in curves for seed in curve.seeds})
    furthest = max((int(curve.steps[-1]) for curve in curves), default=0)
    notes = []
    for curve, label in zip(curves, labels, strict=True):
        subject = f"{label} on {curve.task.title}"
        notes += [Note(subject, text) for text in curve.notes]
        missing = [seed for seed in every if seed not in curve.seeds]
        if missing:
            notes.append(Note(subject, f"{seeds_text(missing)} missing"))
        if curve.steps[-1] < furthest and not any(text.startswith("unfinished") for text in curve.notes):
            last, far = (steps_text(float(step)) for step in (curve.steps[-1], furthest))
            notes.append(Note(subject, f"ends at {last} steps, others there at {far}"))
    return notes


def left_out_note(n: int) -> Note:
    """What `plainest` has left out."""
    return Note(f"{n} further curve{'s' * (n > 1)}", "other settings than the plainest of their method, not shown")


def task_order(task: TaskKey) -> tuple[int, str, str]:
    """The paper's tasks in its order, then others by name."""
    known = list(PAPER_TASKS)
    return (known.index(task.env) if task.env in known else len(known), task.env, str(task.horizon).zfill(10))


def method_order(method: str) -> int:
    """The place of a method in every legend and table."""
    return list(METHODS).index(method)


def series_order(series: Series) -> tuple[int, tuple[str, str]]:
    """The place of a series: by its method, then by name."""
    return method_order(series[0]), series[1:]

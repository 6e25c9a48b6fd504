"""A folder of runs, put together into curves: settings decide what belongs together, never the names of folders.

A curve averages runs that differ in their seeds alone, over the evaluations that all of them have. What that leaves
out (seeds, evaluations, whole runs) is said in notes, which every figure carries in its caption.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.config import METHODS, PAPER_TASKS, RunConfig, combine
from diaster.errors import DiasterError, printable
from diaster.rundir.files import MissingFileError, damaged, is_file
from diaster.rundir.records import CONFIG, DONE, PROGRESS, read_config
from diaster.rundir.results import Table, read_progress

MOST_LEVELS = 4  # folders below the one that is named
MOST_FOLDERS = 100_000
LONGEST_TITLE = 40
LARGEST = 1e100  # the squares of much larger returns overflow
# What a machine needs to know and what a result does not depend on (up to rounding).
NO_MATTER: dict[str, Any] = {
    "seeds": (0,),
    "steps": 1,  # how long it was to be; how far it came is in its table
    "device": "auto",
    "workers": "auto",
    "checkpoint_every": "auto",
    "env_retries": 0,
    "isolate_envs": False,
    "step_seconds": 60.0,
}
UNRESOLVED = ("horizon", "warmup_steps", "imports")  # written as numbers where the settings had `auto`


class Note(NamedTuple):
    """What a reader of a figure has to know: of whom, and what."""

    subject: str
    text: str


class Task(NamedTuple):
    """What runs have to have in common to be compared."""

    env: str
    horizon: int | str

    @property
    def title(self) -> str:
        """The environment; its horizon too where it is not the usual one. Names of any length are kept short."""
        usual = PAPER_TASKS[self.env].horizon if self.env in PAPER_TASKS else self.horizon
        name = printable(self.env if len(self.env) <= LONGEST_TITLE else f"{self.env[:LONGEST_TITLE]}…")
        return name if self.horizon == usual else f"{name}, T = {self.horizon}"


class RecordedRun(NamedTuple):
    """A run directory with at least one evaluation."""

    path: Path
    config: RunConfig
    evaluations: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]
    """Of each seed: steps, and the return at each of them."""
    is_done: bool


class Results(NamedTuple):
    """All runs below a folder, and a note for each that has nothing to show yet."""

    path: Path
    runs: tuple[RecordedRun, ...]
    notes: tuple[Note, ...]


class Group(NamedTuple):
    """Runs that differ in their seeds alone, over the evaluations that all of them have."""

    config: RunConfig  # of the first; seeds are those below
    seeds: tuple[int, ...]
    steps: NDArray[np.int64]  # [E]
    returns: NDArray[np.float64]  # [E, S]
    paths: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def task(self) -> Task:
        return Task(self.config.env, self.config.horizon)

    @property
    def series(self) -> tuple[str, str, str]:
        """Method, preset and agent: what a legend tells apart."""
        return self.config.method.name, self.config.preset, self.config.agent.name

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

    def until(self, step: int) -> NDArray[np.float64]:
        """The return of each seed at the last evaluation up to a step.  # [S]"""
        return np.asarray(self.returns[np.searchsorted(self.steps, step, side="right") - 1], np.float64)


def read_results(path: Path) -> Results:
    """Every run below a folder, or the run that it is."""
    if not path.is_dir():
        raise DiasterError(f"'{path}' is no folder; give one that holds run directories, or a run directory.")
    runs, notes = [], []
    for folder in run_directories(path):
        name = str(folder.relative_to(path)) if folder != path else folder.name
        try:
            found = _read_run(folder)
        except MissingFileError:
            continue  # a run that failed early takes its directory back
        if found is None:
            notes.append(Note(name, "has no evaluation yet"))
        else:
            runs.append(found)
    if not runs and notes:
        raise DiasterError(f"no run in '{path}' has an evaluation yet; try again when a first one is done.")
    if not runs:
        raise DiasterError(f"'{path}' holds no runs; give a folder that 'diaster train --out' has written into.")
    return Results(path, tuple(runs), tuple(notes))


def run_directories(path: Path) -> list[Path]:
    """The folders with a configuration, in order; links are not followed, and a run holds no other run."""
    found, ahead, seen = [], [(path, 0)], 0
    while ahead:
        folder, level = ahead.pop()
        seen += 1
        if seen > MOST_FOLDERS:
            raise DiasterError(f"'{path}' has more than {MOST_FOLDERS:,} folders below it; name the one with the runs.")
        if is_file(folder / CONFIG):
            found.append(folder)
        elif level < MOST_LEVELS:
            try:
                with os.scandir(folder) as entries:
                    ahead += [(folder / item.name, level + 1) for item in entries if item.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                continue  # gone meanwhile
            except OSError as error:
                raise DiasterError(f"'{folder}' cannot be read: {error.strerror}; check its permissions.") from None
    return sorted(found)


def _read_run(path: Path) -> RecordedRun | None:
    config = read_config(path)
    if not is_file(path / PROGRESS):
        return None
    evaluations = seed_evaluations(path, config, read_progress(path))
    return RecordedRun(path, config, evaluations, is_file(path / DONE)) if evaluations else None


def seed_evaluations(
    path: Path, config: RunConfig, table: Table
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Steps and returns of each seed in a table, if they can be what a run has written."""
    strange = set(table["seed"].tolist()) - set(config.seeds)
    if strange:
        raise damaged(path / PROGRESS, f"it has the seed {min(strange)}, which the run's configuration has not")
    found = {}
    for seed in dict.fromkeys(table["seed"].tolist()):
        rows = table.where(seed=seed)
        steps, returns = rows["step"], rows["return_mean"]
        if not (np.abs(returns) <= LARGEST).all():
            raise damaged(path / PROGRESS, f"it has returns that are no numbers, or beyond ±{LARGEST:g}")
        if (np.diff(steps) <= 0).any():
            raise damaged(path / PROGRESS, f"the evaluations of seed {seed} are not one after the other")
        found[seed] = (steps, returns)
    return found


def group_runs(results: Results) -> list[Group]:
    """One group for all runs that differ in their seeds alone; in the order of tasks, methods and settings."""
    alike: dict[RunConfig, list[RecordedRun]] = {}
    for run in results.runs:
        alike.setdefault(dataclasses.replace(run.config, **NO_MATTER), []).append(run)
    groups = [_group(runs) for runs in alike.values()]
    return sorted(groups, key=lambda group: (task_order(group.task), method_order(group.config.method.name)))


def _group(runs: Sequence[RecordedRun]) -> Group:
    """The evaluations that all seeds have."""
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
    return Group(used[0].config, seeds, common, returns, paths, tuple(dict.fromkeys(notes)))


def by_task(groups: Iterable[Group]) -> dict[Task, list[Group]]:
    """Groups that may share a panel."""
    found: dict[Task, list[Group]] = {}
    for group in groups:
        found.setdefault(group.task, []).append(group)
    return found


def plainest(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Of each series the group that is nearest to its preset, and those that are left out for it."""
    of_series: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        of_series.setdefault(group.series, []).append(group)
    kept = [min(alike, key=lambda group: len(changed_settings(group.config))) for alike in of_series.values()]
    return kept, [group for group in groups if not any(group is one for one in kept)]


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """What a run sets otherwise than its preset, by dotted names; what does not matter to its result is left out."""
    given = {"env": config.env, "method": config.method.name, "agent": config.agent.name}
    usual = flat(combine(config.preset, {}, "", given))
    return {
        name: value
        for name, value in flat(config).items()
        if usual[name] != value and name not in NO_MATTER and name not in UNRESOLVED
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


def panel_notes(groups: Sequence[Group], label: dict[int, str]) -> list[Note]:
    """What is missing in a panel: what its groups say of themselves, and what the others have and they lack."""
    every = sorted({seed for group in groups for seed in group.seeds})
    furthest = max((int(group.steps[-1]) for group in groups), default=0)
    notes = []
    for group in groups:
        subject = f"{label[id(group)]} on {group.task.title}"
        notes += [Note(subject, text) for text in group.notes]
        missing = [seed for seed in every if seed not in group.seeds]
        if missing:
            notes.append(Note(subject, f"{seeds_text(missing)} missing"))
        if group.steps[-1] < furthest and not any(text.startswith("unfinished") for text in group.notes):
            last, far = (steps_text(float(step)) for step in (group.steps[-1], furthest))
            notes.append(Note(subject, f"ends at {last} steps, others there at {far}"))
    return notes


def left_out_note(n: int) -> Note:
    """What `plainest` has left out."""
    return Note(f"{n} further curve{'s' * (n > 1)}", "other settings than the plainest of their method, not shown")


def sentences(notes: Iterable[Note], most_subjects: int = 4) -> list[str]:
    """Notes as lines; those that say the same are one."""
    subjects: dict[str, list[str]] = {}
    for note in notes:
        if note.subject not in subjects.setdefault(note.text, []):
            subjects[note.text].append(note.subject)
    lines = []
    for text, names in subjects.items():
        more = f" and {len(names) - most_subjects} more" if len(names) > most_subjects else ""
        lines.append(f"{', '.join(names[:most_subjects])}{more}: {text}.")
    return lines


def task_order(task: Task) -> tuple[int, str, str]:
    """The paper's tasks in its order, then others by name."""
    known = list(PAPER_TASKS)
    return (known.index(task.env) if task.env in known else len(known), task.env, str(task.horizon).zfill(10))


def method_order(method: str) -> int:
    """Where a method stands in every legend and table."""
    return list(METHODS).index(method)


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds by number, not endlessly many."""
    shown = ", ".join(map(str, seeds[:5])) + (", …" if len(seeds) > 5 else "")
    return f"seed{'s' * (len(seeds) > 1)} {shown}"


def steps_text(steps: float) -> str:
    """A number of steps, short."""
    if steps >= 1e6:
        return f"{steps / 1e6:g} M"
    return f"{steps / 1e3:g} k" if steps >= 1000 else f"{steps:g}"

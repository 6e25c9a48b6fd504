"""A folder of runs: finds its run directories and reads their evaluations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diaster.analysis.metrics import RETURN
from diaster.analysis.notes import Note
from diaster.analysis.selection import folder_name, labels_of, selected
from diaster.analysis.settings import with_usual_base
from diaster.config import RunConfig
from diaster.errors import LONGEST_NAME, DiasterError, shortened
from diaster.rundir.files import damaged, is_file
from diaster.rundir.records import CONFIG, DONE, PROGRESS, read_config
from diaster.rundir.results import Table, read_progress

MOST_LEVELS = 4  # folders below the one that is named
MOST_FOLDERS = 100_000
OF_IMAGES = "feature_loss"  # of the encoder, which only runs on images have
LARGEST = 1e100  # the squares of much larger returns overflow

Evaluations = dict[int, Table]  # of each seed: a row per evaluation


class RecordedRun(NamedTuple):
    """A run directory with at least one evaluation."""

    path: Path
    config: RunConfig
    evaluations: Evaluations
    is_done: bool
    folder: str = ""
    """What it is called below the results folder."""
    label: str = ""
    """The name that the user has given to its curve."""


class Results(NamedTuple):
    """All runs below a folder, or those that were chosen, and a note for what has nothing to show or was not chosen."""

    path: Path
    runs: tuple[RecordedRun, ...]
    notes: tuple[Note, ...]
    only: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """What was chosen and named, as it was given."""

    @property
    def place(self) -> str:
        """Where all that is said to be missing was looked for."""
        return f"the chosen part of '{self.path}'" if self.only else f"'{self.path}'"


def read_results(path: Path, only: Sequence[str] = (), labels: Sequence[str] = ()) -> Results:
    """Every run below a folder, or the folder itself where it is a run directory.

    `only` are patterns for the folders of the runs to read, `labels` names as PATTERN=TEXT; see `selection.py`.
    """
    if not path.is_dir():
        raise DiasterError(f"'{path}' is no folder; give one that holds run directories, or a run directory.")
    every = run_directories(path)
    if not every:
        raise _no_runs(path)
    chosen = selected(path, every, only)
    named = labels_of(path, chosen, labels)
    runs, notes = [], []
    for folder in chosen:
        name = folder_name(path, folder)
        try:
            found = _read_run(folder)
        except DiasterError:
            if is_file(folder / CONFIG):
                raise
            continue  # a run that fails early removes its directory
        if found is None:
            notes.append(Note(shortened(name, LONGEST_NAME), "has no evaluation yet"))
        else:
            runs.append(found._replace(folder=name, label=named.get(folder, "")))
    if not runs and notes:
        none = "none of the chosen runs" if only else "no run"
        raise DiasterError(f"{none} in '{path}' has an evaluation yet; try again when a first one is done.")
    if not runs:
        raise _no_runs(path)
    others = len(every) - len(chosen)
    if others:
        notes.append(Note(f"{others} other run{'s' * (others > 1)} of the folder", "not chosen"))
    return Results(path, tuple(runs), tuple(notes), tuple(only), tuple(labels))


def _no_runs(path: Path) -> DiasterError:
    return DiasterError(f"'{path}' holds no runs; give a folder that 'diaster train --out' has written into.")


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
                continue  # removed in the meantime
            except OSError as error:
                raise DiasterError(f"'{folder}' cannot be read: {error.strerror}; check its permissions.") from None
    return sorted(found)


def _read_run(path: Path) -> RecordedRun | None:
    config = read_config(path)
    if not is_file(path / PROGRESS):
        return None
    evaluations = seed_evaluations(path, config, read_progress(path))
    if not evaluations:
        return None
    return RecordedRun(path, settings_shown(config, evaluations), evaluations, is_file(path / DONE))


def settings_shown(config: RunConfig, evaluations: Evaluations) -> RunConfig:
    """The settings of a run as names and captions take them; its table tells whether it had images to learn from."""
    has_images = any(not np.isnan(table[OF_IMAGES]).all() for table in evaluations.values() if OF_IMAGES in table)
    return with_usual_base(config, has_images=True) if has_images else config


def seed_evaluations(path: Path, config: RunConfig, table: Table) -> Evaluations:
    """The rows of each seed in a table; a table that no run of these settings writes is refused."""
    strange = set(table["seed"].tolist()) - set(config.seeds)
    if strange:
        raise damaged(path / PROGRESS, f"it has the seed {min(strange)}, which the run's configuration has not")
    found = {}
    for seed in dict.fromkeys(table["seed"].tolist()):
        rows = table.where(seed=seed)
        if not (np.abs(rows[RETURN]) <= LARGEST).all():
            raise damaged(path / PROGRESS, f"it has returns that are no numbers, or beyond ±{LARGEST:g}")
        if (np.diff(rows["step"]) <= 0).any():
            raise damaged(path / PROGRESS, f"the evaluations of seed {seed} are not one after the other")
        found[seed] = rows
    return found

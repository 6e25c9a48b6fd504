"""Removes the files of old checkpoints, and nothing else."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from diaster.errors import DiasterError
from diaster.rundir.checkpoint.manifest import NAMES, manifest_name, read_manifest
from diaster.rundir.files import refuse_link


def remove_others(directory: Path, numbers: Sequence[int]) -> None:
    """Remove what none of these generations names; files that no checkpoint can have stay."""
    refuse_link(directory)
    named = set()
    for number in numbers:
        if (directory / manifest_name(number)).exists():
            with contextlib.suppress(DiasterError):
                named |= {manifest_name(number), *(file.name for file in read_manifest(directory, number).files)}
    for item in directory.iterdir() if directory.is_dir() else ():
        leftover = re.fullmatch(r"\.(.+)\.[^.]+", item.name)  # of an unfinished write, see write_atomically
        name = leftover[1] if leftover else item.name
        is_folder = item.is_dir() and not item.is_symlink()  # no checkpoint has any
        if NAMES.fullmatch(name) and item.name not in named and not is_folder:
            item.unlink(missing_ok=True)


def remove_all(directory: Path, but: int | None = None) -> None:
    """Remove every checkpoint, or all but one: the run is complete."""
    remove_others(directory, [] if but is None else [but])
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()

"""Which runs of a folder are shown, and under which names: `--only PATTERN…` and `--label PATTERN=TEXT`.

Patterns are shell patterns for folders of runs below the results folder; a pattern that fits a folder also fits all
runs in it. A path as the shell completes it, with the results folder in front, is understood as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import NamedTuple

from diaster.errors import LONGEST_NAME, DiasterError, printable, shortened

MOST_NAMED = 12  # folders that an error lists


class Label(NamedTuple):
    """A name for all runs that a pattern fits."""

    pattern: str
    text: str


def parse_label(given: str) -> Label:
    """PATTERN=TEXT; the first sign of equality counts."""
    pattern, equals, text = given.partition("=")
    if not (pattern and equals and text.strip()):
        raise DiasterError(f"the label '{given}' is not of the form PATTERN=TEXT; give e.g. --label 'hopper*=tuned'.")
    return Label(pattern, shortened(printable(text.strip()), LONGEST_NAME))


def selected(path: Path, folders: Sequence[Path], only: Sequence[str]) -> list[Path]:
    """The runs that any of the patterns fits; all of them where there is no pattern."""
    if not only:
        return list(folders)
    fitting = [{folder for folder in folders if fits(pattern, path, folder)} for pattern in only]
    for pattern, found in zip(only, fitting, strict=True):
        if not found:
            raise _unfit("--only", pattern, path, folders)
    return [folder for folder in folders if any(folder in found for found in fitting)]


def labels_of(path: Path, folders: Sequence[Path], given: Sequence[str]) -> dict[Path, str]:
    """The label of each run that has one; the first that fits counts."""
    found: dict[Path, str] = {}
    for label in map(parse_label, given):
        fitting = [folder for folder in folders if fits(label.pattern, path, folder)]
        if not fitting:
            raise _unfit("--label", label.pattern, path, folders)
        for folder in fitting:
            found.setdefault(folder, label.text)
    return found


def fits(pattern: str, path: Path, folder: Path) -> bool:
    """Whether a pattern fits a run's folder, or one that it is in, down from the results folder."""
    wanted = PurePath(pattern).as_posix().removeprefix(f"{path.as_posix()}/")
    inside = PurePath(folder_name(path, folder))
    return any(fnmatchcase(one.as_posix(), wanted) for one in (inside, *inside.parents) if one.name)


def folder_name(path: Path, folder: Path) -> str:
    """A run's folder as it is called below the results folder; its own name where it is the results folder."""
    return folder.resolve().name if folder == path else folder.relative_to(path).as_posix()


def _unfit(flag: str, pattern: str, path: Path, folders: Sequence[Path]) -> DiasterError:
    names = [shortened(folder_name(path, folder)) for folder in folders]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return DiasterError(
        f"{flag} '{shortened(pattern)}' fits no run in '{path}'; there are {', '.join(names[:MOST_NAMED])}{more}."
    )

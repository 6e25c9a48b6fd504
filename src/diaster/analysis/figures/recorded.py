"""Recorded episodes of the runs behind a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from diaster.analysis.curves import Group, Note, method_order
from diaster.rundir.files import is_file
from diaster.rundir.recordings import ROLLOUTS, Rollouts, read_rollouts


def recordings(group: Group) -> list[tuple[Path, Rollouts]]:
    """The recording of each run that has one; what is damaged or of other nets is an error, not left out."""
    return [(path, read_rollouts(path)) for path in group.paths if is_file(path / ROLLOUTS)]


def is_recorded(group: Group) -> bool:
    """Whether any of its runs has a recording, unread."""
    return any(is_file(path / ROLLOUTS) for path in group.paths)


def unrecorded_notes(groups: Sequence[Group]) -> list[Note]:
    """Runs of which nothing was recorded."""
    return [
        Note(f"{group.config.method.name} on {group.task.title}", f"nothing recorded ('diaster record {_name(group)}')")
        for group in groups
        if not is_recorded(group)
    ]


def _name(group: Group) -> str:
    return group.paths[0].name


def decomposers_first(groups: Sequence[Group]) -> Iterator[Group]:
    """Groups whose r̂ was learnt, the first method first; `dense` has the true reward and nothing to show."""
    yield from sorted(
        (group for group in groups if group.config.method.name != "dense"),
        key=lambda group: method_order(group.config.method.name),
    )

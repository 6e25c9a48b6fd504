"""Recorded episodes of the runs behind a curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from diaster.analysis.curves import Curve, method_order
from diaster.analysis.notes import Note
from diaster.rundir.files import is_file
from diaster.rundir.recordings import ROLLOUTS, Rollouts, read_rollouts


def recordings(curve: Curve) -> list[tuple[Path, Rollouts]]:
    """The recording of each run that has one; a recording that is damaged or of other nets is an error."""
    return [(path, read_rollouts(path)) for path in curve.paths if is_file(path / ROLLOUTS)]


def is_recorded(curve: Curve) -> bool:
    """Whether any of its runs has a recording; none is read."""
    return any(is_file(path / ROLLOUTS) for path in curve.paths)


def unrecorded_notes(curves: Sequence[Curve]) -> list[Note]:
    """A note for each curve without a recording."""
    return [
        Note(f"{curve.method} on {curve.task.title}", f"nothing recorded ('diaster record {_name(curve)}')")
        for curve in curves
        if not is_recorded(curve)
    ]


def _name(curve: Curve) -> str:
    return curve.paths[0].name


def decomposers_first(curves: Sequence[Curve]) -> Iterator[Curve]:
    """Curves whose r̂ was learnt, the first method first; `dense` has the true reward and nothing to show."""
    yield from sorted(
        (curve for curve in curves if curve.method != "dense"),
        key=lambda curve: method_order(curve.method),
    )

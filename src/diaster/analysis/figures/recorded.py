"""Recorded episodes of the runs behind curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from diaster.analysis.captions import subject_of
from diaster.analysis.curves import Curve, legend_order
from diaster.analysis.notes import Note
from diaster.rundir.files import is_file
from diaster.rundir.recordings import ROLLOUTS, Rollouts, read_rollouts


def recorded_paths(curve: Curve) -> list[Path]:
    """The runs that have a recording; none is read."""
    return [path for path in curve.paths if is_file(path / ROLLOUTS)]


def recordings(curve: Curve) -> list[Rollouts]:
    """The recordings of its runs; one that is damaged or of other nets is an error. A seed counts once."""
    found: dict[frozenset[int], Rollouts] = {}
    for path in recorded_paths(curve):
        recorded = read_rollouts(path)
        seeds = frozenset(recorded.seed.tolist())
        if not any(seeds & other for other in found):
            found[seeds] = recorded
    return list(found.values())


def unrecorded_notes(curves: Sequence[Curve]) -> list[Note]:
    """A note for each curve without a recording."""
    return [
        Note(subject_of(curve), "nothing recorded ('diaster record RUN' does)")
        for curve in curves
        if not recorded_paths(curve)
    ]


def learnt_first(curves: Iterable[Curve]) -> list[Curve]:
    """Curves whose r̂ was learnt, in the order of legends; `dense` has the true reward and nothing to show."""
    return sorted((curve for curve in curves if curve.method != "dense"), key=legend_order)

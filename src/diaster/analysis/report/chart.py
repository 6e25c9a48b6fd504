"""The data of the page's interactive curves: every curve, with the returns and all metrics of the decomposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.curves import Curve, by_name, by_task
from diaster.analysis.figures.style import method_style, shade_factor
from diaster.analysis.metrics import DECOMPOSITION, METRICS, RETURN
from diaster.config import METHODS

MOST_POINTS = 250  # of a curve: as many as a screen can show
MOST_FOLDERS = 3  # that pointing at a curve names


def chart_data(curves: Sequence[Curve]) -> dict[str, Any]:
    """What the script draws, as numbers and texts."""
    kinds = by_name(curves)
    order = {name: n for n, name in enumerate(kinds)}
    return {
        "metrics": [_axis(name) for name in (RETURN, *DECOMPOSITION) if any(curve.has(name) for curve in curves)],
        "kinds": [
            {"name": name, "look": look_of(n), "dash": _dash(of[0])} for n, (name, of) in enumerate(kinds.items())
        ],
        "tasks": [
            {"title": task.title, "curves": [{"kind": order[curve.name], **_drawn(curve)} for curve in of_task]}
            for task, of_task in by_task(curves).items()
        ],
    }


def look_of(place: int) -> str:
    """The class of a kind of curve on the page."""
    return f"look{place}"


def look_rules(curves: Sequence[Curve]) -> str:
    """A colour for every kind of curve: a shade of its method's, which the style sheet may set for a dark page.

    Shades go towards the ink or the paper: darker and lighter, where the page is light.
    """
    rules = []
    for n, (curve, *_) in enumerate(by_name(curves).values()):
        base, factor = (
            f"var(--{curve.method}, {METHODS[curve.method].colour})",
            shade_factor(curve.method, curve.variant),
        )
        rules.append(f".{look_of(n)} {{ --c: {base}; }}\n")
        if factor != 1:
            share, towards = (factor, "ink") if factor < 1 else (2 - factor, "paper")
            mixed = f"color-mix(in srgb, {base} {share:.0%}, var(--{towards}))"
            rules.append(f"@supports (color: color-mix(in srgb, red, blue)) {{ .{look_of(n)} {{ --c: {mixed}; }} }}\n")
    return "".join(rules)


def _axis(name: str) -> dict[str, Any]:
    """A metric as the page offers it; limits that are not there are null."""
    metric = METRICS[name]
    limits = {
        side: value if math.isfinite(value) else None for side, value in (("low", metric.low), ("high", metric.high))
    }
    return {"name": name, "title": metric.title, "help": metric.help, **limits}


def _dash(curve: Curve) -> str:
    """Its line style of Matplotlib as SVG has it."""
    line = method_style(curve.method, curve.variant).line
    if line == "--":
        return "6 4"
    return "" if line == "-" else " ".join(str(2 * part) for part in line[1])


def _drawn(curve: Curve) -> dict[str, Any]:
    """The curve, thinned to what a screen can show; its last point is always there."""
    places = np.unique(np.linspace(0, len(curve.steps) - 1, min(MOST_POINTS, len(curve.steps))).round().astype(int))
    return {
        "seeds": len(curve.seeds),
        "folders": ", ".join(curve.folders[:MOST_FOLDERS]) + (" …" if len(curve.folders) > MOST_FOLDERS else ""),
        "steps": curve.steps[places].tolist(),
        "values": {
            name: {"mean": _rounded(curve.mean_of(name)[places], 6), "error": _rounded(curve.error_of(name)[places], 4)}
            for name in (RETURN, *DECOMPOSITION)
            if curve.has(name)
        },
    }


def _rounded(values: NDArray[np.float64], digits: int) -> list[float | None]:
    """Numbers for JSON, which has no NaN."""
    return [None if value != value else float(f"{value:.{digits}g}") for value in values.tolist()]

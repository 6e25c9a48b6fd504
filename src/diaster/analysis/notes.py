"""What a reader of a figure has to know about the runs behind it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_RUNS, NONE_CHOSEN = "no runs", "no runs chosen"


class Note(NamedTuple):
    """A remark on some runs: which ones, and what."""

    subject: str
    text: str


def sentences(notes: Iterable[Note], most_subjects: int = 4) -> list[str]:
    """Notes as lines; notes with the same text share one."""
    subjects: dict[str, list[str]] = {}
    for note in notes:
        if note.subject not in subjects.setdefault(note.text, []):
            subjects[note.text].append(note.subject)
    lines = []
    for text, names in subjects.items():
        more = f" and {len(names) - most_subjects} more" if len(names) > most_subjects else ""
        comma = "; " if any("," in name for name in names) else ", "  # names of curves have commas inside
        lines.append(f"{comma.join(names[:most_subjects])}{more}: {text}.")
    return lines


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds by number; the first five of a long list."""
    shown = ", ".join(map(str, seeds[:5])) + (", …" if len(seeds) > 5 else "")
    return f"seed{'s' * (len(seeds) > 1)} {shown}"


def steps_text(steps: float) -> str:
    """A number of steps, short: 1.5 M, 20 k, 999."""
    if steps >= 1e6:
        return f"{steps / 1e6:g} M"
    return f"{steps / 1e3:g} k" if steps >= 1000 else f"{steps:g}"


def number_text(value: float, digits: int = 6) -> str:
    """A number on an axis or in a note, short: 1,000, −0.25, −3.2e+10."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{min(digits, 3)}g}".replace("-", "−")
    text = f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"
    return text.replace("-", "−")


def mean_and_error(of_seeds: NDArray[np.float64]) -> str:
    """Mean ± standard error over seeds, both with the digits that the mean needs."""
    mean, n = float(of_seeds.mean()), len(of_seeds)
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2
    values = [mean, float(of_seeds.std(ddof=1)) / n**0.5] if n > 1 else [mean]
    return " ± ".join(f"{value:,.{digits}f}" for value in values).replace("-", "−")

"""What a reader of a figure has to know about the runs behind it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


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
        lines.append(f"{', '.join(names[:most_subjects])}{more}: {text}.")
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

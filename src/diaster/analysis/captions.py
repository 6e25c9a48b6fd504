"""What a caption says of curves: what is behind the lines, what is missing, and what names do not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from diaster.analysis.curves import Curve, by_name
from diaster.analysis.notes import Note, seeds_text, steps_text
from diaster.analysis.settings import changed_settings, setting_text, settings_text
from diaster.config import DEFAULT_AGENT


def seeds_line(curves: Sequence[Curve]) -> str:
    """What lines and bands are, and how many seeds are behind them."""
    counts = [len(curve.seeds) for curve in curves]
    least, most = min(counts), max(counts)
    if most == 1:
        return "One seed each: no bands."
    many = f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"Mean and standard error over {many}."


def panel_notes(curves: Sequence[Curve]) -> list[Note]:
    """What is missing in a panel: the notes of its curves, and what some of them lack and others have."""
    every = sorted({seed for curve in curves for seed in curve.seeds})
    furthest = max((int(curve.steps[-1]) for curve in curves), default=0)
    notes = []
    for curve in curves:
        subject = subject_of(curve)
        notes += [Note(subject, text) for text in curve.notes]
        missing = [seed for seed in every if seed not in curve.seeds]
        if missing:
            notes.append(Note(subject, f"{seeds_text(missing)} missing"))
        last, far = (steps_text(float(step)) for step in (curve.steps[-1], furthest))
        if curve.steps[-1] < furthest and curve.is_done and f"{last} steps" not in curve.name:
            notes.append(Note(subject, f"ends at {last} steps, others there at {far}"))
    return notes


def subject_of(curve: Curve) -> str:
    """What a note is about: a curve and its environment."""
    return f"{curve.name} on {curve.task.title}"


def settings_notes(curves: Sequence[Curve]) -> list[Note]:
    """Settings that names do not tell: what all runs of a kind have changed, and what is unlike on an environment."""
    notes = []
    for name, mine in by_name(curves).items():
        texts = [settings_text(_untold(curve)) for curve in mine]
        usual, _ = Counter(texts).most_common(1)[0]
        if usual:
            notes.append(Note(name, f"with {usual}"))
        notes += [
            Note(subject_of(curve), f"with {text or 'the preset as it is'}, unlike elsewhere")
            for curve, text in zip(mine, texts, strict=True)
            if text != usual
        ]
    return notes


def _untold(curve: Curve) -> dict[str, Any]:
    """The changed settings that the name does not have, and the agent where it is another than usual."""
    changed = {
        name: value
        for name, value in changed_settings(curve.config).items()
        if setting_text(name, value) not in curve.name and not name.startswith("evaluation.")  # the points are seen
    }
    agent = curve.config.agent.name
    is_told = agent == DEFAULT_AGENT or agent in curve.name.lower()
    return changed if is_told else {"agent": agent, **changed}

"""The one exception a user ever sees, and the sentences it carries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DiasterError(ValueError):
    """Something the user can put right. Its text is one sentence: what was given, what is allowed, what to do."""


def unknown(kind: str, given: str, known: Iterable[str]) -> DiasterError:
    """The error for a name that is not in a closed list, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return DiasterError(f"unknown {kind} '{given}'; known: {', '.join(names)}.{hint}")

"""The one error a user ever sees, and the sentences it carries; and how a run says that it was stopped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_SENTENCE = 2000  # what was given may be a file of any length
LONGEST_NAME = 100  # names that are longer are near none


class DiasterError(ValueError):
    """Something the user can put right. Its text is one sentence: what was given, what is allowed, what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


def printable(text: str) -> str:
    """A text on one line, without what would make a terminal do anything but show it."""
    if len(text) > LONGEST_SENTENCE:
        text = f"{text[: LONGEST_SENTENCE // 2]} … {text[-LONGEST_SENTENCE // 2 :]}"
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class EnvironmentFault(DiasterError):  # noqa: N818 - the error is the environment's
    """An environment raised, died, hung or returned no finite number. Its episode can be dropped and the run go on."""


class Stopped(KeyboardInterrupt):
    """A run ended early because a signal asked for it. Its text says how to go on."""

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal


def unknown(kind: str, given: str, known: Iterable[str]) -> DiasterError:
    """The error for a name that is not in a closed list, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(given[:LONGEST_NAME], names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return DiasterError(f"unknown {kind} '{given}'; known: {', '.join(names)}.{hint}")

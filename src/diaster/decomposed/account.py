"""Which episodes a replay's ring holds, and which of their numbers are still to come; kept on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError


class Stored(NamedTuple):
    """An episode in the ring."""

    length: int
    first_span: int  # its first span, counted from the start
    is_rated: NDArray[np.bool_]  # [K] which of its spans have their numbers; changes as numbers come


class RingAccount:
    """The ring's own account: a step is a row, and an episode has one more. Whole episodes make room."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stored: deque[Stored] = deque()
        self.episodes = self.spans = 0  # ever added
        self.steps = 0  # that are stored, and
        self.rated = 0  # spans with a number that are

    @property
    def is_full(self) -> bool:
        """Whether episodes have had to make room."""
        return len(self._stored) < self.episodes

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """The number of the episode, and which of its spans it is, of all that are stored without feedback."""
        first = self.episodes - len(self._stored)
        return [
            (first + i, int(span)) for i, stored in enumerate(self._stored) for span in np.flatnonzero(~stored.is_rated)
        ]

    def add(self, length: int, is_rated: NDArray[np.bool_]) -> int:
        """Take in an episode; returns its number."""
        self._append(length, is_rated)
        self.episodes += 1
        return self.episodes - 1

    def take(self, episode: int, span: int) -> int | None:
        """Note that a span now has its number; returns which span of the ring it is. None: its episode has left."""
        if not (_is_whole(episode) and 0 <= episode < self.episodes):
            raise DiasterError(
                f"feedback for episode {episode!r} was given, and no episode has that number; give one that add has "
                "returned."
            )
        back = self.episodes - episode  # 1 is the newest
        if back > len(self._stored):
            return None
        stored = self._stored[-back]
        if not (_is_whole(span) and 0 <= span < len(stored.is_rated)):
            raise DiasterError(
                f"feedback for span {span!r} of episode {episode} was given; that has the spans 0 to "
                f"{len(stored.is_rated) - 1}."
            )
        if stored.is_rated[span]:
            what = f"episode {episode}" if len(stored.is_rated) == 1 else f"span {span} of episode {episode}"
            raise DiasterError(f"{what} has its feedback already, and what was learnt from it stays; give it once.")
        stored.is_rated[span] = True
        self.rated += 1
        return stored.first_span + span

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The lengths of what is stored; where episodes have several spans or wait for numbers, these too."""
        found: dict[str, NDArray[Any]] = {"lengths": np.array([stored.length for stored in self._stored], np.int64)}
        if all(len(stored.is_rated) == 1 for stored in self._stored) and self.rated == len(self._stored):
            return found
        rated = [stored.is_rated for stored in self._stored]
        return {**found, "spans": np.array(list(map(len, rated)), np.int64), "rated": np.concatenate(rated)}

    def restore(self, arrays: Mapping[str, NDArray[Any]], episodes: int, spans: int) -> None:
        """Go on from these, after so many episodes and spans."""
        lengths = arrays["lengths"]
        counts = arrays["spans"] if "spans" in arrays else np.ones(len(lengths), np.int64)
        rated = arrays["rated"] if "rated" in arrays else np.ones(len(lengths), bool)
        self._stored.clear()
        self.steps = self.rated = 0
        self.episodes, self.spans = episodes, spans - int(counts.sum())
        for length, count, end in zip(lengths, counts, np.cumsum(counts), strict=True):
            self._append(int(length), rated[end - count : end])

    def _append(self, length: int, is_rated: NDArray[np.bool_]) -> None:
        self._stored.append(Stored(length, self.spans, np.array(is_rated)))
        self.spans += len(is_rated)
        self.steps += length
        self.rated += int(np.sum(is_rated))
        while self.steps + len(self._stored) > self._capacity:
            oldest = self._stored.popleft()
            self.steps -= oldest.length
            self.rated -= int(oldest.is_rated.sum())


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)

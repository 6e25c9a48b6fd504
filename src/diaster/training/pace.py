"""How fast a run learns, and so how long it has to go.

Only chunks in which learning took place tell. The random steps before them take next to no time, and a chunk that has
to wait for a program to be compiled takes minutes. Evaluations are counted apart: they are rare and take long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from diaster.config import RunConfig
from diaster.training.schedule import Chunk, n_evaluations

NAN = float("nan")
WINDOW = 30.0  # seconds of learning that tell the pace
ENOUGH_CHUNKS, ENOUGH_SECONDS = 5, 10.0  # of learning, one or the other, before a run says how long it will take


class Timed(NamedTuple):
    """A chunk of learning, without what it had to wait for evaluations.

    The learning that a chunk launches is waited for in the next one, or in the same where an evaluation begins.
    """

    seconds: float
    steps: int
    was_pending: bool  # learning of the chunk before, when this one began
    is_pending: bool  # its own, at its end


class Pace:
    """Measures the chunks of a run as they pass."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._mark = time.perf_counter()
        self._launched: set[tuple[str, int]] = set()
        self._is_compiling, self._was_pending, self._is_pending = False, False, True
        self._waited = 0.0  # for evaluations, in this chunk
        self._evaluations: list[float] = []  # what each took; the last one may go on
        self._learning: deque[Timed] = deque()
        self._per_step = NAN
        self.is_known = False
        """Whether it has learnt for long enough: by a chunk or two, a run seems faster or slower than it is."""
        self._is_outlook_due = True

    def is_new(self, program: str, n_updates: int) -> bool:
        """Whether a program of so many updates runs for the first time, and so has to be compiled."""
        before = len(self._launched)
        self._launched.add((program, n_updates))
        is_new = len(self._launched) > before
        self._is_compiling |= is_new
        return is_new

    @contextmanager
    def evaluating(self, is_another: bool = False) -> Iterator[None]:
        """Within `with`, time passes for evaluations; `is_another` where one begins, of nets that have been learnt."""
        start = time.perf_counter()
        if is_another:
            self._evaluations.append(0.0)
            self._is_pending = False
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._waited += seconds
            if self._evaluations:
                self._evaluations[-1] += seconds

    def ended(self, chunk: Chunk, is_learnt_from: bool) -> None:
        """A chunk has passed, with learning or without."""
        now = time.perf_counter()
        if is_learnt_from and not self._is_compiling:
            seconds = now - self._mark - self._waited
            self._learning.append(Timed(seconds, chunk.n_steps, self._was_pending, self._is_pending))
            while sum(chunk.seconds for chunk in self._learning) - self._learning[0].seconds > WINDOW:
                self._learning.popleft()
            self._measure()
        else:
            self._learning.clear()
        self._mark, self._waited, self._is_compiling = now, 0.0, False
        self._was_pending, self._is_pending = self._is_pending and is_learnt_from, True

    def _measure(self) -> None:
        """By chunks from a first that had as much to wait for from before as the last has left behind."""
        telling = list(self._learning)
        while telling and telling[0].was_pending != telling[-1].is_pending:
            telling.pop(0)
        if telling:
            self._per_step = sum(chunk.seconds for chunk in telling) / sum(chunk.steps for chunk in telling)
            seconds = sum(chunk.seconds for chunk in self._learning)
            self.is_known |= len(self._learning) >= ENOUGH_CHUNKS or seconds >= ENOUGH_SECONDS

    @property
    def speed(self) -> float:
        """Steps per second, of all seeds; NaN before anything can tell."""
        return len(self._config.seeds) / max(self._per_step, 1e-9)

    def seconds_left(self, step: int) -> float:
        """After so many steps; NaN before anything can tell."""
        each = self._evaluations[-2] if len(self._evaluations) > 2 else 0.0  # the first one waits for compilation
        return (self._config.steps - step) * self._per_step + n_evaluations(self._config, step) * each

    def is_outlook_due(self) -> bool:
        """Whether it is time to say how long the run will take: once."""
        is_due = self._is_outlook_due and self.is_known
        self._is_outlook_due &= not is_due
        return is_due

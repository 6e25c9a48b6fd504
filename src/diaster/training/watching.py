"""Who looks on while a run trains: what a person sees, what is logged elsewhere, and a function of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from diaster.errors import DiasterError
from diaster.rundir.results import ResultRow
from diaster.training.progress import Reporter
from diaster.training.stopping import Callback
from diaster.types import Episode


class Log(Protocol):
    """Something that keeps the numbers of a run for another program. What goes wrong is a DiasterError."""

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        """An evaluation of all seeds has been recorded."""

    def trained(self, step: int, episodes: Sequence[Sequence[Episode]]) -> None:
        """Training episodes of every seed have ended, up to a step."""

    def close(self) -> None:
        """The run has ended, well or not."""


class Watchers(NamedTuple):
    """All of them. A log that fails is warned of and ends nothing; what the callback raises ends the run."""

    reporter: Reporter
    logs: tuple[Log, ...] = ()
    callback: Callback | None = None

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        self.reporter.evaluated(rows)
        for log in self.logs:
            self._try(partial(log.evaluated, rows))

    def trained(self, step: int, episodes: Sequence[Sequence[Episode]]) -> None:
        for log in self.logs:
            self._try(partial(log.trained, step, episodes))

    def close(self) -> None:
        for log in self.logs:
            self._try(log.close)
        self.reporter.close()

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except DiasterError as error:
            self.reporter.warn(str(error))

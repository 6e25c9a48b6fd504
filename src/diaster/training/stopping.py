"""What may end a run before its last step: a return that was reached, one that grows no more, or the caller's wish.

All of them look at evaluations, which run concurrently with learning and end at a time that nobody knows beforehand.
So that a run depends on its settings alone, a wish to stop takes effect at one place only: before the next chunk whose
end is to be evaluated. What the run directory then holds is of the evaluation that ended the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diaster.config import EvaluationConfig
from diaster.errors import DiasterError
from diaster.rundir.results import ResultRow


class Evaluation(NamedTuple):
    """What a callback gets: an evaluation of all seeds. Its numbers are already in the run directory.

    Examples:
        >>> def watch(evaluation):
        ...     print(evaluation.step, evaluation.return_mean)
        ...     return evaluation.return_mean > 3000.0  # ends the run
        >>> run = diaster.train("Hopper-v5", callback=watch)
    """

    run: Path
    """The run directory."""
    step: int
    """Environment steps each seed has taken."""
    steps: int
    """Environment steps of the whole run, per seed."""
    rows: tuple[ResultRow, ...]
    """A row per seed, with the columns of progress.csv."""

    @property
    def return_mean(self) -> float:
        """The mean return of all seeds."""
        return mean_return(self.rows)


Callback = Callable[[Evaluation], Any]
"""Called after every evaluation; the run ends if it returns something true."""


def check_callback(callback: Any) -> None:
    """Refuse what cannot be called, before a run trains up to its first evaluation."""
    if callback is not None and not callable(callback):
        raise DiasterError(f"callback={callback!r} cannot be called; give a function that takes an evaluation.")


def mean_return(rows: Sequence[ResultRow]) -> float:
    """Of the evaluation of all seeds."""
    return sum(row["return_mean"] for row in rows) / len(rows)


class Stopping:
    """Takes in evaluations one after the other, and knows whether the run is to end, and why."""

    def __init__(self, settings: EvaluationConfig) -> None:
        self._settings = settings
        self._best, self._since_best = float("-inf"), 0
        self.reason: str | None = None
        """Why the run ends early, once it does."""

    def add(self, rows: Sequence[ResultRow]) -> None:
        """Take in an evaluation of all seeds. What it says depends on these and the settings alone."""
        found, settings = mean_return(rows), self._settings
        self._since_best = 0 if found > self._best else self._since_best + 1
        self._best = max(found, self._best)
        if self.reason is not None:
            return
        if settings.stop_at != "never" and found >= settings.stop_at:
            self.reason = (
                f"at step {rows[0]['step']:,} the mean return {found:,.1f} reached stop_at={settings.stop_at:g}"
            )
        elif 0 < settings.stop_after <= self._since_best:
            self.reason = (
                f"up to step {rows[0]['step']:,} the mean return has not exceeded {self._best:,.1f} in "
                f"stop_after={settings.stop_after} evaluations"
            )

    def ask(self, callback: Callback, evaluation: Evaluation) -> None:
        """Let the caller see an evaluation; what it raises is passed on."""
        if callback(evaluation) and self.reason is None:
            self.reason = f"at step {evaluation.step:,} the callback asked for it"

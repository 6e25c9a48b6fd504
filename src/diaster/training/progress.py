"""What a person sees while a run trains: a progress bar, plain lines where there is no terminal, or nothing."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TextIO

from diaster.config import RunConfig
from diaster.errors import complain, shortened
from diaster.rundir.results import ResultRow
from diaster.types import EnvSpec

DAY = 24 * 60 * 60


class Progress(NamedTuple):
    """Where a run stands."""

    step: int
    training_return: float
    fit_r2: float


class Reporter(Protocol):
    """Called by training; `close` is called whatever happens."""

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def evaluated(self, rows: Sequence[ResultRow]) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Says nothing but warnings."""

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def evaluated(self, rows: Sequence[ResultRow]) -> None: ...

    def warn(self, sentence: str) -> None:
        complain(f"warning: {sentence}")

    def close(self) -> None: ...


@contextlib.contextmanager
def _unfailing() -> Iterator[None]:
    """Output that cannot be written (a full disk, a closed pipe, a closed stream) raises nothing."""
    try:
        yield
    except OSError:
        pass
    except ValueError as error:
        if "closed file" not in str(error):
            raise


class Unfailing:
    """Passes everything on to a reporter. What it cannot write never ends a run."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        with _unfailing():
            self._reporter.start(config, spec, step)

    def advance(self, progress: Progress) -> None:
        with _unfailing():
            self._reporter.advance(progress)

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        with _unfailing():
            self._reporter.evaluated(rows)

    def warn(self, sentence: str) -> None:
        with _unfailing():
            self._reporter.warn(sentence)

    def close(self) -> None:
        with _unfailing():
            self._reporter.close()


class Lines(Silent):
    """A line per evaluation."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = Clock(0)
        self._outlook: Outlook | None = None

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        self._clock = Clock(config.steps * len(config.seeds), step * len(config.seeds))
        self._seeds = len(config.seeds)
        self._outlook = Outlook(config, step)
        self._say(headline(config, spec))

    def advance(self, progress: Progress) -> None:
        self._clock.tick(progress.step * self._seeds)
        if self._outlook is not None and (outlook := self._outlook.after(progress.step)):
            self._say(outlook)

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        self._say(f"{evaluation_line(rows)}  {self._clock.text()}")

    def warn(self, sentence: str) -> None:
        self._say(f"warning: {sentence}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar(Silent):
    """A live bar with return, fit, speed and time left, and a line per evaluation above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._clock = Clock(0)
        self._outlook: Outlook | None = None

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        self._clock = Clock(config.steps * len(config.seeds), step * len(config.seeds))
        self._seeds = len(config.seeds)
        self._outlook = Outlook(config, step)
        self._bar.console.print(headline(config, spec), highlight=False)
        self._task = self._bar.add_task(shortened(config.env), total=config.steps, completed=step, state="")
        self._bar.start()

    def advance(self, progress: Progress) -> None:
        self._clock.tick(progress.step * self._seeds)
        state = f"return {number(progress.training_return)}  fit {short(progress.fit_r2)}  {self._clock.text()}"
        self._bar.update(self._task, completed=progress.step, state=state)
        if self._outlook is not None and (outlook := self._outlook.after(progress.step)):
            self._bar.console.print(outlook, highlight=False)

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        self._bar.console.print(evaluation_line(rows), highlight=False)

    def warn(self, sentence: str) -> None:
        self._bar.console.print(f"warning: {sentence}", highlight=False, markup=False, style="yellow")

    def close(self) -> None:
        self._bar.stop()


class Outlook:
    """How long the run will take, said once: when the first chunk has been learnt that did not wait for compilation."""

    def __init__(self, config: RunConfig, step: int) -> None:
        self._config, self._first = config, step
        self._last: tuple[float, int] | None = None
        self._is_said = False

    def after(self, step: int) -> str | None:
        """A sentence after the first chunk that can tell; nothing after others."""
        warmup = self._config.warmup_steps
        learns = isinstance(warmup, int) and step >= warmup and step > self._first
        if self._is_said or not learns:
            return None
        now = time.perf_counter()
        if self._last is None:
            self._last = now, step
            return None
        self._is_said = True
        seconds, steps = now - self._last[0], step - self._last[1]
        left = (self._config.steps - step) * seconds / max(steps, 1)
        speed = len(self._config.seeds) * steps / max(seconds, 1e-9)
        return f"about {duration(left)} to go at {speed:,.0f} steps/s, by the first chunk; evaluations may add to it"


class Clock:
    """Speed over the last half minute or so, and the time that is left."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done = total, done
        self._marks = [(time.perf_counter(), done)]

    def tick(self, done: int) -> None:
        self._done = done
        now = time.perf_counter()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > 30.0:
            self._marks.pop(0)

    def text(self) -> str:
        (first, steps), (last, now) = self._marks[0], self._marks[-1]
        speed = (now - steps) / max(last - first, 1e-9)
        if speed <= 0:
            return ""
        return f"{speed:,.0f} steps/s  {duration((self._total - self._done) / speed)} left"


def duration(seconds: float) -> str:
    """2:03:04, or 3:04, or 4.1 days."""
    if seconds > 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def make_reporter() -> Reporter:
    """A bar on a terminal, lines elsewhere; both on standard error."""
    if sys.stderr is None:  # it was closed before we began
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines(sys.stderr)


def headline(config: RunConfig, spec: EnvSpec) -> str:
    """What is about to run."""
    seeds = ", ".join(map(str, config.seeds))
    many = "s" * (len(config.seeds) > 1)
    return (
        f"{shortened(config.env)}: {config.method.name} ({config.preset}) + {config.agent.name}, seed{many} {seeds}, "
        f"{config.steps:,} steps each; {spec.obs_dim} observations, {spec.action_dim} actions, horizon {spec.horizon}"
    )


def evaluation_line(rows: Sequence[ResultRow]) -> str:
    """One evaluation, all seeds together."""
    return (
        f"step {rows[0]['step']:>9,}  return {number(mean(rows, 'return_mean')):>9}"
        f"  length {number(mean(rows, 'length_mean'), 0):>5}  fit {short(mean(rows, 'fit_r2')):>5}"
        f"  corr. {short(mean(rows, 'reward_correlation')):>5}"
    )


def mean(rows: Sequence[ResultRow], name: str) -> float:
    """Over the seeds in which the number has a meaning."""
    known = [row[name] for row in rows if not math.isnan(row[name])]
    return sum(known) / len(known) if known else float("nan")


def short(value: float) -> str:
    """A score that is at most 1; how far below -9 it lies tells nothing more."""
    return "<-9" if value < -9.0 else number(value, 2)


def number(value: float, digits: int = 1) -> str:
    """For people; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"

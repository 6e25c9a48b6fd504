"""What a person sees while a run trains: a progress bar, plain lines where there is no terminal, or nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TextIO

from diaster.config import RunConfig, task_name
from diaster.errors import LONGEST_SHOWN, complain, shortened
from diaster.rundir.results import ResultRow
from diaster.types import EnvSpec

DAY = 24 * 60 * 60
NAN = float("nan")
NOTHING_TO_DECOMPOSE = "every return the same: nothing to decompose"


class Progress(NamedTuple):
    """Where a run stands."""

    step: int
    training_return: float
    fit_r2: float
    speed: float = NAN
    """Steps per second of all seeds while they learn; NaN before that can be told."""
    seconds_left: float = NAN
    only_return: float = NAN
    """What every episode so far has returned, if that is one number."""


class Reporter(Protocol):
    """Called by training, but for `answer` by one thread; `close` is called whatever happens.

    `warn` is always to be seen, `note` where progress is shown. `doing` says what the run does until it next advances,
    and `answer` answers a signal, from any thread.
    """

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def evaluated(self, rows: Sequence[ResultRow]) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def note(self, sentence: str) -> None: ...

    def doing(self, what: str) -> None: ...

    def answer(self, sentence: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Says nothing but warnings, and answers signals."""

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def evaluated(self, rows: Sequence[ResultRow]) -> None: ...

    def warn(self, sentence: str) -> None:
        complain(f"warning: {sentence}")

    def note(self, sentence: str) -> None: ...

    def doing(self, what: str) -> None: ...

    def answer(self, sentence: str) -> None:
        complain(sentence)

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

    def note(self, sentence: str) -> None:
        with _unfailing():
            self._reporter.note(sentence)

    def doing(self, what: str) -> None:
        with _unfailing():
            self._reporter.doing(what)

    def answer(self, sentence: str) -> None:
        with _unfailing():
            self._reporter.answer(sentence)

    def close(self) -> None:
        with _unfailing():
            self._reporter.close()


class Lines(Silent):
    """A line per evaluation, and one for each kind of work that the run does for the first time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress = Progress(0, NAN, NAN)
        self._done: set[str] = set()

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        self._say(headline(config, spec))

    def advance(self, progress: Progress) -> None:
        self._progress = progress

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        line = evaluation_line(rows, self._progress.only_return)
        self._say(f"{line}  {pace(self._progress)}".rstrip())

    def warn(self, sentence: str) -> None:
        self._say(f"warning: {sentence}")

    def note(self, sentence: str) -> None:
        self._say(sentence)

    def doing(self, what: str) -> None:
        if what not in self._done:
            self._done.add(what)
            self._say(what)

    def answer(self, sentence: str) -> None:
        self._say(sentence)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar(Silent):
    """A live bar with time left, speed, return and fit, or what the run does; and a line per evaluation above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        # A terminal may be narrow: the name gives way first, then the end of the state.
        name = Column(overflow="ellipsis", max_width=LONGEST_SHOWN)
        self._bar = RichProgress(
            TextColumn("{task.description}", table_column=name),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TextColumn("{task.fields[state]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress = Progress(0, NAN, NAN)

    def start(self, config: RunConfig, spec: EnvSpec, step: int = 0) -> None:
        self.note(headline(config, spec))
        warm = config.warmup_steps
        self._warmup = warm if isinstance(warm, int) else 0
        name = shortened(task_name(config))
        self._task = self._bar.add_task(name, total=config.steps, completed=step, state="starting")
        self._bar.start()

    def advance(self, progress: Progress) -> None:
        self._progress = progress
        when = pace(progress) or ("random actions first" if progress.step < self._warmup else "")
        state = f"{when}  return {outcome(progress.training_return)}  fit {score(progress.fit_r2)}".lstrip()
        self._bar.update(self._task, completed=progress.step, state=state)

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        self.note(evaluation_line(rows, self._progress.only_return))

    def warn(self, sentence: str) -> None:
        self._bar.console.print(f"warning: {sentence}", highlight=False, markup=False, style="yellow")

    def note(self, sentence: str) -> None:
        self._bar.console.print(sentence, highlight=False, markup=False)

    def doing(self, what: str) -> None:
        self._bar.update(self._task, state=what)

    def answer(self, sentence: str) -> None:
        self._bar.console.print(sentence, highlight=False, markup=False, style="bold")

    def close(self) -> None:
        self._bar.stop()


def pace(progress: Progress) -> str:
    """Time left and speed, once they are known."""
    if math.isnan(progress.seconds_left):
        return ""
    return f"{duration(progress.seconds_left)} left  {progress.speed:,.0f} steps/s"


def outlook(progress: Progress) -> str:
    """How long the run will take, by what it has measured."""
    return (
        f"about {duration(progress.seconds_left)} to go at {progress.speed:,.0f} steps/s, by the first chunks of "
        "learning; evaluations come on top"
    )


def duration(seconds: float) -> str:
    """2:03:04, or 3:04, or 4.1 days."""
    if seconds > 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def make_reporter() -> Reporter:
    """A bar on a terminal and in a notebook, lines elsewhere; on standard error, in a notebook in the cell's output."""
    if is_notebook():
        # Without ipywidgets a notebook has nothing that could move.
        return Bar() if importlib.util.find_spec("ipywidgets") is not None else Lines(sys.stdout)
    if sys.stderr is None:  # it was closed before we began
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines(sys.stderr)


def is_notebook() -> bool:
    """Whether this runs in a cell of a notebook: IPython is there then, with a kernel behind its shell."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def headline(config: RunConfig, spec: EnvSpec) -> str:
    """What is about to run."""
    seeds = ", ".join(map(str, config.seeds))
    many = "s" * (len(config.seeds) > 1)
    return (
        f"{shortened(task_name(config))}: {config.method.name} ({config.preset}) + {config.agent.name}, "
        f"seed{many} {seeds}, {config.steps:,} steps each; "
        f"{_seen(spec)}, {_counted(spec.action_dim, 'action')}, horizon {spec.horizon}"
    )


def _seen(spec: EnvSpec) -> str:
    """What the environment shows at each step."""
    if spec.image is None:
        return _counted(spec.obs_dim, "observation")
    return f"images of {spec.image.side} × {spec.image.side} × {spec.image.channels}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def evaluation_line(rows: Sequence[ResultRow], only_return: float = NAN) -> str:
    """One evaluation, all seeds together; `only_return` is what every episode so far has returned, if it is one."""
    line = (
        f"step {rows[0]['step']:>9,}  return {outcome(mean(rows, 'return_mean')):>9}"
        f"  length {number(mean(rows, 'length_mean'), 0):>5}"
    )
    if not math.isnan(only_return):
        return f"{line}  {NOTHING_TO_DECOMPOSE}"
    fit, correlation = mean(rows, "fit_r2"), mean(rows, "reward_correlation")
    return f"{line}  fit {score(fit):>5}  corr. {number(correlation, 2):>5}"


def mean(rows: Sequence[ResultRow], name: str) -> float:
    """Over the seeds in which the number has a meaning."""
    known = [row[name] for row in rows if not math.isnan(row[name])]
    return sum(known) / len(known) if known else float("nan")


def score(value: float) -> str:
    """An R²; how far it lies below -1 tells no more than that it does."""
    return "<-1" if value < -1.0 else number(value, 2)


def outcome(value: float) -> str:
    """A return: tasks differ in its size, and one below 10 needs more digits than one does of thousands."""
    return number(value, 3 if 0.0 < abs(value) < 10.0 else 1)


def number(value: float, digits: int = 1) -> str:
    """For people; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"

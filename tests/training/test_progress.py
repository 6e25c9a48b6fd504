import io
import math

import numpy as np
import pytest

from diaster.config import build_config
from diaster.training import progress as report
from diaster.training.progress import (
    Bar,
    Clock,
    Lines,
    Outlook,
    Progress,
    Silent,
    evaluation_line,
    headline,
    make_reporter,
    mean,
    number,
)
from diaster.types import EnvSpec

NAN = float("nan")
CONFIG = build_config(env="Toy-v0", steps=1000, seeds=(4, 2))
SPEC = EnvSpec("Toy-v0", 3, 2, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), 20)


def row(seed: int, **values: float) -> dict[str, float]:
    known = {"return_mean": 1234.56, "length_mean": 20.0, "fit_r2": 0.5, "reward_correlation": NAN}
    return {"step": 500, "seed": seed, **known, **values}


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(report, "time", time)
    return time


def follow(reporter: report.Reporter, clock_time: Time) -> None:
    """All that training tells a reporter."""
    reporter.start(CONFIG, SPEC)
    clock_time.now += 2.0
    reporter.advance(Progress(400, 12.3, NAN))
    clock_time.now += 1.0
    reporter.evaluated([row(4), row(2)])
    reporter.warn("the fit is [poor] indeed.")
    reporter.advance(Progress(1000, 45.6, 0.5))
    reporter.close()


# Clock


def test_a_clock_that_has_seen_nothing_says_nothing(clock_time: Time) -> None:
    assert Clock(100).text() == ""


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (100, "10 steps/s  0:00 left"),
        (150, "10 steps/s  0:05 left"),
        (100 + 10 * 754, "10 steps/s  12:34 left"),
        (100 + 10 * 7384, "10 steps/s  2:03:04 left"),
    ],
)
def test_a_clock_says_speed_and_time_left(total: int, text: str, clock_time: Time) -> None:
    clock = Clock(total)
    clock_time.now += 10.0
    clock.tick(100)
    assert clock.text() == text


def test_speed_is_that_of_the_last_half_minute(clock_time: Time) -> None:
    clock = Clock(10_000)
    for _ in range(100):
        clock_time.now += 1.0
        clock.tick(0)
    for tick in range(40):
        clock_time.now += 1.0
        clock.tick(1000 * (tick + 1))
    assert clock.text().startswith("1,000 steps/s")


def test_two_ticks_at_one_time_are_no_division_by_zero(clock_time: Time) -> None:
    clock = Clock(10)
    clock.tick(5)
    assert "left" in clock.text()


def test_an_evaluation_of_an_older_step_does_not_slow_the_clock_down(clock_time: Time) -> None:
    text = io.StringIO()
    lines = Lines(text)
    lines.start(CONFIG, SPEC)
    for step in (200, 400, 600, 800):
        clock_time.now += 2.0
        lines.advance(Progress(step, 1.0, NAN))
    lines.evaluated([row(4), row(2)])  # of step 500
    assert "200 steps/s" in text.getvalue().splitlines()[-1]


# Lines of text


def test_the_headline_says_what_runs() -> None:
    line = headline(CONFIG, SPEC)
    for part in ("Toy-v0", "diaster (default) + sac", "seeds 4, 2", "1,000 steps", "3 observations", "horizon 20"):
        assert part in line
    assert "seed 4," in headline(build_config(env="Toy-v0", seeds=(4,)), SPEC)
    assert len(headline(build_config(env="x" * 10_000), SPEC)) < 200


def test_an_evaluation_is_one_line_with_means_over_seeds_and_dashes_for_nan() -> None:
    line = evaluation_line([row(4), row(2, return_mean=34.56, fit_r2=NAN)])
    assert line.split() == ["step", "500", "return", "634.6", "length", "20", "fit", "0.50", "corr.", "–"]


def test_an_evaluation_fits_a_terminal_of_80_columns() -> None:
    values = {"return_mean": -12345.6, "length_mean": 1000.0, "fit_r2": -0.25, "reward_correlation": -0.25}
    assert len(evaluation_line([row(4, step=1_000_000, **values)])) < 80


def test_the_mean_is_over_the_seeds_that_have_a_number() -> None:
    assert mean([{"x": 1.0}, {"x": NAN}, {"x": 4.0}], "x") == 2.5
    assert math.isnan(mean([{"x": NAN}], "x"))


def test_numbers_are_written_for_people() -> None:
    assert (number(1234.56), number(0.126, 2), number(-3.0, 0), number(NAN)) == ("1,234.6", "0.13", "-3", "–")


# Reporters


def test_lines_go_to_the_stream_one_per_event(clock_time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    follow(Lines(stream), clock_time)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == headline(CONFIG, SPEC)
    assert lines[1].startswith(evaluation_line([row(4), row(2)]))
    assert lines[1].endswith("400 steps/s  0:03 left")  # 1000 of 2000 steps in three seconds
    assert lines[2] == "warning: the fit is [poor] indeed."
    assert capsys.readouterr() == ("", "")


def test_a_bar_works_without_a_terminal(clock_time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    follow(Bar(), clock_time)
    out, err = capsys.readouterr()
    text = " ".join(err.split())
    assert out == ""
    assert " ".join(headline(CONFIG, SPEC).split()) in text
    assert " ".join(evaluation_line([row(4), row(2)]).split()) in text
    assert "warning: the fit is [poor] indeed." in text


def test_the_bar_shows_return_fit_speed_and_time_left(clock_time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.start(CONFIG, SPEC)
    clock_time.now += 2.0
    bar.advance(Progress(400, 12.3, 0.456))
    [task] = bar._bar.tasks
    bar.close()
    assert (task.completed, task.total) == (400, 1000)
    assert task.fields["state"] == "return 12.3  fit 0.46  400 steps/s  0:03 left"


def test_silence_is_broken_by_warnings_alone(clock_time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    follow(Silent(), clock_time)
    assert capsys.readouterr() == ("", "warning: the fit is [poor] indeed.\n")


def test_a_bar_is_for_terminals_and_lines_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, kind in ((True, Bar), (False, Lines)):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stderr", stream)
        assert type(make_reporter()) is kind


# Outlook


def test_the_time_to_go_is_said_once_after_the_first_chunk_without_compilation(clock_time: Time) -> None:
    outlook = Outlook(build_config(env="Toy-v0", steps=100_000, seeds=2, warmup_steps=1000, chunk_steps=200), 0)
    said = []
    for step, seconds in ((800, 1.0), (1000, 30.0), (1200, 2.0), (1400, 2.0)):
        clock_time.now += seconds
        said.append(outlook.after(step))
    # 98,800 steps at 200 steps in 2 seconds
    expected = "about 16:28 to go at 200 steps/s, by the first chunk; evaluations may add to it"
    assert said == [None, None, expected, None]


def test_a_run_that_is_taken_up_again_does_not_count_what_it_did_before(clock_time: Time) -> None:
    outlook = Outlook(build_config(env="Toy-v0", steps=2000, warmup_steps=100, chunk_steps=200), 1000)
    assert [outlook.after(step) for step in (1000, 1200)] == [None, None]
    clock_time.now += 1.0
    assert (outlook.after(1400) or "").startswith("about 0:03 to go at 200 steps/s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04"), (354_240, "4.1 days")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text

import dataclasses
import io
import math
from collections.abc import Callable

import numpy as np
import pytest

from diaster.config import build_config
from diaster.training import progress as report
from diaster.training.progress import (
    Bar,
    Lines,
    Progress,
    Silent,
    Unfailing,
    evaluation_line,
    headline,
    make_reporter,
    mean,
    number,
    outcome,
    outlook,
    pace,
    score,
)
from diaster.types import EnvSpec, Image

NAN = float("nan")
CONFIG = build_config(env="Toy-v0", steps=1000, seeds=(4, 2))
SPEC = EnvSpec("Toy-v0", 3, 2, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), 20)


def row(seed: int, **values: float) -> dict[str, float]:
    known = {"return_mean": 1234.56, "length_mean": 20.0, "fit_r2": 0.5, "reward_correlation": NAN}
    return {"step": 500, "seed": seed, **known, **values}


LEARNING = Progress(1000, 45.6, 0.5, speed=400.0, seconds_left=754.0)


def follow(reporter: report.Reporter) -> None:
    """All that training tells a reporter."""
    reporter.start(CONFIG, SPEC)
    reporter.note("this will take [some] time.")
    reporter.advance(Progress(40, 12.3, NAN))
    reporter.doing("compiling the [agent's] updates")
    reporter.advance(Progress(400, 12.3, NAN, 400.0, 3.0))
    reporter.doing("evaluating")
    reporter.evaluated([row(4), row(2)])
    reporter.warn("the fit is [poor] indeed.")
    reporter.doing("evaluating")
    reporter.advance(LEARNING)
    reporter.answer("finishing the [chunk].")
    reporter.close()


@pytest.fixture
def states() -> Callable[[Bar], str]:
    def state(bar: Bar) -> str:
        [task] = bar._bar.tasks
        return str(task.fields["state"])

    return state


# Time left


def test_what_is_not_known_yet_is_not_said() -> None:
    assert pace(Progress(400, 12.3, NAN)) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0:00"), (5.0, "0:05"), (754.0, "12:34"), (7384.0, "2:03:04")])
def test_time_left_and_speed_are_said_once_they_are_known(seconds: float, text: str) -> None:
    progress = Progress(400, 12.3, NAN, speed=1234.5, seconds_left=seconds)
    assert pace(progress) == f"{text} left  1,234 steps/s"
    assert outlook(progress).startswith(f"about {text} to go at 1,234 steps/s, by the first chunks of learning")


# Lines of text


def test_the_headline_says_what_runs() -> None:
    line = headline(CONFIG, SPEC)
    for part in ("Toy-v0", "diaster (default) + xqc", "seeds 4, 2", "1,000 steps", "3 observations", "horizon 20"):
        assert part in line
    assert "3 observations, 1 action, horizon" in headline(CONFIG, SPEC._replace(obs_dim=3, action_dim=1))
    filmed = SPEC._replace(obs_dim=12_288, image=Image(64, 3))
    assert "images of 64 × 64 × 3," in headline(CONFIG, filmed), "12288 observations would say nothing"
    assert "seed 4," in headline(build_config(env="Toy-v0", seeds=(4,)), SPEC)
    assert len(headline(build_config(env="x" * 10_000), SPEC)) < 200


def test_an_evaluation_is_one_line_with_means_over_seeds_and_dashes_for_nan() -> None:
    line = evaluation_line([row(4), row(2, return_mean=34.56, fit_r2=NAN)])
    assert line.split() == ["step", "500", "return", "634.6", "length", "20", "fit", "0.50", "corr.", "–"]


def test_where_every_return_is_the_same_an_evaluation_says_so_in_place_of_empty_columns() -> None:
    line = evaluation_line([row(4, fit_r2=NAN, return_mean=-200.0)], only_return=-200.0)
    assert line.endswith("length    20  every return the same: nothing to decompose")
    assert "fit" not in line and "corr" not in line
    stream = io.StringIO()
    lines = Lines(stream)
    lines.advance(Progress(1000, -200.0, NAN, only_return=-200.0))
    lines.evaluated([row(4, fit_r2=NAN)])
    assert stream.getvalue().rstrip().endswith("nothing to decompose")


@pytest.mark.parametrize(("value", "text"), [(-11_963_941_616.0, "<-1"), (-1.01, "<-1"), (-1.0, "-1.00"), (NAN, "–")])
def test_how_far_a_fit_lies_below_minus_one_is_not_said(value: float, text: str) -> None:
    assert score(value) == text
    assert f"fit {text:>5} " in evaluation_line([row(4, fit_r2=value)])


def test_an_evaluation_fits_a_terminal_of_80_columns() -> None:
    values = {"return_mean": -12345.6, "length_mean": 1000.0, "fit_r2": -0.25, "reward_correlation": -0.25}
    assert len(evaluation_line([row(4, step=1_000_000, **values)])) < 80


def test_the_mean_is_over_the_seeds_that_have_a_number() -> None:
    assert mean([{"x": 1.0}, {"x": NAN}, {"x": 4.0}], "x") == 2.5
    assert math.isnan(mean([{"x": NAN}], "x"))


def test_numbers_are_written_for_people() -> None:
    assert (number(1234.56), number(0.126, 2), number(-3.0, 0), number(NAN)) == ("1,234.6", "0.13", "-3", "–")


def test_a_small_return_has_more_digits_than_a_large_one() -> None:
    assert [outcome(value) for value in (0.034, -7.25, 12.34, 3217.0, 0.0, NAN)] == [
        *("0.034", "-7.250", "12.3", "3,217.0", "0.0", "–")
    ]


# Reporters


def test_lines_go_to_the_stream_one_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    follow(Lines(stream))
    assert stream.getvalue().splitlines() == [
        headline(CONFIG, SPEC),
        "this will take [some] time.",
        "compiling the [agent's] updates",
        "evaluating",
        f"{evaluation_line([row(4), row(2)])}  0:03 left  400 steps/s",
        "warning: the fit is [poor] indeed.",
        "finishing the [chunk].",
    ]
    assert capsys.readouterr() == ("", "")


def test_a_bar_works_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Bar())
    out, err = capsys.readouterr()
    text = " ".join(err.split())
    assert out == ""
    for sentence in (
        headline(CONFIG, SPEC),
        "this will take [some] time.",
        evaluation_line([row(4), row(2)]),
        "warning: the fit is [poor] indeed.",
        "finishing the [chunk].",
    ):
        assert " ".join(sentence.split()) in text


def test_the_bar_shows_time_left_speed_return_and_fit(states: Callable[[Bar], str]) -> None:
    bar = Bar()
    bar.start(CONFIG, SPEC)
    bar.advance(Progress(400, 12.3, -7.89, 400.0, 3.0))
    assert states(bar) == "0:03 left  400 steps/s  return 12.3  fit <-1"
    [task] = bar._bar.tasks
    bar.close()
    assert (task.completed, task.total) == (400, 1000)


def test_the_bar_says_what_a_run_does_before_its_pace_is_known(states: Callable[[Bar], str]) -> None:
    bar = Bar()
    bar.start(dataclasses.replace(CONFIG, warmup_steps=100), SPEC)
    found = [states(bar)]
    for step in (40, 100):
        bar.advance(Progress(step, 12.3, NAN))
        found.append(states(bar))
    bar.doing("compiling the agent's updates")
    found.append(states(bar))
    bar.advance(Progress(200, 12.3, NAN, 400.0, 3.0))
    found.append(states(bar))
    bar.close()
    assert found == [
        "starting",
        "random actions first  return 12.3  fit –",
        "return 12.3  fit –",
        "compiling the agent's updates",
        "0:03 left  400 steps/s  return 12.3  fit –",
    ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_in_a_narrow_terminal_the_bar_keeps_its_numbers(width: int) -> None:
    from rich.console import Console

    bar = Bar()
    bar.start(build_config(env="LongEnvironmentName-v0", steps=20_000), SPEC)
    bar.advance(Progress(2600, 12.3, 0.5, 400.0, 754.0))
    stream = io.StringIO()
    Console(file=stream, width=width).print(bar._bar.get_renderable())
    bar.close()
    [line] = stream.getvalue().splitlines()
    assert len(line) <= width
    assert "2,600/20,000" in line and "12:34 left" in line
    if width >= 80:
        assert "fit 0.50" in line


def test_silence_is_broken_by_warnings_and_answers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Silent())
    assert capsys.readouterr() == ("", "warning: the fit is [poor] indeed.\nfinishing the [chunk].\n")


def test_what_cannot_be_written_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    follow(Unfailing(Lines(stream)))
    with pytest.raises(ValueError, match="closed file"):
        follow(Lines(stream))


def test_a_bar_is_for_terminals_and_lines_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, kind in ((True, Bar), (False, Lines)):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stderr", stream)
        assert type(make_reporter()) is kind


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (7384, "2:03:04"), (354_240, "4.1 days")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text

import io
import sys

from diaster.offline.progress import Lines, Quiet, make_progress


def test_a_stage_ends_with_a_line() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.start("reading", None)
    for done in (10, 1234):
        lines.advance(done)
    lines.end()
    lines.start("fitting", 2000)
    lines.advance(500, "held-out error 0.5")
    lines.end()
    assert stream.getvalue() == "reading: 1,234 steps\nfitting: 500 of 2,000 updates, held-out error 0.5\n"


def test_a_long_stage_says_now_and_then_where_it_is(monkeypatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = Lines(stream)
    lines.start("reading", None)
    for second in range(40):
        now[0] = float(second)
        lines.advance(second)
    assert stream.getvalue() == "reading: 15 steps\nreading: 30 steps\n"


def test_output_that_cannot_be_written_stops_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    Lines(stream).say("hello")


def test_warnings_are_said_even_where_nothing_else_is(capsys) -> None:
    Quiet().say("hello")
    Quiet().warn("look here")
    assert capsys.readouterr() == ("", "warning: look here\n")


def test_without_a_terminal_there_are_lines(monkeypatch) -> None:
    assert isinstance(make_progress(), Lines)
    monkeypatch.setattr(sys, "stderr", None)
    assert type(make_progress()) is Quiet


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = make_progress()
    bar.start("fitting", 10)
    bar.advance(5, "held-out error [0.5]")
    bar.end()
    bar.warn("look here")
    said = capsys.readouterr().err
    assert "fitting: 5 of 10 updates, held-out error [0.5]" in said and "warning: look here" in said

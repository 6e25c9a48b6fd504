"""What a sentence is, and the one for an unknown name."""

import pickle

from diaster.errors import LONGEST_SENTENCE, DiasterError, shortened, unknown


def test_a_sentence_is_one_line_that_a_terminal_only_shows() -> None:
    assert str(DiasterError("a\nb\x1b[2J\x00\udc80 ä…")) == r"a\nb\x1b[2J\x00\udc80 ä…"


def test_a_sentence_of_any_length_keeps_its_start_and_its_end() -> None:
    text = str(DiasterError("start" + "x" * 10**6 + "end"))
    assert text.startswith("startx") and text.endswith("xend") and len(text) < LONGEST_SENTENCE + 10


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(DiasterError("a\nb")))
    assert type(error) is DiasterError and str(error) == r"a\nb"


def test_an_unknown_name_gets_the_known_ones_and_the_nearest() -> None:
    assert str(unknown("method", "diastr", ["rrd", "diaster"])) == (
        "unknown method 'diastr'; known: diaster, rrd. Did you mean 'diaster'?"
    )


def test_a_name_of_any_length_is_compared_in_no_time() -> None:
    assert "known: rrd" in str(unknown("method", "r" * 10**7, ["rrd"])).replace(" … ", "")


def test_a_name_that_is_like_none_gets_no_guess() -> None:
    assert "mean" not in str(unknown("method", "xyzzy", ["rrd", "diaster"]))


def test_a_long_name_is_shown_with_an_ellipsis() -> None:
    assert (shortened("abcdef", 6), shortened("abcdefg", 6)) == ("abcdef", "abcde…")

"""The sentence for an unknown name."""

from diaster.errors import unknown


def test_an_unknown_name_gets_the_known_ones_and_the_nearest() -> None:
    assert str(unknown("method", "diastr", ["rrd", "diaster"])) == (
        "unknown method 'diastr'; known: diaster, rrd. Did you mean 'diaster'?"
    )


def test_a_name_that_is_like_none_gets_no_guess() -> None:
    assert "mean" not in str(unknown("method", "xyzzy", ["rrd", "diaster"]))

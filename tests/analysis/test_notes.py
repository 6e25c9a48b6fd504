"""Notes in words."""

import numpy as np
import pytest

from diaster.analysis.notes import Note, mean_and_error, seeds_text, sentences, steps_text


def test_notes_that_say_the_same_are_one_line() -> None:
    notes = [Note("a", "late"), Note("b", "late"), Note("a", "late"), Note("c", "gone")]
    assert sentences(notes) == ["a, b: late.", "c: gone."]
    assert sentences([Note(name, "late") for name in "abcdef"]) == ["a, b, c, d and 2 more: late."]


@pytest.mark.parametrize(("steps", "text"), [(999, "999"), (20_000, "20 k"), (1_500_000, "1.5 M")])
def test_steps_are_written_short(steps: int, text: str) -> None:
    assert steps_text(steps) == text


def test_a_long_list_of_seeds_is_cut_after_five() -> None:
    assert [seeds_text(list(range(n))) for n in (1, 5, 6)] == [
        "seed 0",
        "seeds 0, 1, 2, 3, 4",
        "seeds 0, 1, 2, 3, 4, …",
    ]


def test_a_mean_and_its_error_have_the_digits_that_the_mean_needs() -> None:
    written = [mean_and_error(np.array(of_seeds)) for of_seeds in ([3000.0, 3200.0], [12.0, 14.0], [0.5, -1.0], [7.0])]
    assert written == ["3,100 ± 100", "13.0 ± 1.0", "−0.25 ± 0.75", "7.00"]

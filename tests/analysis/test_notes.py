"""Notes in words."""

import pytest

from diaster.analysis.notes import Note, seeds_text, sentences, steps_text


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

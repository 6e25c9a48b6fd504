"""--only and --label: which runs a pattern fits, and what is said of one that fits none."""

from pathlib import Path

import pytest

from diaster.analysis.selection import fits, labels_of, parse_label, selected
from diaster.errors import DiasterError

ROOT = Path("runs")
FOLDERS = [ROOT / name for name in ("hopper/a", "hopper/b", "ant", "ant-td3")]


def chosen(*only: str) -> list[str]:
    return [folder.relative_to(ROOT).as_posix() for folder in selected(ROOT, FOLDERS, only)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("ant", ["ant"]),
        ("ant*", ["ant", "ant-td3"]),
        ("hopper", ["hopper/a", "hopper/b"]),  # a folder stands for all runs in it
        ("hopper/", ["hopper/a", "hopper/b"]),
        ("hopper/[!a]", ["hopper/b"]),
        ("*/a", ["hopper/a"]),
        ("runs/hopper/a", ["hopper/a"]),  # as the shell completes it
        ("./runs/ant*", ["ant", "ant-td3"]),
        ("*", ["hopper/a", "hopper/b", "ant", "ant-td3"]),
    ],
)
def test_a_pattern_fits_folders_below_the_results(pattern: str, found: list[str]) -> None:
    assert chosen(pattern) == found


def test_several_patterns_choose_what_any_of_them_fits_in_the_order_of_the_folders() -> None:
    assert chosen("ant", "hopper/b") == ["hopper/b", "ant"]
    assert chosen() == ["hopper/a", "hopper/b", "ant", "ant-td3"]


def test_the_name_of_the_results_folder_is_no_part_of_what_a_pattern_has_to_fit() -> None:
    assert not fits("*uns/x*", ROOT, ROOT / "ant")
    assert fits("runs", ROOT, ROOT)  # but where it is the run itself


def test_a_pattern_that_fits_nothing_is_refused_with_what_there_is() -> None:
    sentence = "--only 'hoper' fits no run in 'runs'; there are hopper/a, hopper/b, ant, ant-td3."
    with pytest.raises(DiasterError) as caught:
        chosen("ant", "hoper")
    assert str(caught.value) == sentence
    with pytest.raises(DiasterError, match=r"there are 0, 1, .*, 11 and 8 more"):
        selected(ROOT, [ROOT / str(n) for n in range(20)], ["x"])


def test_the_first_label_that_fits_counts() -> None:
    found = labels_of(ROOT, FOLDERS, ["ant=the first", "ant*=others", "hopper/a=h = 8"])
    assert {folder.name: text for folder, text in found.items()} == {
        "ant": "the first",
        "ant-td3": "others",
        "a": "h = 8",
    }
    with pytest.raises(DiasterError, match="--label 'x' fits no run"):
        labels_of(ROOT, FOLDERS, ["x=y"])


@pytest.mark.parametrize("given", ["text", "=text", "a=", "a= ", ""])
def test_a_label_without_a_pattern_or_a_text_is_refused(given: str) -> None:
    with pytest.raises(DiasterError, match="PATTERN=TEXT"):
        parse_label(given)


def test_a_label_is_one_short_line() -> None:
    text = parse_label("a=x\n\x1b" + "y" * 500).text
    assert len(text) <= 100 and text.isprintable()

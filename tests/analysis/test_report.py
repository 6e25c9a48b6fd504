"""The report's page as text: self-contained, escaped, complete. What a browser makes of it is tested elsewhere."""

import base64
import hashlib
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import make_run

from diaster.analysis.figures import FIGURES
from diaster.analysis.report import write_page
from diaster.config import METHODS
from diaster.errors import DiasterError

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&-v0"
FOLDER = "<i>runs'\"&"
VOID = {"meta", "input", "source", "img", "br", "link"}
NAMES = ["diaster, 200 steps", "diaster, 10 steps", "rrd", "dense (reference)"]


class Page(HTMLParser):
    """Elements, texts and attributes; complains of what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.texts).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("page")
    for method in ("diaster", "rrd", "dense"):
        columns = {"fit_r2": [-1e10, 0.5]} if method == "diaster" else {}
        make_run(
            root / FOLDER / method, {0: [1.0, 2.0], 1: [2.0, 4.0]}, env="Hopper-v5", method=method, columns=columns
        )
    make_run(root / FOLDER / "short", {0: [7.0]}, every=10, env="Hopper-v5")
    make_run(root / FOLDER / "evil", {0: [1.0] * 2000}, every=1, env=EVIL, method="rrd", done=False, steps=9999)
    left_out = write_page(root / FOLDER, root / "report.html")
    assert [line.partition(":")[0] for line in left_out] == [
        "proxy-reward", "heatmap", "cut-points", "step-reward", "feedback", "credit",
    ]  # fmt: skip
    return (root / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_element_is_closed(page: Page) -> None:
    assert page.open == []


def test_nothing_is_loaded_from_anywhere(page: Page, text: str) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), f"<{tag} {name}=…>"
    styles = "".join(page.scripts)
    assert "@import" not in styles and "url(" not in styles and "fetch(" not in styles
    assert page.all("link") == []


def test_its_own_policy_allows_its_script_and_its_style_alone(page: Page) -> None:
    [policy] = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:;")
    digests = re.findall(r"'sha256-([^']+)'", policy)
    found = {base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in page.scripts}
    assert len(digests) == 2 and set(digests) <= found
    assert not any(name.startswith("on") or name == "style" for _, attributes in page.elements for name in attributes)


def test_hostile_names_are_text_and_nothing_else(page: Page, text: str) -> None:
    assert len(page.all("script")) == 2
    assert all("onerror" not in attributes for attributes in page.all("img"))
    assert EVIL[:40] in "".join(page.texts)
    assert "alert(1)</script>" not in text


def test_the_name_of_a_folder_is_text_in_the_title_and_in_commands(page: Page) -> None:
    assert page.all("i") == []
    assert page.texts.count(f"{FOLDER}: runs") == 2  # the title and the heading
    assert sum(shlex.quote(FOLDER)[1:] in text for text in page.texts) >= 2


def test_a_method_has_the_colour_that_it_has_in_figures_and_its_curves_shades_of_it(page: Page) -> None:
    style = page.scripts[0]
    looks = [".look0", ".look1", ".look2", ".look3"]
    for look, method in zip(looks, ("diaster", "diaster", "rrd", "dense"), strict=True):
        assert f"{look} {{ --c: var(--{method}, {METHODS[method].colour}); }}" in style
    assert (
        f".look1 {{ --c: color-mix(in srgb, var(--diaster, {METHODS['diaster'].colour}) 62%, var(--ink)); }}" in style
    )


def data_of(page: Page) -> dict:
    return json.loads(next(part for part in page.scripts if part.startswith('{"metrics"')))


def test_the_data_of_the_curves_are_means_and_standard_errors(page: Page) -> None:
    data = data_of(page)
    assert [one["name"] for one in data["kinds"]] == NAMES
    [diaster] = [curve for curve in data["tasks"][0]["curves"] if curve["kind"] == 0]
    assert (diaster["steps"], diaster["seeds"], diaster["folders"]) == ([100, 200], 2, "diaster")
    assert diaster["values"]["return_mean"] == {"mean": [1.5, 3.0], "error": [0.5, 1.0]}


def test_the_data_have_the_metrics_with_the_limits_of_their_axes(page: Page) -> None:
    data = data_of(page)
    assert [one["name"] for one in data["metrics"]] == ["return_mean", "fit_r2"]
    assert [(one["low"], one["high"]) for one in data["metrics"]] == [(None, None), (-1.0, 1.0)]
    [diaster] = [curve for curve in data["tasks"][0]["curves"] if curve["kind"] == 0]
    assert diaster["values"]["fit_r2"] == {"mean": [-1e10, 0.5], "error": [0.0, 0.0]}


def test_a_number_that_is_not_there_is_null(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", {0: [1.0, 2.0]}, columns={"fit_r2": [float("nan"), 0.5]})
    write_page(tmp_path / "runs", tmp_path / "report.html")
    [task] = data_of(Page((tmp_path / "report.html").read_text(encoding="utf-8")))["tasks"]
    assert task["curves"][0]["values"]["fit_r2"]["mean"] == [None, 0.5]


def test_every_run_of_the_folder_is_on_the_page_with_its_folder(page: Page) -> None:
    words = "".join(page.texts)
    assert "5 runs in 5 curves: 4 methods on 2 tasks." not in words and "5 runs in 5 curves: 3 methods" in words
    assert sum(len(task["curves"]) for task in data_of(page)["tasks"]) == 5
    cells = [text.strip() for text in page.texts]
    assert {"diaster", "rrd", "dense", "short", "evil"} <= set(cells)
    assert {*NAMES} <= set(cells)


def test_the_metrics_of_the_last_evaluation_are_in_the_table_of_runs(page: Page) -> None:
    cells = [text.strip() for text in page.texts if text.strip()]
    at = max(n for n, text in enumerate(cells) if text == NAMES[0] and cells[n + 1] == "Hopper-v5")
    row = ["Hopper-v5", "diaster", "complete", "0, 1", "200", "3.00 ± 1.00", "2.25 ± 0.75", "0.5", "–"]
    assert cells[at + 1 : at + 10] == row


def test_a_fit_that_explodes_is_below_minus_one_in_the_table_of_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", {0: [1.0]}, columns={"fit_r2": [-1.2e10], "return_gap": [84.1]})
    write_page(tmp_path / "runs", tmp_path / "page.html")
    cells = [text.strip() for text in Page((tmp_path / "page.html").read_text()).texts]
    assert "< −1" in cells and "84.1" in cells


def test_runs_can_be_chosen_and_named_and_its_commands_say_so(tmp_path: Path) -> None:
    for method in ("diaster", "rrd", "rd"):
        make_run(tmp_path / "runs" / method, {0: [1.0, 2.0]}, method=method)
    write_page(tmp_path / "runs", tmp_path / "report.html", only=["r*"], labels=["rrd=a b"])
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [one["name"] for one in data_of(page)["kinds"]] == ["a b", "rd"]
    words = "".join(page.texts)
    assert "--only 'r*' --label 'rrd=a b' -o performance.svg" in words
    assert "1 other run of the folder: not chosen." in words


def test_long_curves_are_thinned_and_keep_both_ends(page: Page) -> None:
    [curve] = data_of(page)["tasks"][1]["curves"]
    assert len(curve["steps"]) == 250
    assert (curve["steps"][0], curve["steps"][-1]) == (1, 2000)


def test_every_figure_is_there_or_says_why_it_is_not(page: Page) -> None:
    assert [article.get("id") for article in page.all("article")] == list(FIGURES)
    absent = [article.get("id") for article in page.all("article") if article.get("class") == "absent"]
    assert absent == ["proxy-reward", "heatmap", "cut-points", "step-reward", "feedback", "credit"]
    assert all(image["alt"] for image in page.all("img"))


def test_every_run_and_figure_has_the_command_that_makes_it(page: Page) -> None:
    words = "".join(page.texts)
    assert "diaster train Hopper-v5 --method rrd --steps 200 --seeds 2" in words
    assert "diaster figure performance" in words


def test_what_is_missing_comes_before_what_is_there(page: Page) -> None:
    words = "".join(page.texts)
    assert words.index("unfinished: 2 k of 9.999 k steps") < words.index("Final returns")


def test_the_table_has_means_with_errors_and_a_dash_where_there_is_nothing(page: Page) -> None:
    words = "".join(page.texts)
    assert "3.00 ± 1.00" in words and "2 seeds, 200" in words and "–" in words


@pytest.mark.parametrize("name", ["report.txt", "report", "gone/report.html"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match=r"report|gone"):
        write_page(tmp_path / "no runs", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_any_length_is_shown_in_part(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "run", {0: [1.0, 2.0]}, env="Env" + "x" * 10_000)
    write_page(tmp_path / "runs", tmp_path / "report.html")
    assert "x" * 2000 not in (tmp_path / "report.html").read_text(encoding="utf-8")

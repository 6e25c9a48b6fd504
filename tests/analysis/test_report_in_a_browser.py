"""The report's page in a real browser, at the width of a phone and of a desktop: `make browser-test`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_everything, make_run

from diaster.analysis.report import write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make browser-test does")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium was found; name one with CHROMIUM=…")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
Page = Any  # of Playwright, which is not there wherever these tests are skipped
EVIL = "<img src=x onerror=alert(1)>-v0"
WIDTHS = {"phone": 390, "tablet": 800, "desktop": 1280}
N = 10  # evaluations


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    make_everything(root / "runs", seeds=3, n=N)
    make_run(root / "runs" / "evil", {0: [1.0, 2.0]}, env=EVIL, method="rrd")
    nan = float("nan")
    columns = {"fit_r2": [-1e10, 0.1, 0.2, nan, 0.4, nan]}
    make_run(root / "runs" / "gaps", {0: [1.0] * 6}, env="Gaps-v0", columns=columns)
    make_run(root / "runs" / "a" / "single" / "evaluation", {0: [3.0]}, env="Gaps-v0", method="rd")
    make_run(root / "runs" / "constant", {0: [1000.0] * 5}, every=123_456, env="Constant-v0")
    write_page(root / "runs", root / "report.html")
    return root / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Page]:
    """The opened page. Whatever it logs, raises, opens or asks the network for fails the test."""
    context = browser.new_context(viewport={"width": WIDTHS[request.param], "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda sent: None if sent.url.startswith(("file:", "data:")) else complaints.append(sent.url))
    page.goto(report.as_uri())
    page.wait_for_selector(".panel svg")
    yield page
    assert complaints == []
    context.close()


def panel(page: Page, title: str) -> Any:
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_tables_scroll_inside_the_page_and_keep_their_first_column_in_sight(page: Page) -> None:
    tables = page.locator(".wide")
    assert tables.count() == 2
    for box in tables.all():
        assert box.bounding_box()["x"] >= 0
        assert box.bounding_box()["x"] + box.bounding_box()["width"] <= page.viewport_size["width"]
        if page.viewport_size["width"] == WIDTHS["phone"]:
            assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        box.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
        last, first = box.locator("tbody tr:first-child > :last-child"), box.locator("tbody tr:first-child > th")
        right = box.bounding_box()["x"] + box.bounding_box()["width"]
        assert last.bounding_box()["x"] + last.bounding_box()["width"] <= right + 1
        assert first.bounding_box()["x"] >= box.bounding_box()["x"]
        assert last.bounding_box()["x"] >= first.bounding_box()["x"] + first.bounding_box()["width"] - 1


def test_there_is_a_panel_per_environment_with_a_curve_for_every_run(page: Page) -> None:
    assert page.locator(".panel").count() == 10
    assert panel(page, "InvertedPendulum-v5").locator("g.curve").count() == 8 + 13
    assert panel(page, "Ant-v5").locator("g.curve").count() == 8


def test_a_single_evaluation_is_a_point(page: Page) -> None:
    gaps = panel(page, "Gaps-v0")
    assert (gaps.locator(".mean").count(), gaps.locator(".point").count()) == (1, 1)


def test_a_metric_can_be_chosen_and_has_gaps_points_and_arrows(page: Page) -> None:
    names = page.locator("#metric option").all_inner_texts()
    assert names == ["return of an episode", "fit_r2"]
    page.select_option("#metric", "fit_r2")
    assert page.locator(".panel").count() == 1
    gaps = panel(page, "Gaps-v0")
    assert (gaps.locator("path.mean").count(), gaps.locator("circle.point").count()) == (1, 1)
    assert gaps.locator(".beyond").all_text_contents() == ["▼"]
    assert "R²" in page.locator("#meaning").inner_text()
    page.locator("#tasks input[value='Gaps-v0']").uncheck()
    assert page.locator("#curves").inner_text() == "What is chosen has no fit_r2."


def test_no_two_ticks_overlap_and_no_curve_lies_on_the_frame(page: Page) -> None:
    for one in page.locator(".panel").all():
        svg = one.locator("svg").bounding_box()
        steps = [text.bounding_box() for text in one.locator("text.step").all()]
        assert len(steps) >= 2
        for left, right in pairwise(steps):
            assert left["x"] + left["width"] < right["x"]
        assert steps[-1]["x"] + steps[-1]["width"] <= svg["x"] + svg["width"]
        values = one.locator("text.value").all_text_contents()
        assert len(set(values)) == len(values) >= 2
        axis = one.locator(".axis").bounding_box()
        for curve in one.locator("path.mean").all():
            box = curve.bounding_box()
            assert box["y"] > svg["y"] + 4 and box["y"] + box["height"] < axis["y"] - 1
            assert box["x"] > axis["x"] + 1


def test_pointing_at_a_curve_tells_name_step_mean_error_and_folder(page: Page) -> None:
    svg = panel(page, "Ant-v5").locator("svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    tip = page.locator(".panel .tip:not([hidden])")
    name, step, value, folder = tip.inner_text().splitlines()
    assert name in ("diaster", "rrd", "ircr", "rd", "dense (reference)")
    assert folder == f"Ant-v5-{name.partition(' ')[0]}"
    assert step.startswith("step ") and " ± " in value and value.endswith("(3 seeds)")
    shown = tip.bounding_box()
    assert shown["x"] >= box["x"] - 12 and shown["x"] + shown["width"] <= box["x"] + box["width"] + 12
    assert abs(shown["y"] - box["y"]) < box["height"]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 60)
    assert page.locator(".panel .tip:not([hidden])").count() == 0


def test_curves_and_environments_can_be_filtered(page: Page) -> None:
    ant = panel(page, "Ant-v5")
    page.locator("#kinds input[value='diaster']").uncheck()
    assert ant.locator("g.curve").count() == 7
    assert ant.locator(".look0").count() == 0
    page.locator("#tasks input[value='Hopper-v5']").uncheck()
    assert page.locator(".panel").count() == 8  # the constant one had no other curve
    page.locator("#kinds button[value='none']").click()
    assert page.locator("#curves").inner_text() == "Nothing is chosen."
    page.locator("#kinds button[value='all']").click()
    assert ant.locator("g.curve").count() == 8


def test_pointing_at_a_name_dims_all_other_curves(page: Page) -> None:
    page.locator("#kinds label").filter(has_text="rrd").hover()
    ant = panel(page, "Ant-v5")
    assert ant.locator("path.mean.dimmed").count() == 7
    page.locator("h1").hover()
    assert ant.locator("path.mean.dimmed").count() == 0


def test_names_of_curves_have_the_colours_of_their_methods(page: Page) -> None:
    line = panel(page, "Ant-v5").locator("g.look0 path.mean")
    assert line.evaluate("line => getComputedStyle(line).stroke") == "rgb(213, 94, 0)"
    dot = page.locator("#returns .look0")
    assert dot.evaluate("dot => getComputedStyle(dot).backgroundColor") == "rgb(213, 94, 0)"
    shades = {
        dot.evaluate("dot => getComputedStyle(dot).backgroundColor") for dot in page.locator("#returns .dot").all()
    }
    assert len(shades) > 10


def test_pictures_are_drawn_and_fit(page: Page) -> None:
    for picture in page.locator("article img").all():
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        assert picture.bounding_box()["width"] <= page.viewport_size["width"]


def test_hostile_names_are_shown_and_do_nothing(page: Page) -> None:
    assert page.get_by_text(EVIL, exact=True).count() >= 2
    assert page.locator("img[src='x']").count() == 0

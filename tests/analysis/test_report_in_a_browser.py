"""The report's page in a real browser, at the width of a phone and of a desktop: `make browser-test`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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
EVIL = "<img src=x onerror=alert(1)>-v0"
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    make_everything(root / "runs", seeds=3, n=10)
    make_run(root / "runs" / "evil", {0: [1.0, 2.0]}, env=EVIL, method="rrd")
    write_page(root / "runs", root / "report.html")
    return root / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def page(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Any]:
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


def test_nothing_is_wider_than_the_screen(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_there_is_a_panel_per_environment_with_a_curve_per_method(page: Any) -> None:
    assert page.locator(".panel").count() == 8
    assert page.locator(".panel").first.locator(".mean").count() == 8


def test_pointing_at_a_curve_tells_step_method_mean_and_error(page: Any) -> None:
    svg = page.locator(".panel svg").nth(1)
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    tip = page.locator(".panel .tip:not([hidden])")
    name, step, value = tip.inner_text().splitlines()
    assert name in ("diaster", "rrd", "ircr", "rd", "dense (reference)")
    assert step.startswith("step ") and " ± " in value and value.endswith("(3 seeds)")
    shown = tip.bounding_box()
    assert shown["x"] >= box["x"] - 12 and shown["x"] + shown["width"] <= box["x"] + box["width"] + 12
    assert abs(shown["y"] - box["y"]) < box["height"]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 60)
    assert page.locator(".panel .tip:not([hidden])").count() == 0


def test_methods_and_environments_can_be_filtered(page: Any) -> None:
    page.locator("#methods input").first.uncheck()
    assert page.locator(".panel").first.locator(".mean").count() == 7
    assert page.locator(".panel .diaster").count() == 0
    page.locator("#tasks input[value='Ant-v5']").uncheck()
    assert page.locator(".panel").count() == 7
    for box in page.locator("#methods input").all():
        box.uncheck()
    assert page.locator("#curves").inner_text() == "Nothing is chosen."


def test_curves_with_changed_settings_are_shown_on_demand(page: Any) -> None:
    page.locator("#all-settings").check()
    assert page.locator(".panel").first.locator(".mean").count() == 8 + 13


def test_pictures_are_drawn_and_fit(page: Any) -> None:
    for picture in page.locator("article img").all():
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        assert picture.bounding_box()["width"] <= page.viewport_size["width"]


def test_hostile_names_are_shown_and_do_nothing(page: Any) -> None:
    assert page.get_by_text(EVIL, exact=True).count() >= 2
    assert page.locator("img[src='x']").count() == 0

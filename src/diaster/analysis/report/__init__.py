"""One page with all there is to see of a folder of runs: a single file that needs no network and no library.

What is shown comes from files that may be anyone's. The template escapes every text, numbers are numbers, and the
page's own policy lets it run its one script, use its one style sheet and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from diaster.analysis.curves import curves_in
from diaster.analysis.figures.style import check_picture
from diaster.analysis.report.chart import look_rules
from diaster.analysis.report.content import page_content
from diaster.analysis.results import Results, read_results
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically

FORMATS = (".html", ".htm")


def write_page(path: Path, out: Path, only: Sequence[str] = (), labels: Sequence[str] = ()) -> list[str]:
    """Write the report of the runs below a folder, or of those chosen; returns a line for each figure not drawn."""
    check_page(out)
    text, left_out = page_html(read_results(path, only, labels))
    write_atomically(out, text.encode("utf-8", "replace"))  # names of folders may hold any bytes
    return left_out


def check_page(out: Path) -> None:
    """Refuse a name that cannot be written before anything is read."""
    if out.suffix.lower() not in FORMATS:
        raise DiasterError(f"'{out}' is no page this can write; choose a name that ends in .html.")
    check_picture(out, FORMATS)


def page_html(results: Results) -> tuple[str, list[str]]:
    """The page, and a line for each figure that could not be drawn."""
    curves = curves_in(results)
    content = page_content(results, curves)
    left_out = [f"{figure.name}: {figure.error}" for figure in content.figures if figure.error]
    return render("page.html", content._asdict(), resource("page.js"), look_rules(curves)), left_out


def render(template: str, content: Mapping[str, Any], script: str, rules: str = "") -> str:
    """A page from a template in this folder."""
    return filled_page(resource(template), content, resource("page.css") + rules, script)


def filled_page(template: str, content: Mapping[str, Any], style: str, script: str = "") -> str:
    """A page from a template: everything escaped, with the policy that its style sheet and its script, if any, need."""
    scripts = f"script-src 'sha256-{_digest(script)}'; " if script else ""
    policy = f"default-src 'none'; img-src data:; {scripts}style-src 'sha256-{_digest(style)}'"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment.from_string(template).render(content, policy=policy, script=script, style=style)


def resource(name: str) -> str:
    """A file of this folder."""
    return files("diaster.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

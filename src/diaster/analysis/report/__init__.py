"""One page with all there is to see of a folder of runs: a single file that needs no network and no library.

What is shown comes from files that may be anyone's. The template escapes every text, numbers are numbers, and the
page's own policy lets it run its one script, use its one style sheet and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from diaster.analysis.figures.style import check_picture
from diaster.analysis.report.content import page_content
from diaster.analysis.results import Results, read_results
from diaster.config import METHODS
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically

FORMATS = (".html", ".htm")


def write_page(path: Path, out: Path) -> list[str]:
    """Write the report of the runs below a folder; returns a line for each figure that could not be drawn."""
    check_page(out)
    text, left_out = page_html(read_results(path))
    write_atomically(out, text.encode("utf-8", "replace"))  # names of folders may hold any bytes
    return left_out


def check_page(out: Path) -> None:
    """Refuse a name that cannot be written before anything is read."""
    if out.suffix.lower() not in FORMATS:
        raise DiasterError(f"'{out}' is no page this can write; choose a name that ends in .html.")
    check_picture(out, FORMATS)


def page_html(results: Results) -> tuple[str, list[str]]:
    """The page, and a line for each figure that could not be drawn."""
    script, style = _resource("page.js"), _resource("page.css") + _method_rules()
    policy = (
        f"default-src 'none'; img-src data:; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'"
    )
    content = page_content(results)
    left_out = [f"{figure.name}: {figure.error}" for figure in content.figures if figure.error]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    page = environment.from_string(_resource("page.html"))
    return page.render(content._asdict(), policy=policy, script=script, style=style), left_out


def _resource(name: str) -> str:
    return files("diaster.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _method_rules() -> str:
    """The colour of each method; the style sheet may name another one, for a dark page."""
    return "".join(f".{name} {{ --c: var(--{name}, {method.colour}); }}\n" for name, method in METHODS.items())

"""Links that MkDocs does not know: to files and folders of the repository outside the site, and those of README & co.

On the site, such a link becomes the path itself: it can be followed where the repository is read. One that leads
nowhere stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # pages that are not part of the site
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_pre_build(config: MkDocsConfig) -> None:
    """Check the links of pages beside the site."""
    for name in OUTSIDE:
        page = ROOT / name
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            check(page, target)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead out of the site into paths."""
    source = Path(config.docs_dir) / page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        path = (source.parent / target).resolve()
        if path.suffix == ".md" and path.is_relative_to(config.docs_dir):
            return match[0]  # a page: MkDocs checks it, and its anchor
        path = check(source, target).relative_to(ROOT)
        return f"`{path}`" if text.strip("`") == str(path) else f"{text} (`{path}`)"

    return LINK.sub(replaced, markdown)


def check(page: Path, target: str) -> Path:
    """The file that a link leads to."""
    found = (page.parent / target).resolve()
    if not found.exists():
        raise PluginError(f"{page.relative_to(ROOT)} links to '{target}', which is not there.")
    return found

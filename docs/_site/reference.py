"""Pages of the reference that are made from the code when the site is built: settings, commands, the index of a folder.

MkDocs calls the functions that begin with `on_`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from diaster.cli import COMMANDS
from diaster.config import AGENTS, METHODS, RunConfig
from diaster.config.limits import MOST, Limit

NESTED = ("method", "agent", "replay", "evaluation", "image")  # settings with a table of their own
WIDTH = "100"  # columns of the help texts
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
NOT_SAID = ("finite", f"at most {MOST}")  # limits that no one meets


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for path, content in (("reference/settings.md", settings_page()), ("reference/commands.md", commands_page())):
        files.append(File.generated(config, path, content=content))
    return files


def settings_page() -> str:
    """Every setting of a run, of each method and of each agent."""
    parts = [
        "# Settings",
        "Every setting is a flag, a line of a TOML file, and an argument in Python: `--method.hidden 128`, "
        '`hidden = 128` in the table `[method]`, `method={"name": "diaster", "hidden": 128}`. Precedence: defaults, '
        "then preset, then file (`--config`), then flags.",
        "- *auto* becomes a number when a run begins. The number is in the run's `config.toml`.\n"
        "- A flag that is true or false takes no value: `--known-rewards` or `--no-known-rewards`.",
        "## Run",
        table(RunConfig, "--", leave_out=NESTED),
    ]
    for name in NESTED[2:]:
        kind = typing.get_type_hints(RunConfig)[name]
        parts += [f"## {name.capitalize()}", table(kind, f"--{name}.")]
    for title, prefix, known in (("Methods", "--method.", METHODS), ("Agents", "--agent.", AGENTS)):
        parts += [f"## {title}"]
        for name, entry in known.items():
            parts += [f"### {name}", f"{capitalized(entry.help)}.", table(entry.settings, prefix, leave_out=("name",))]
            listed = [f"`{setting} = {value}`" for setting, value in flat(getattr(entry, "paper", {}))]
            if listed:
                parts.append(f"The preset `paper` sets {', '.join(listed)}.")
    return "\n\n".join(parts) + "\n"


def flat(changed: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings in tables of tables, by their dotted names."""
    for name, value in changed.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def table(kind: type, prefix: str, leave_out: tuple[str, ...] = ()) -> str:
    """The settings of a dataclass: flag, default, what is allowed, what it means."""
    fields = [field for field in dataclasses.fields(kind) if field.name not in leave_out and field.init]
    if not fields:
        return "It has no settings of its own."
    hints, helps = typing.get_type_hints(kind, include_extras=True), dict(docstrings_of(kind))
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for field in fields:
        flag = f"`{prefix}{(name_in(hints[field.name]) or field.name).replace('_', '-')}`"
        if field.name == "env":
            flag = "the first word"
        cells = [flag, default_of(field), allowed(hints[field.name]), helps[field.name]]
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows)


def docstrings_of(kind: type) -> Iterator[tuple[str, str]]:
    """The text below each field. A field that only has another default has the text of its base class."""
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, following in zip(body.body, body.body[1:], strict=False):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if is_text and isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                yield line.target.id, " ".join(str(following.value.value).split())


def default_of(field: dataclasses.Field[Any]) -> str:
    """A default as one would write it."""
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    if value in ("", ()) or value == {}:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"


def allowed(hint: Any) -> str:
    """What a setting may be: its kinds, each with its limits."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        limits = [extra.short for extra in parts[1:] if isinstance(extra, Limit) and extra.short not in NOT_SAID]
        return ", ".join([allowed(parts[0]), *limits])
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in parts)
    if origin is tuple:
        return "a list"
    if parts:
        return ", or ".join(allowed(part) for part in reversed(parts) if part is not type(None))
    return KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def name_in(hint: Any) -> str | None:
    """The name of the flag, where the annotation gives another one than the field's."""
    extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    inner = [name for part in typing.get_args(hint) if (name := name_in(part))]
    named = [extra.name for extra in extras if getattr(extra, "name", None) and hasattr(extra, "prefix_name")]
    return (named or inner or [None])[0]


def commands_page() -> str:
    """The help of every command."""
    parts = [
        "# Commands",
        "What `diaster COMMAND --help` prints. The settings of all methods and agents are in [settings](settings.md).",
    ]
    for name, command in COMMANDS.items():
        parts += [f"## {name}", f"{capitalized(command.help)}.", f"```text\n{help_of(name)}\n```"]
    return "\n\n".join(parts) + "\n"


def help_of(command: str) -> str:
    """What `diaster COMMAND --help` prints on a plain terminal, without the settings of a run."""
    printed = io.StringIO()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            COMMANDS[command].run(["--help"])
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def capitalized(text: str) -> str:
    """With a capital letter at the start, the rest as it is."""
    return text[:1].upper() + text[1:]

"""From what a person typed to typed arguments. What the parser complains of becomes one sentence."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, TypeVar

import tyro

from diaster.config.former_names import FORMER
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once

Arguments = TypeVar("Arguments")
Imports = tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE")]]


def value_of(flag: str, argv: Sequence[str]) -> str | None:
    """What a flag is given on the command line, before the line can be parsed; the last one counts."""
    found = None
    for item, following in zip_longest(argv, argv[1:]):
        if item == flag and following is not None:
            found = following
        elif item.startswith(f"{flag}="):
            found = item.removeprefix(f"{flag}=")
    return found


def parse(command: str, argv: Sequence[str], default: Arguments) -> Arguments:
    """The typed arguments. What the parser complains of becomes a sentence like every other."""
    refuse_former_flags(argv)
    complaint = io.StringIO()
    try:
        with leaving_at_once(), contextlib.redirect_stderr(complaint):
            return tyro.cli(
                type(default),
                prog=f"diaster {command}",
                description=f"{inspect.getdoc(type(default))}\n\nWith --debug an error shows its traceback.",
                args=list(argv),
                default=default,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise DiasterError(_sentence(complaint.getvalue(), command)) from None


def refuse_former_flags(argv: Sequence[str]) -> None:
    """Flags that had another name in an earlier version."""
    for item in argv:
        flag = item.partition("=")[0]
        for former, present in FORMER.items():
            if flag.startswith(f"--{former}."):
                raise DiasterError(f"{flag} is called {flag.replace(former, present, 1)} now; use that name.")


def _sentence(box: str, command: str) -> str:
    """The first paragraph of the parser's framed message, and the nearest option where it names one."""
    lines = [line.strip(" │") for line in box.splitlines() if line.strip() and line[0] not in "╭╰"]
    rules = [n for n, line in enumerate(lines) if not line.strip("─-")]
    if "╭" not in box:  # where the terminal has no frames, a title and a rule come first
        lines, rules = lines[2:], [n - 2 for n in rules[1:]]
    end = rules[0] if rules else len(lines)
    text = " ".join(lines[:end]).removeprefix("Error parsing ").rstrip(".")
    text = _what_it_takes(text) or text
    near = next((line.split()[0] for line in lines[end:] if line.startswith("--") and line.strip("-")), "").rstrip(",")
    hint = f" Did you mean {near}?" if near and "Perhaps" in box else ""
    return f"{text[:1].lower() + text[1:]}.{hint} 'diaster {command} --help' lists what is allowed."


def _what_it_takes(complaint: str) -> str | None:
    """A value that cannot be read as what a flag takes, in words; None where the complaint is another."""
    if found := re.fullmatch(r"(\S+): invalid literal for int\(\).*('.*')", complaint):
        flag, value, allowed = found[1], found[2], "a whole number, in digits"
    elif found := re.fullmatch(r"(\S+): could not convert string.*('.*')", complaint):
        flag, value, allowed = found[1], found[2], "a number"
    elif found := re.fullmatch(r"(\S+): no type matching (INT|FLOAT)\|\{(.+)\} could .* from \[('.*')\]", complaint):
        number = "a whole number" if found[2] == "INT" else "a number"
        flag, value, allowed = found[1], found[4], f"{number} or {found[3].replace(',', ' or ')}"
    else:
        return None
    return f"{flag} is {value}; it takes {allowed}"

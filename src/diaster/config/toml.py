"""Settings in files: TOML there and back."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diaster.config.run import RunConfig
from diaster.errors import DiasterError

# A file of all settings has two thousand bytes; the longest list of seeds makes it a hundred thousand.
MOST_BYTES = 2**18
# Settings lie one table deep, and a list in them counts as another level. Arguments of an environment may be tables of
# tables of lists; anything deeper was not written for this.
MOST_LEVELS = 8
# The parser's time grows with the square of the parts of a dotted name, half a minute for a line of 64 kB.
MOST_DOTS = 100
LONG = 100  # signs of a list that is written over several lines
WHOLE_NUMBERS = range(-(2**63), 2**63)  # those that TOML has


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file that the user has named."""
    return parse_toml(read_content(path), path)


def read_content(path: Path) -> bytes:
    """What a file of settings holds, as it is."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)  # it may be a pipe or a device, whose size nobody knows
    except OSError as error:
        raise DiasterError(f"the configuration '{path}' cannot be read: {error.strerror}.") from None
    if len(content) > MOST_BYTES:
        raise DiasterError(f"the configuration '{path}' has more than {MOST_BYTES:,} bytes; give a file of settings.")
    return content


def parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    """The settings in the content of a file."""
    try:
        text = content.decode("utf-8")
        if any(line.count(".") > MOST_DOTS and not line.lstrip().startswith("#") for line in text.split("\n")):
            raise DiasterError(f"a line with more than {MOST_DOTS} dots")
        settings = tomllib.loads(text)
        _refuse_what_no_setting_can_be(settings)
    except RecursionError:
        raise DiasterError(f"the configuration '{path}' is not valid TOML: it is nested too deeply.") from None
    except ValueError as error:  # no text, no TOML, or a number of thousands of digits
        raise DiasterError(f"the configuration '{path}' is not valid TOML: {error}.") from None
    return settings


def _refuse_what_no_setting_can_be(settings: dict[str, Any]) -> None:
    """No endless nesting and no endless numbers: even to show them would fail."""
    values, level = list(settings.values()), 1
    while values:
        if any(isinstance(value, int) and value not in WHOLE_NUMBERS for value in values):
            raise DiasterError("a whole number of more than 64 bits")
        if level > MOST_LEVELS:
            raise DiasterError("it is nested too deeply")
        groups = [
            value.values() if isinstance(value, dict) else value for value in values if type(value) in (dict, list)
        ]
        values, level = [inner for group in groups for inner in group], level + 1


def write_toml(config: RunConfig) -> str:
    """The inverse of `build_config(file=…)`: every setting, so that a run can be repeated from it."""
    values = dataclasses.asdict(config)
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {toml_value(value)}\n" for name, value in values.items() if name not in tables]
    return "".join(lines) + "".join(f"\n{toml_table(name, table)}" for name, table in tables.items() if table)


def toml_table(name: str, entries: Mapping[str, Any]) -> str:
    """A table with its heading."""
    return "".join([f"[{name}]\n", *(f"{_key(key)} = {toml_value(value)}\n" for key, value in entries.items())])


def toml_value(value: Any) -> str:
    """A value as TOML writes it; a TypeError for one that TOML does not have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        items = [toml_value(item) for item in value]
        # A parser wants few dots in a line, and a reader a map row by row.
        return "[" + ", ".join(items) + "]" if sum(map(len, items)) < LONG else "[\n" + ",\n".join(items) + ",\n]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, int | float):
        return repr(value)  # Python writes numbers as TOML does
    raise TypeError(f"{value!r} is nothing that TOML has")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)

"""Settings in files: TOML there and back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from diaster.config.run import RunConfig
from diaster.errors import DiasterError


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DiasterError(f"the configuration '{path}' cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DiasterError(f"the configuration '{path}' is not valid TOML: {error}.") from None


def write_toml(config: RunConfig) -> str:
    """The inverse of `build_config(file=…)`: every setting, so that a run can be repeated from it."""
    values = dataclasses.asdict(config)
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {_toml_value(value)}" for name, value in values.items() if name not in tables]
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *(f"{name} = {_toml_value(value)}" for name, value in entries.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)  # Python writes numbers as TOML does

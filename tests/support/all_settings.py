"""Every setting there is, by its dotted name, and the sentences that bad ones get."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diaster.config import AGENTS, METHODS, build_config
from diaster.errors import DiasterError

# Each method with the default agent, and each agent with the default method: every setting there is.
CHOICES: dict[str, dict[str, str]] = {
    **{name: {"method": name} for name in METHODS},
    **{name: {"agent": name} for name in AGENTS},
}


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a configuration with its dotted name and its type, as annotated."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hints[field.name]


SETTINGS = {name: dict(leaves(build_config(**choice))) for name, choice in CHOICES.items()}


def choices_with(setting: str) -> list[str]:
    """Which methods or agents have a setting of their own; for one of the run itself, any."""
    group, _, _ = setting.rpartition(".")
    known = {"method": METHODS, "agent": AGENTS}.get(group, ["diaster"])
    found = [name for name in known if setting in SETTINGS[name]]
    assert found, f"nothing has the setting {setting}"
    return found


def nested(dotted: str, value: Any, **choice: str) -> dict[str, Any]:
    """What `build_config` takes to set one setting, of the method or agent that is chosen."""
    group, _, name = dotted.rpartition(".")
    if not group:
        return {**choice, name: value}
    chosen = {"name": choice[group]} if group in choice else {}
    return {**choice, group: {**chosen, name: value}}


def lookup(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def refusal(call: Callable[[], object]) -> str:
    """The one sentence with which something is refused."""
    with pytest.raises(DiasterError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path

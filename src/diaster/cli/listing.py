"""list: the names that other commands take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from diaster.cli.parsing import Imports, parse
from diaster.config import AGENTS, METHODS, PAPER_TASKS, PRESET_HELP
from diaster.errors import unknown


@dataclass(frozen=True)
class ListArguments:
    """Say what there is: methods, agents, presets, the paper's tasks, registered environments."""

    what: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="WHAT")]] = "all"
    """all, methods, agents, presets, tasks or envs."""
    imports: Imports = ()
    """A module to import first, for the environments it registers."""


def list_(argv: Sequence[str]) -> None:
    """diaster list"""
    arguments = parse("list", argv, ListArguments())
    tables: dict[str, Callable[[], dict[str, str]]] = {
        "methods": lambda: {name: method.help for name, method in METHODS.items()},
        "agents": lambda: {name: agent.help for name, agent in AGENTS.items()},
        "presets": lambda: PRESET_HELP,
        "tasks": lambda: {name: f"{task.steps:,} steps in the paper's figures" for name, task in PAPER_TASKS.items()},
        "envs": lambda: _registered_envs(arguments.imports),
    }
    if arguments.what not in ("all", *tables):
        raise unknown("thing to list", arguments.what, ("all", *tables))
    for name in tables if arguments.what == "all" else (arguments.what,):
        if arguments.what == "all":
            if name == "envs":
                continue  # hundreds; only when asked for
            print(f"{name}:")
        for entry, line in tables[name]().items():
            print(f"  {entry:<22} {line}" if line else f"  {entry}")
    if arguments.what == "all":
        print(
            "environments: any Gymnasium id that shows vectors or images, with Box or discrete actions, "
            "'diaster list envs' shows them; module:Id and module:function"
        )


def _registered_envs(imports: Sequence[str]) -> dict[str, str]:
    import gymnasium as gym

    from diaster.envs.source import import_modules, register_robotics

    import_modules(imports)
    with contextlib.suppress(ImportError):
        register_robotics()
    return dict.fromkeys(sorted(gym.registry), "")

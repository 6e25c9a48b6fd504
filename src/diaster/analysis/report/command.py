"""The command line that repeats a run."""

from __future__ import annotations

import shlex
from typing import Any

from diaster.analysis.settings import flat, usual_settings
from diaster.config import DEFAULT_METHOD, RunConfig, usual_agent
from diaster.config.env_kwargs import FLAG, as_typed

SHOWN_ANYWAY = ("steps", "seeds")
NAMED_FIRST = ("env", "method.name", "agent.name", "preset")


def train_command(config: RunConfig, seeds: tuple[int, ...] | None = None) -> str:
    """`diaster train` with all settings that differ from the defaults of the method, agent and preset."""
    usual = usual_settings(config.preset, config.env, config.method.name, config.agent.name)
    values = {**flat(config), "seeds": config.seeds if seeds is None else seeds}
    words = ["diaster", "train", config.env]
    words += ["--method", config.method.name] if config.method.name != DEFAULT_METHOD else []
    words += ["--agent", config.agent.name] if config.agent.name != usual_agent(config.preset) else []
    words += ["--preset", config.preset] if config.preset != "default" else []
    for name, value in values.items():
        if name not in NAMED_FIRST and (name in SHOWN_ANYWAY or value != usual[name]):
            words += _flag(name, value)
    words += [word for name, value in config.env_kwargs.items() for word in (f"{FLAG}{name}", as_typed(value))]
    return " ".join(shlex.quote(word) for word in words)


def _flag(name: str, value: Any) -> list[str]:
    group, _, last = name.replace("_", "-").rpartition(".")
    prefix = f"--{group}." if group else "--"
    if name == "imports":
        return [word for module in value for word in ("--import", module)]
    if name == "seeds":
        return ["--seeds", seeds_argument(value)]
    if isinstance(value, bool):
        return [f"{prefix}{last}" if value else f"{prefix}no-{last}"]
    return [f"{prefix}{last}", str(value)]


def seeds_argument(seeds: tuple[int, ...]) -> str:
    """A count where the seeds are 0 … count − 1, else a list."""
    if seeds == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")

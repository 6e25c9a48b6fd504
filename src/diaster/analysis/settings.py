"""The settings of runs: which of them make runs differ, and how they are written in names and captions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from diaster.config import RunConfig, combine
from diaster.config.fitted import Base, FittedConfig
from diaster.config.methods import with_base
from diaster.errors import printable, shortened

# Settings that do not change a result (up to rounding), with a common value: runs that differ in them share a curve.
NO_MATTER: dict[str, Any] = {
    "seeds": (0,),
    "device": "auto",
    "devices": 1,
    "workers": "auto",
    "checkpoint_every": "auto",
    "keep_checkpoint": 0,
    "env_retries": 0,
    "isolate_envs": False,
    "step_seconds": 60.0,
}
LENGTH = "steps"  # of a run: it matters, and has words of its own in a name
UNRESOLVED = ("horizon", "warmup_steps", "imports")  # written as numbers where the settings had `auto`
OF_LENGTH = "agent.annealing_updates"  # likewise, with xqc; with dqn it is a setting like any other
LONGEST_VALUE = 24


def without_what_does_not_matter(config: RunConfig) -> RunConfig:
    """Equal for runs whose results can be averaged over their seeds."""
    return dataclasses.replace(config, **NO_MATTER)


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that differ from those of the preset, by dotted names, without length and what does not matter."""
    usual = usual_settings(config.preset, config.env, config.method.name, config.agent.name)
    return {
        name: value
        for name, value in flat(config).items()
        if usual[name] != value
        and name != LENGTH
        and name not in NO_MATTER
        and name not in UNRESOLVED
        and not (name == OF_LENGTH and usual[name] == "auto")
    }


@functools.lru_cache(maxsize=1024)  # a page asks often, and merging settings takes milliseconds
def usual_settings(preset: str, env: str, method: str, agent: str) -> Mapping[str, Any]:
    """What a preset sets where nothing else is given, by dotted names."""
    return MappingProxyType(flat(combine(preset, {}, "", {"env": env, "method": method, "agent": agent})))


def flat(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted name; arguments of the environment are a part of its name."""
    config = with_usual_base(config)
    found: dict[str, Any] = {}
    for name, value in dataclasses.asdict(dataclasses.replace(config, env_kwargs={})).items():
        found |= {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return found


def with_usual_base(config: RunConfig, has_images: bool = False) -> RunConfig:
    """The settings with the base of their preset, `auto` say, where that stands for the base that was written.

    What it stands for depends on whether observations are images, which settings do not tell.
    """
    if not isinstance(config.method, FittedConfig):
        return config
    usual = dataclasses.replace(config.method, base=_usual_base(config.preset, config.method.name))
    is_usual = with_base(usual, has_images) == with_base(config.method, has_images)
    return dataclasses.replace(config, method=usual) if is_usual else config


@functools.lru_cache(maxsize=64)
def _usual_base(preset: str, method: str) -> Base:
    base: Base = combine(preset, {}, "", {"method": method}).method.base  # type: ignore[union-attr]
    return base


def setting_text(name: str, value: Any) -> str:
    """A setting as names and captions have it: `head = final`; those of the agent say that they are."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, tuple):
        text = ", ".join(map(str, value)) or "none"
    else:
        text = str(value) or "none"
    return f"{name.removeprefix('method.')} = {shortened(printable(text), LONGEST_VALUE)}"


def settings_text(changed: dict[str, Any], most: int = 3) -> str:
    """A few settings, short enough for a caption."""
    named = [setting_text(name, value) for name, value in changed.items()]
    return ", ".join(named[:most]) + (" …" if len(named) > most else "")

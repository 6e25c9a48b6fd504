"""Every setting of a run: frozen dataclasses, presets, TOML, validation. Imports neither JAX nor Gymnasium.

Order of precedence: defaults < preset < file < flags. Nothing is written to after it has been resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diaster.config.agents import (
    AGENTS,
    DEFAULT_AGENT,
    AgentKind,
    DdpgConfig,
    DqnConfig,
    SacConfig,
    Td3Config,
    XqcConfig,
)
from diaster.config.checks import check_longest, check_method, refuse_exact_sum, validate
from diaster.config.env_kwargs import as_kept, is_placeholder, take_env_kwargs, task_name, unkept
from diaster.config.former_names import as_they_were, present_name, present_names
from diaster.config.merge import merge
from diaster.config.methods import (
    DEFAULT_METHOD,
    METHODS,
    DenseConfig,
    DiasterConfig,
    EpisodicConfig,
    IrcrConfig,
    Method,
    RdConfig,
    RrdConfig,
    RudderConfig,
    UniformConfig,
)
from diaster.config.needs import check_new
from diaster.config.run import (
    EvaluationConfig,
    ImageConfig,
    ReplayConfig,
    RunConfig,
    Schedule,
    default_config,
    parse_seeds,
    run_config_type,
    updates_due,
)
from diaster.config.tasks import PAPER_TASKS, PRESET_HELP, PRESETS, preset_settings, usual_agent
from diaster.config.toml import parse_toml, read_toml, write_toml
from diaster.errors import unknown

__all__ = [
    "AGENTS",
    "DEFAULT_AGENT",
    "DEFAULT_METHOD",
    "METHODS",
    "PAPER_TASKS",
    "PRESETS",
    "PRESET_HELP",
    "AgentKind",
    "DdpgConfig",
    "DenseConfig",
    "DiasterConfig",
    "DqnConfig",
    "EpisodicConfig",
    "EvaluationConfig",
    "ImageConfig",
    "IrcrConfig",
    "Method",
    "RdConfig",
    "ReplayConfig",
    "RrdConfig",
    "RudderConfig",
    "RunConfig",
    "SacConfig",
    "Schedule",
    "Td3Config",
    "UniformConfig",
    "XqcConfig",
    "as_kept",
    "as_they_were",
    "build_config",
    "check_longest",
    "check_method",
    "check_new",
    "combine",
    "is_placeholder",
    "parse_seeds",
    "parse_toml",
    "present_name",
    "read_toml",
    "refuse_exact_sum",
    "run_config_type",
    "take_env_kwargs",
    "task_name",
    "unkept",
    "updates_due",
    "usual_agent",
    "validate",
    "write_toml",
]


def build_config(preset: str | None = None, file: Path | None = None, **settings: Any) -> RunConfig:
    """Defaults < preset < file < settings. A file may name its preset; an explicit one goes before it."""
    return combine(preset, read_toml(file) if file else {}, str(file), settings)


def combine(
    preset: str | None, from_file: Mapping[str, Any], source: str, settings: Mapping[str, Any] | None = None
) -> RunConfig:
    """What `build_config` does, with the settings of a file that has been read; `source` is its name."""
    settings, from_file = present_names(settings or {}), present_names(from_file)
    preset = preset or settings.get("preset") or from_file.get("preset") or "default"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    env = settings.get("env") or from_file.get("env") or ""
    method, agent = (
        _name_in(settings, group) or _name_in(from_file, group) or usual
        for group, usual in (("method", DEFAULT_METHOD), ("agent", usual_agent(preset)))
    )
    if any("exact_sum" in _table(of, "method") for of in (settings, from_file)):
        refuse_exact_sum(method)
    # Which settings there are depends on the method and the agent.
    config: RunConfig = default_config(method, agent)
    config = merge(config, preset_settings(preset, method, agent, env), f"preset '{preset}'")
    config = merge(config, from_file, source)
    config = merge(config, {**settings, "preset": preset}, "the call")
    return config


def _name_in(settings: Mapping[str, Any], group: str) -> Any:
    """The method or the agent that settings name, if they do."""
    return _table(settings, group).get("name")


def _table(settings: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    """The settings of a group; none where something else has its name, which is refused later."""
    table = settings.get(group)
    return table if isinstance(table, Mapping) else {}

"""Every setting of a run: frozen dataclasses, presets, TOML, validation. Imports neither JAX nor Gymnasium.

Order of precedence: defaults < preset < file < flags. Nothing is written to after it has been resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diaster.config.agents import AGENT_CONFIGS, AGENT_HELP, DdpgConfig, DqnConfig, SacConfig, Td3Config
from diaster.config.checks import validate
from diaster.config.merge import merge
from diaster.config.methods import (
    METHOD_CONFIGS,
    METHOD_HELP,
    DenseConfig,
    DiasterConfig,
    EpisodicConfig,
    IrcrConfig,
    RdConfig,
    RrdConfig,
    RudderConfig,
    UniformConfig,
)
from diaster.config.run import (
    EvaluationConfig,
    ReplayConfig,
    RunConfig,
    Schedule,
    default_config,
    parse_seeds,
    run_config_type,
)
from diaster.config.tasks import PAPER_TASKS, PRESET_HELP, PRESETS, preset_settings
from diaster.config.toml import parse_toml, read_toml, write_toml
from diaster.errors import unknown

__all__ = [
    "AGENT_CONFIGS",
    "AGENT_HELP",
    "METHOD_CONFIGS",
    "METHOD_HELP",
    "PAPER_TASKS",
    "PRESETS",
    "PRESET_HELP",
    "DdpgConfig",
    "DenseConfig",
    "DiasterConfig",
    "DqnConfig",
    "EpisodicConfig",
    "EvaluationConfig",
    "IrcrConfig",
    "RdConfig",
    "ReplayConfig",
    "RrdConfig",
    "RudderConfig",
    "RunConfig",
    "SacConfig",
    "Schedule",
    "Td3Config",
    "UniformConfig",
    "build_config",
    "combine",
    "parse_seeds",
    "parse_toml",
    "read_toml",
    "run_config_type",
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
    settings = settings or {}
    preset = preset or settings.get("preset") or from_file.get("preset") or "default"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    env, method, agent = (
        settings.get(name) or from_file.get(name) or default
        for name, default in (("env", ""), ("method", "diaster"), ("agent", "sac"))
    )
    # Which settings there are depends on the method and the learner.
    config: RunConfig = default_config(method, agent)
    config = merge(config, preset_settings(preset, method, agent, env), f"preset '{preset}'")
    config = merge(config, from_file, source)
    config = merge(config, {**settings, "preset": preset}, "the call")
    return config

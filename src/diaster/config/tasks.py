"""The paper's tasks, and the named sets of settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from diaster.config.agents import DEFAULT_AGENT
from diaster.config.methods import METHODS


class PaperTask(NamedTuple):
    """What the paper, or its published code, uses for one of its tasks."""

    steps: int
    warmup_steps: int = 5000
    horizon: int = 1000
    return_scale: float = 10.0


PAPER_TASKS: dict[str, PaperTask] = {
    "InvertedPendulum-v5": PaperTask(50_000, warmup_steps=500),
    "Hopper-v5": PaperTask(500_000),
    "Swimmer-v5": PaperTask(1_000_000),
    "Walker2d-v5": PaperTask(1_000_000),
    "Ant-v5": PaperTask(1_000_000),
    "Humanoid-v5": PaperTask(2_000_000),
    "HumanoidStandup-v5": PaperTask(2_000_000, return_scale=500.0),
}

PRESETS = ("default", "paper")
PRESET_HELP = {
    "default": "one setting for all tasks; for diaster: cumulative head, sampled segments, variance penalty",
    "paper": "a method to the letter of its paper, with SAC; evaluated every 1000 steps; diaster updates seldom",
}
PRESET_AGENT = {"paper": "sac"}  # where it is not the default


def usual_agent(preset: Any) -> str:
    """The agent of a preset, where none is named."""
    return PRESET_AGENT.get(preset, DEFAULT_AGENT)


def preset_settings(preset: str, method: str, agent: str, env: Any) -> dict[str, Any]:
    """What a preset sets for a method with an agent on a task."""
    if preset == "default":
        return {}
    of_method = METHODS[method]
    settings = {**of_method.paper, "evaluation": {"every": 1000, "episodes": 10}}
    if agent in of_method.paper_agent:
        settings["agent"] = of_method.paper_agent[agent]
    if "return_scale" in settings.get("method", {}) and isinstance(env, str) and env in PAPER_TASKS:
        settings["method"] = {**settings["method"], "return_scale": PAPER_TASKS[env].return_scale}
    return settings

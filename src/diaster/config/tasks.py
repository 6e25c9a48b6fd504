"""The paper's tasks, and the named sets of settings."""

from __future__ import annotations

from typing import Any, NamedTuple


class Task(NamedTuple):
    """What the paper, or its published code, uses for one of its tasks."""

    steps: int
    warmup_steps: int = 5000
    horizon: int = 1000
    return_scale: float = 10.0


PAPER_TASKS: dict[str, Task] = {
    "InvertedPendulum-v5": Task(50_000, warmup_steps=500),
    "Hopper-v5": Task(500_000),
    "Swimmer-v5": Task(1_000_000),
    "Walker2d-v5": Task(1_000_000),
    "Ant-v5": Task(1_000_000),
    "Humanoid-v5": Task(2_000_000),
    "HumanoidStandup-v5": Task(2_000_000, return_scale=500.0),
}

PRESETS = ("default", "paper")
PRESET_HELP = {
    "default": "one setting for all tasks; for diaster: cumulative head, sampled segments, variance penalty",
    "paper": "a method to the letter of its paper, evaluated every 1000 steps as in ours",
}

_PAPER_METHODS: dict[str, dict[str, Any]] = {
    "diaster": {
        "decomposer": {
            "head": "final",
            "segments": "all",
            "n_cuts": 1,
            "batch_episodes": 64,
            "loss": "sum",
            "variance_penalty": 0.0,
            "averaging": 0.0,
            "normalize_inputs": False,
            "return_scale": 10.0,
            "updates": 20,
        },
    },
    "ircr": {"replay": {"capacity": 300_000}},
}
_PAPER_LEARNERS: dict[tuple[str, str], dict[str, Any]] = {
    ("ircr", "sac"): {"critic_loss": "huber", "gradient_clip": 5.0, "target_rate": 0.001, "batch_size": 1024},
}


def preset_settings(preset: str, method: str, agent: str, env: Any) -> dict[str, Any]:
    """What a preset sets for a method with a learner on a task."""
    if preset == "default":
        return {}
    settings = {**_PAPER_METHODS.get(method, {}), "evaluation": {"every": 1000, "episodes": 10}}
    learner = _PAPER_LEARNERS.get((method, agent))
    if learner:
        settings["learner"] = learner
    if method == "diaster" and isinstance(env, str) and env in PAPER_TASKS:
        settings["decomposer"] = {**settings["decomposer"], "return_scale": PAPER_TASKS[env].return_scale}
    return settings

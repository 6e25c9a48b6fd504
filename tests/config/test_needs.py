"""Settings that have no effect alone, and others that no new run has, though older ones may."""

from __future__ import annotations

from typing import Any

import pytest
from all_settings import CHOICES, refusal

from diaster.config import PRESETS, build_config, check_new, validate

SAMPLED = "has no effect on sampled segments"
WHOLE = "has no effect on whole episodes; use --method.segments sampled, or leave it out."
IDLE: list[tuple[dict[str, Any], str]] = [
    (
        {"method": {"n_cuts": 2}},
        f"method.n_cuts=2 {SAMPLED}; add --method.segments all to cut whole episodes, or leave it out.",
    ),
    (
        {"method": {"terminal_target": "return"}},
        f"method.terminal_target=return {SAMPLED}; add --method.segments all, or leave it out.",
    ),
    ({"method": {"precision": "bfloat16"}}, f"method.precision=bfloat16 {SAMPLED}, which are short; add"),
    (
        {"method": {"batch_steps": 500}},
        f"method.batch_steps=500 {SAMPLED}; add --method.segments all, or leave it out.",
    ),
    ({"method": {"segments": "all", "segment_length": 8}}, f"method.segment_length=8 {WHOLE}"),
    ({"preset": "paper", "method": {"segments_per_episode": 8}}, f"method.segments_per_episode=8 {WHOLE}"),
    (
        {"method": {"variance_penalty": 0.0, "penalty_episodes": 10}},
        "method.penalty_episodes=10 has no effect with method.variance_penalty=0, where nothing can fade; give",
    ),
    (
        {"agent": {"annealing_updates": 0, "final_learning_rate": 1e-5}},
        "agent.final_learning_rate=1e-05 has no effect with agent.annealing_updates=0, where the step size stays as it "
        "is; give --agent.annealing-updates auto, or leave it out.",
    ),
    (
        {"step_seconds": 5.0},
        "step_seconds=5.0 has no effect without isolate_envs; add --isolate-envs, or leave it out.",
    ),
    *(
        (
            {"restart_agent_at": 0.9, "method": method},
            "restart_agent_at=0.9 has no effect with a method that fits nothing, whose rewards become no better; use "
            "--method diaster, say, or leave it out.",
        )
        for method in ("uniform", "episodic", "dense", "ircr")
    ),
]
BARE = "and the policy would follow noise; give --method.updates 1 or more"
NO_NEW_RUN: list[tuple[dict[str, Any], str]] = [
    (
        {"agent": {"learning_rate": 1e-5}},
        "agent.final_learning_rate=3e-05 is larger than agent.learning_rate=1e-05, from which the step size falls; "
        "give --agent.final-learning-rate 1e-06, say, or --agent.annealing-updates 0, and it stays as it is.",
    ),
    (
        {"method": {"updates": 0, "base": "none"}},
        f"method.updates=0 leaves the nets of 'diaster' as they begin, {BARE}, --method.base linear, which needs none, "
        "or --from a run whose nets are to stay.",
    ),
    (
        {"method": {"updates": 0, "reward_source": "difference"}},
        f"as they begin, {BARE} or --from a run whose nets are to stay.",
    ),
    ({"method": {"name": "rudder", "updates": 0}}, f"nets of 'rudder' as they begin, {BARE} or --from a run"),
    ({"method": {"name": "rrd", "updates": 0}}, "nets of 'rrd' as they begin"),
    ({"method": {"name": "rd", "updates": 0}}, "nets of 'rd' as they begin"),
]
ALLOWED: list[dict[str, Any]] = [
    {"preset": "paper", "method": {"segments": "sampled"}},  # n_cuts is the preset's
    {"method": {"segments": "all", "segment_length": 4, "batch_steps": 2000, "precision": "bfloat16"}},
    {"method": {"variance_penalty": 0.0}},
    {"method": {"penalty_episodes": 10}},
    {"agent": {"annealing_updates": 0}},
    {"agent": {"annealing_updates": 0, "learning_rate": 1e-5}},
    {"agent": {"final_learning_rate": 3e-4}},
    {"step_seconds": 5.0, "isolate_envs": True},
    {"step_seconds": 60.0},
    {"restart_agent_at": 0.9},
    {"method": {"updates": 0}},  # the linear half of the base needs none
    {"method": {"name": "rrd", "updates": 0, "base": "linear"}},
    {"method": {"name": "rd", "updates": 0}, "from_run": "runs/other"},
]


def test_settings_without_effect_are_refused_with_what_gives_them_one() -> None:
    for settings, words in IDLE:
        assert words in refusal(lambda settings=settings: check_new(build_config(env="Hopper-v5", **settings)))


def test_what_a_policy_could_not_learn_from_is_refused() -> None:
    for settings, words in NO_NEW_RUN:
        assert words in refusal(lambda settings=settings: check_new(build_config(env="Hopper-v5", **settings)))


def test_runs_that_have_such_settings_are_still_read() -> None:
    for settings, _ in IDLE + NO_NEW_RUN:
        validate(build_config(env="Hopper-v5", **settings))


@pytest.mark.parametrize("settings", ALLOWED, ids=str)
def test_settings_that_have_an_effect_or_were_not_asked_for_are_allowed(settings: dict[str, Any]) -> None:
    check_new(build_config(env="Hopper-v5", **settings))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_allowed_with_every_method_and_agent(preset: str) -> None:
    for choice in CHOICES.values():
        check_new(build_config(preset, env="Hopper-v5", **choice))

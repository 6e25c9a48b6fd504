"""Settings that are wrong together, and what is wrong with a configuration that nobody has built."""

from __future__ import annotations

from typing import Any

import pytest
from all_settings import CHOICES, refusal

from diaster.config import METHODS, PRESETS, DiasterConfig, DqnConfig, RrdConfig, RunConfig, build_config, validate

GOOD = {"env": "Hopper-v5"}
WRONG_TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"env": ""}, "no environment was named"),
    ({"method": "diastr"}, f"unknown method 'diastr'; known: {', '.join(sorted(METHODS))}. Did you mean 'diaster'?"),
    ({"agent": "sacc"}, "unknown agent 'sacc'; known: ddpg, dqn, sac, td3, xqc. Did you mean 'sac'?"),
    ({"seeds": ()}, "no seeds were given"),
    ({"seeds": (3, 3)}, "seeds 3,3 name one twice"),
    ({"seeds": (-1,)}, "leave the range"),
    ({"seeds": (2**32,)}, "leave the range"),
    (
        {"method": {"segments": "all", "terminal_target": "return", "reward_source": "difference"}},
        "method.terminal_target=return shapes the targets of the step reward",
    ),
    (
        {"method": {"base": "linear", "reward_source": "difference"}},
        "method.base=linear goes with rewards of single steps, and method.reward_source=difference has none; use",
    ),
    ({"method": {"base": "mixed", "reward_source": "difference"}}, "method.base=mixed goes with rewards of single"),
    (
        {"method": {"name": "rrd", "unbiased": True, "subset": 1}},
        "method.subset=1 has no variance to take out of the loss; draw at least 2 steps, or give --method.no-unbiased",
    ),
    ({"agent": {"batch_size": 300}, "replay": {"capacity": 299}}, "agent.batch_size=300 is larger than"),
    ({"warmup_steps": 100, "steps": 100}, "warmup_steps=100 leaves nothing to learn from in steps=100"),
    ({"method": "ircr", "known_rewards": True}, "the rewards of the method 'ircr' are relative"),
    ({"method": {"name": "rudder", "exact_sum": True}}, "of the method 'rudder' sum to their episode's return as they"),
    ({"method": {"name": "dense", "exact_sum": False}}, "of the method 'dense' sum to their episode's return as they"),
    ({"method": {"name": "ircr", "exact_sum": True}}, "exact they are those of 'uniform'; use that"),
    ({"method": {"return_scale": 3.0, "scale_steps": 9}}, "method.return_scale=3 never does; leave one of them out"),
    ({"envs": 201}, "envs=201 are more than the steps they share, chunk_steps=200"),
]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_defaults_are_valid_for_every_preset(preset: str) -> None:
    for choice in CHOICES.values():
        config = build_config(preset, **GOOD, **choice)
        validate(config)
        assert config.preset == preset


def test_settings_that_do_not_go_together_are_refused() -> None:
    for settings, words in WRONG_TOGETHER:
        assert words in refusal(lambda settings=settings: validate(build_config(**{**GOOD, **settings})))


def test_what_whole_episodes_need_is_allowed_for_them() -> None:
    whole = {"segments": "all", "n_cuts": 2, "terminal_target": "return", "precision": "bfloat16"}
    config = build_config(**GOOD, method=whole)
    validate(config)
    assert config.method.n_cuts == 2


def test_settings_under_the_name_of_another_method_or_agent_are_not_valid() -> None:
    sentence = refusal(lambda: validate(RunConfig(env="x", method=DiasterConfig(name="rrd"))))
    assert "method 'rrd' was given the settings of another one (DiasterConfig)" in sentence
    sentence = refusal(lambda: validate(RunConfig(env="x", agent=DqnConfig(name="sac"))))
    assert "agent 'sac' was given the settings of another one (DqnConfig)" in sentence


def test_names_and_presets_that_nobody_has_built_are_checked_again() -> None:
    assert "unknown method 'rr'" in refusal(lambda: validate(RunConfig(env="x", method=RrdConfig(name="rr"))))
    assert "unknown agent 'dq'" in refusal(lambda: validate(RunConfig(env="x", agent=DqnConfig(name="dq"))))
    assert "unknown preset 'papper'" in refusal(lambda: validate(RunConfig(env="x", preset="papper")))

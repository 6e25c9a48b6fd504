"""Commands that repeat a run: whatever they say is read back into the same settings."""

import shlex
from typing import Any

import pytest

from diaster import cli
from diaster.analysis.report.command import seeds_argument, train_command
from diaster.config import RunConfig, build_config


def read_back(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The settings that `diaster train` makes of a command line."""
    found: list[RunConfig] = []

    class StopError(Exception): ...

    def stop(config: RunConfig, *_: object) -> None:
        found.append(config)
        raise StopError

    monkeypatch.setattr("diaster.training.train.run_training", stop)
    words = shlex.split(command)
    assert words[:2] == ["diaster", "train"]
    with pytest.raises(StopError):
        cli.train([*words[2:], "--quiet"])
    return found[0]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resolved": {"horizon": 200, "warmup_steps": 300, "seeds": (0, 1, 2)},
    "one seed": {"seeds": (7,)},
    "flags": {"isolate_envs": True, "imports": ("a.b", "c"), "method": {"normalize_inputs": False}},
    "paper with another agent": {"preset": "paper", "agent": {"name": "xqc", "size": "full"}},
    "paper": {"preset": "paper", "method": {"n_cuts": 5, "head": "cumulative"}},
    "numbers": {"method": {"return_scale": 2.5, "variance_penalty": 1e-05}, "agent": {"learning_rate": 1e-4}},
    "others": {"method": {"name": "rrd", "unbiased": True}, "agent": {"name": "td3", "policy_every": 3}},
    "arguments": {"env_kwargs": {"a": "8x8", "b": "True", "c": [[1, 2], ["x y", "  z"]], "d": {"e": 0.5}, "f": "it's"}},
    "hostile": {"env": "a b; rm -rf $HOME '\"-v0"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_command_gives_the_settings_it_was_made_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"env": "Hopper-v5", "steps": 5000, **SETTINGS[name]}
    config = build_config(settings.pop("preset", None), **settings)
    back = read_back(train_command(config), monkeypatch)
    assert {name: getattr(back, name) for name in vars(config)} == vars(config)


def test_a_command_names_no_more_than_differs() -> None:
    assert train_command(build_config(env="Hopper-v5", seeds=5)) == "diaster train Hopper-v5 --steps 100000 --seeds 5"
    command = "diaster train Hopper-v5 --preset paper --steps 100000 --seeds 1"
    assert train_command(build_config("paper", env="Hopper-v5")) == command
    named = "diaster train Hopper-v5 --agent sac --steps 100000 --seeds 1"
    assert train_command(build_config(env="Hopper-v5", agent="sac")) == named


def test_seeds_are_a_count_where_they_can_be() -> None:
    assert [seeds_argument(seeds) for seeds in ((0,), (0, 1, 2), (1, 2), (4,))] == ["1", "3", "1,2", "4,"]

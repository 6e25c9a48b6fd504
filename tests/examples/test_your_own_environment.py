"""The page about environments of one's own: its code and its commands run as they stand there, for fewer steps."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import gymnasium as gym
import pytest

import diaster
from diaster.config import build_config

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "your-own-environment.md").read_text(encoding="utf-8")
SMALL: dict[str, Any] = {
    "steps": 120,
    "warmup_steps": 40,
    "chunk_steps": 20,
    "workers": 0,
    "method": "uniform",
    "evaluation": {"every": 120, "episodes": 1},
}
TINY = {"hidden": 4, "batch_size": 8}
FLAGS = (
    "--steps 120 --warmup-steps 40 --chunk-steps 20 --workers 0 --method uniform --agent.hidden 4 --agent.batch-size 8 "
    "--agent.actor-hidden 4 --agent.layers 1 --agent.atoms 5 "
    "--evaluation.every 120 --evaluation.episodes 1 --quiet"
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def module(empty_cwd: Path) -> Iterator[str]:
    """The page's module, in the working directory."""
    (empty_cwd / "my_envs.py").write_text(blocks("python")[0], encoding="utf-8")
    yield "my_envs"
    sys.modules.pop("my_envs", None)
    gym.registry.pop("Corridor-v0", None)


def test_the_commands_of_the_page_train(module: str, empty_cwd: Path) -> None:
    commands = re.findall(r"^    (diaster train [^#\n]*)", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for number, command in enumerate(commands):
        words = [*shlex.split(command)[1:], *FLAGS.split(), "--out", str(empty_cwd / str(number))]
        result = command_line.run(*words)
        # So few steps may all have the same return; nothing else is to be complained of.
        complaints = [line for line in result.err.splitlines() if "returned the same number" not in line]
        assert (result.code, complaints) == (0, []), command
        sys.modules.pop(module, None)
        gym.registry.pop("Corridor-v0", None)
        assert command_line.run("evaluate", empty_cwd / str(number), "--episodes", 1).code == 0
        sys.modules.pop(module, None)
        gym.registry.pop("Corridor-v0", None)


def test_the_python_of_the_page_runs(module: str, empty_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, seen = diaster.train, []

    def small_train(env: Any, **given: Any) -> diaster.Run:
        agent = {"name": given.get("agent", "sac"), **TINY}
        seen.append(train(env, **{**given, **SMALL, "agent": agent, "out": empty_cwd / f"run-{len(seen)}"}))
        return seen[-1]

    monkeypatch.setattr(diaster, "train", small_train)
    monkeypatch.syspath_prepend(empty_cwd)  # where a script finds its neighbours
    namespace: dict[str, Any] = {}
    for code in blocks("python")[1:]:
        exec(compile(code, "your-own-environment.md", "exec"), namespace)
    names = ["Corridor-v0", "my_envs:make_corridor", "<Corridor>", "<Knobs>", "<CartPole-v1>"]
    assert [run.config.env for run in seen] == names
    assert seen[3].spec.action_dim == 3 and not seen[3].spec.discrete
    assert seen[4].spec.lanes == 4


def test_the_file_of_the_page_is_one_of_settings() -> None:
    [text] = blocks("toml")
    assert build_config(**tomllib.loads(text)).env_kwargs == {"length": 8, "wind": 0.3}

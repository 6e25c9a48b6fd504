"""The tutorials: their commands and their code run as they stand there, for fewer steps."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "steps": 240,
    "warmup-steps": 100,
    "chunk-steps": 20,
    "workers": 0,
    "evaluation.every": 240,
    "evaluation.episodes": 2,
    "method.hidden": 4,
    "method.updates": 4,
    "agent.hidden": 4,
    "agent.batch-size": 8,
}


def page(name: str) -> str:
    return (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


def train_commands(name: str) -> list[list[str]]:
    text = page(name).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in re.findall(r"^    (diaster train [^#\n]*)", text, re.MULTILINE)]


def train_small(words: list[str]) -> None:
    """The command with some of its numbers made small."""
    kept = [word for n, word in enumerate(words) if word[2:] not in SMALL and words[n - 1][2:] not in SMALL]
    result = command_line.run(*kept, *(part for name, value in SMALL.items() for part in (f"--{name}", value)))
    assert result.code == 0, result.err


@pytest.fixture
def heating(empty_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module of the page, and those of examples, where the working directory is searched."""
    (empty_cwd / "heating.py").write_text(blocks("your-own-environment")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(empty_cwd)
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    for name in ("heating", "own_environment", "sparse_success"):
        sys.modules.pop(name, None)


def test_a_first_policy(empty_cwd: Path) -> None:
    [command] = train_commands("first-policy")
    train_small(command)
    for line in re.findall(r"^    (diaster (?:evaluate|plot|report) .*)", page("first-policy"), re.MULTILINE):
        assert command_line.run(*shlex.split(line)[1:]).code == 0, line
    assert (empty_cwd / "curve.png").exists() and (empty_cwd / "report.html").exists()
    [code] = blocks("first-policy")
    exec(compile(code, "first-policy.md", "exec"), {})


def test_an_environment_of_ones_own(heating: None, empty_cwd: Path) -> None:
    [command] = train_commands("your-own-environment")
    train_small(command)
    names: dict[str, Any] = {}
    for code in blocks("your-own-environment")[1:]:
        exec(compile(code, "your-own-environment.md", "exec"), names)
    plt.close("all")
    assert names["total"] < 0.0 and (empty_cwd / "credit.png").exists()


def test_the_class_of_the_page_is_that_of_the_example(heating: None) -> None:
    import heating as of_page  # the module that the fixture has written
    import own_environment as of_example

    seen = []
    for module in (of_page, of_example):
        env, random = module.Heating(), np.random.default_rng(0)
        obs = [env.reset(seed=3)[0]]
        obs += [np.append(*env.step(random.uniform(0.0, 1.0, 1))[:2]) for _ in range(module.HALF_HOURS)]
        seen.append(np.concatenate(obs))
    np.testing.assert_allclose(*seen)


def test_reading_the_diagnostics_names_runs_that_can_be_made(heating: None) -> None:
    commands = train_commands("reading-the-diagnostics")
    assert len(commands) == 4
    for command in commands[1:3]:
        train_small(command)
    checked = command_line.run(*commands[3][:-2], "--steps", 0, "--out", "nowhere")
    assert checked.code == 2 and "steps=0" in checked.err  # every other word of it is understood

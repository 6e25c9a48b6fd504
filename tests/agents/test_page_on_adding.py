"""The page about adding an agent: its code is run as it stands there, each block where the page says it belongs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from command_line import run

from diaster import config
from diaster.config import AGENTS, agents
from diaster.run import load

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-an-agent.md"
SETTINGS, FUNCTIONS, ENTRY, TEST = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)
SMALL = (
    "--workers 0 --steps 120 --chunk-steps 20 --warmup-steps 40 --evaluation.every 120 --evaluation.episodes 1 "
    "--method uniform --agent.hidden 4 --agent.batch-size 4"
)


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """The agent of the page is there for as long as these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        names: dict[str, Any] = dict(vars(agents))
        exec(compile(SETTINGS, "config/agents.py", "exec", dont_inherit=True), names)
        patch.setattr(config, "SarsaConfig", names["SarsaConfig"], raising=False)
        module = ModuleType("diaster.agents.sarsa")
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(FUNCTIONS, "agents/sarsa.py", "exec"), vars(module))
        patch.setitem(AGENTS, "sarsa", AGENTS["dqn"])  # so that it is taken away again
        exec(compile(ENTRY, "config/agents.py", "exec"), names)
        yield


@pytest.mark.parametrize(("is_terminal", "target"), [(True, 1.0), (False, 1.0 + 0.9 * 2.0)])
def test_the_test_of_the_page_passes(is_terminal: bool, target: float) -> None:
    names: dict[str, Any] = {}
    exec(compile(TEST, "test_sarsa.py", "exec"), names)
    names["test_a_terminal_step_is_worth_its_reward_and_others_their_discounted_future"](is_terminal, target)


def test_the_agent_of_the_page_has_a_help_trains_loads_and_acts(tmp_path: Path) -> None:
    assert "--agent.temperature" in run("train", "--agent", "sarsa", "--help").out
    done = run("train", "CartPole-v1", "--agent", "sarsa", *SMALL.split(), "--out", tmp_path / "run")
    assert done.code == 0, done.err
    trained = load(tmp_path / "run")
    assert trained.done and np.isfinite(trained.progress["critic_loss"]).all()
    assert trained.policy()(np.zeros(4, np.float32)) in (0, 1)

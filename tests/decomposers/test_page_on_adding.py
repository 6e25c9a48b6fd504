"""The page about adding a method: its code is run as it stands there, each block where the page says it belongs."""

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
from diaster.config import METHODS, methods
from diaster.run import load

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-method.md"
SETTINGS, FUNCTIONS, ENTRY, TEST = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)
SMALL = (
    "--import toy_envs --workers 0 --steps 60 --chunk-steps 20 --warmup-steps 20 --evaluation.every 60 "
    "--evaluation.episodes 2 --agent ddpg --agent.hidden 4 --agent.batch-size 4"
)


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """The method of the page is there for as long as these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        names: dict[str, Any] = dict(vars(methods))
        exec(compile(SETTINGS, "config/methods.py", "exec", dont_inherit=True), names)
        patch.setattr(config, "LinearConfig", names["LinearConfig"], raising=False)
        module = ModuleType("diaster.decomposers.linear")
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(FUNCTIONS, "decomposers/linear.py", "exec"), vars(module))
        patch.setitem(METHODS, "linear", METHODS["rd"])  # so that it is taken away again
        exec(compile(ENTRY, "config/methods.py", "exec"), names)
        yield


def test_the_test_of_the_page_passes() -> None:
    names: dict[str, Any] = {}
    exec(compile(TEST, "test_linear.py", "exec"), names)
    names["test_it_finds_a_linear_reward_from_totals_alone"]()


def test_the_method_of_the_page_is_listed_trains_and_loads_again(tmp_path: Path) -> None:
    assert "a reward linear in observation and action" in run("list", "methods").out
    done = run("train", "ToyPlain-v0", "--method", "linear", *SMALL.split(), "--out", tmp_path / "run")
    assert (done.code, done.err) == (0, done.err), done.err
    trained = load(tmp_path / "run")
    assert trained.done and np.isfinite(trained.progress["step_loss"]).all()

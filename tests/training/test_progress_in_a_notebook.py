"""Which display a notebook gets. IPython is not among the packages of the tests: a stand-in says what it would."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from diaster.config import build_config
from diaster.training.progress import Bar, Lines, Progress, is_notebook, make_reporter
from diaster.types import EnvSpec

CONFIG = build_config(env="Toy-v0", steps=100, warmup_steps=10)
SPEC = EnvSpec("Toy-v0", 3, 2, None, None, (2,), 10)  # type: ignore[arg-type]


def pretend(monkeypatch: pytest.MonkeyPatch, shell: Any, has_widgets: bool = True) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    find = importlib.util.find_spec
    there = importlib.machinery.ModuleSpec("ipywidgets", None) if has_widgets else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there if name == "ipywidgets" else find(name))


def test_a_cell_is_told_by_the_kernel_behind_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_notebook()
    for shell, is_cell in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)):
        pretend(monkeypatch, shell)
        assert is_notebook() == is_cell, shell


def test_a_notebook_has_a_bar_where_something_can_move_and_else_lines_in_the_cells_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, SimpleNamespace(kernel=object()))
    assert isinstance(make_reporter(), Bar)
    pretend(monkeypatch, SimpleNamespace(kernel=object()), has_widgets=False)
    reporter = make_reporter()
    assert isinstance(reporter, Lines)
    reporter.warn("something")
    assert capsys.readouterr() == ("warning: something\n", "")


def test_a_script_has_lines_and_a_terminal_of_ipython_what_a_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (None, SimpleNamespace()):
        pretend(monkeypatch, shell)
        assert isinstance(make_reporter(), Lines)  # nobody sees the tests' standard error
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        assert isinstance(make_reporter(), Bar)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)


def test_a_bar_runs_from_start_to_end_without_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    bar = Bar()
    bar.start(CONFIG, SPEC)
    bar.advance(Progress(50, 1.0, 0.5))
    bar.warn("something")
    bar.close()

"""A sample of what `make fuzz` does: runs, checkpoints, recordings and sweeps, damaged by chance."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from compiled_once import compile_once
from fuzz_cases import KINDS, Sandbox
from fuzz_sources import make_sources
from fuzz_watch import FAILED, READ, REFUSED, watch
from hostile_runs import without_waiting

SAMPLE = 40


def test_whatever_is_damaged_is_read_or_refused_in_a_sentence_and_nothing_else_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_once(monkeypatch.setattr)
    sources = make_sources(tmp_path / "sources")
    sandbox = Sandbox(tmp_path / "sandbox", sources.outside)
    matplotlib.get_configdir()  # in the home, and made when it is first asked for
    monkeypatch.chdir(sandbox.root / "cwd")
    monkeypatch.setenv("HOME", str(sandbox.root / "home"))
    with without_waiting():
        outcomes = [watch(number, sources, sandbox) for number in range(SAMPLE)]
    assert [outcome for outcome in outcomes if outcome.outcome == FAILED] == []
    found = {(outcome.kind, outcome.outcome) for outcome in outcomes}
    assert found == {(kind, end) for kind in KINDS for end in (READ, REFUSED)}

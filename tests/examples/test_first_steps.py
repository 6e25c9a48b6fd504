"""The notebook: committed without outputs, and its cells run one after the other, for fewer steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import diaster

FILE = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"
CELLS = [cell for cell in json.loads(FILE.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
SMALL: dict[str, Any] = {
    "steps": 600,
    "workers": 0,
    "method": {"name": "diaster", "hidden": 4, "updates": 1, "every": 50},
    "agent": {"name": "sac", "hidden": 4, "batch_size": 8},
    "evaluation": {"every": 200, "episodes": 2},
}


def test_it_is_committed_as_written_without_outputs() -> None:
    assert len(CELLS) > 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS)


def test_its_cells_run_from_top_to_bottom(
    empty_cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, resume, asked = diaster.train, diaster.resume, []

    def small_train(env: Any, **given: Any) -> diaster.Run:
        asked.append(given)
        return train(env, **{**given, **SMALL})

    monkeypatch.setattr(diaster, "train", small_train)
    monkeypatch.setattr(diaster, "resume", lambda path, steps, env: resume(path, steps=800, env=env))
    monkeypatch.setattr("tempfile.tempdir", str(empty_cwd))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    plt.close("all")
    said = capsys.readouterr().out
    assert [given["horizon"] for given in asked] == [48]
    assert "within_correlation" in said and "the policy " in said and "learnt " in said
    assert names["longer"].config.steps == 800

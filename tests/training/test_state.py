"""What a checkpoint says of a run is checked value by value; what is wrong in our own code is not called damage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import QUICK, StoppingAt, small

from diaster.config import build_config
from diaster.errors import DiasterError, Stopped
from diaster.learning.learner import Learner
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.checkpoint.manifest import checksum, from_json
from diaster.rundir.records import read_config
from diaster.training.progress import Silent
from diaster.training.state import checked_facts
from diaster.training.train import resume_training, run_training


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stopped") / "run"
    config = build_config(env="Toy-v0", **small(checkpoint_every=40, seeds=2, **QUICK))
    with pytest.raises(Stopped):
        run_training(config, run, StoppingAt(160))
    return run


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def change_facts(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter what the manifests say, with checksums that are right."""
    for number in generations(run / DIRECTORY):
        path = run / DIRECTORY / f"manifest-{number}.json"
        body = json.loads(path.read_text())["body"]
        change(body["facts"])
        text = json.dumps(body, sort_keys=True)
        path.write_text(json.dumps({"sha256": checksum(text.encode()), "body": body}))


WRONG: dict[str, list[Any]] = {
    "chunk": [-1, 6, 10**9, 1.5, "1", None, True],
    "seconds": [-1.0, "nan", "inf", "x", None],
    "episodes": [[], [1], [1, 2, 3], [-1, 2], ["x", 1], 7, None],
    "collectors": [[], [[1, 2, 3]], [[1, 2], [1, 2]], [["x", 0, 0], [1, 0, 0]], [[-1, 0, 0], [1, 0, 0]], "ab"],
    "faults": [["x", "y"], [0], [-1, 0], {}],
    "divergences": [[0], ["x", 0], [10**20, 0], [2**31, 0]],
    "recent_returns": [[[]], [["x"], []], [["nan"], []], [1, 2]],
    "evaluations": [-1, 1.0, "1", 10**30],
    "held_out_stride": [0, -2, "1", None],
    "n_metrics": [-1, 10**10, "2"],
    "rows": [[{}], [7], {"a": 1}, [{"step": 1}], "rows"],
    "decomposer_updates": [-(10**9), 1.5, None, 10**6],
    "agent_updates": [-1, "1", 10**6],
    "label_age": [-1, [], 10**6],
    "warned": [0, "false", None],
    "first_learning": [-1.0, "soon"],
}


def test_a_fact_that_no_run_can_have_is_refused(stopped: Path) -> None:
    config = read_config(stopped)
    manifest = stopped / DIRECTORY / f"manifest-{generations(stopped / DIRECTORY)[0]}.json"
    facts = from_json(json.loads(manifest.read_text())["body"]["facts"])
    assert checked_facts(facts, config)._asdict() == facts
    for name, values in WRONG.items():
        for value in values:
            with pytest.raises((ValueError, TypeError)):
                checked_facts({**facts, name: from_json(value)}, config)
                pytest.fail(f"{name} = {value!r} was taken")


def test_facts_that_are_wrong_missing_or_of_no_run_are_a_sentence(half: Path) -> None:
    change_facts(half, lambda facts: facts.update(episodes=[]))
    with pytest.raises(DiasterError, match="damaged"):
        resume_training(half, Silent())
    change_facts(half, lambda facts: facts.pop("chunk"))
    with pytest.raises(DiasterError, match="damaged"):
        resume_training(half, Silent())
    change_facts(half, lambda facts: facts.update(chunk=3, colour="blue"))
    with pytest.raises(DiasterError, match="damaged"):
        resume_training(half, Silent())


def test_a_mistake_in_our_own_code_is_not_called_a_damaged_checkpoint(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: Any) -> None:
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(Learner, "restore", mistaken)
    with pytest.raises(TypeError, match="a mistake of ours"):
        resume_training(half, Silent())

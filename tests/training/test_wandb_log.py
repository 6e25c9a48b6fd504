"""Numbers for Weights & Biases: a run for each seed, and failures that end the logging and never the training.

The package itself is not among those that tests need: a stand-in notes what it is asked for. Where it is installed
(`make wandb-test`), a run is logged with it, offline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_runs import QUICK, Copying, StoppingAt, learnt_bytes, small

from diaster.config import build_config
from diaster.errors import DiasterError, Stopped
from diaster.rundir.records import DONE, read_metadata
from diaster.training.train import resume_training, run_training
from diaster.training.wandb_log import WandbLog
from diaster.types import Episode


class FakeRun:
    def __init__(self, package: FakeWandb, **arguments: Any) -> None:
        self.package, self.arguments = package, arguments
        self.logged: list[dict[str, float]] = []
        self.step_metric, self.is_finished = "", False

    def define_metric(self, name: str, step_metric: str) -> None:
        assert name == "*"
        self.step_metric = step_metric

    def log(self, numbers: dict[str, float]) -> None:
        if self.package.fails_at == len(self.logged):
            raise ConnectionError("the network is gone")
        self.logged.append(numbers)

    def finish(self) -> None:
        self.is_finished = True


class FakeWandb:
    """As much of the package as is used."""

    Settings = SimpleNamespace

    def __init__(self, mode: str = "offline", fails_at: int = -1, knows_the_user: bool = True) -> None:
        self.mode, self.fails_at, self.knows_the_user = mode, fails_at, knows_the_user
        self.runs: list[FakeRun] = []

    def setup(self) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self) -> None:
        if not self.knows_the_user:
            raise RuntimeError("No API key configured")

    def init(self, **arguments: Any) -> FakeRun:
        self.runs.append(FakeRun(self, **arguments))
        return self.runs[-1]


def config_of(**settings: Any) -> Any:
    return build_config(**small(**{"env": "Toy-v0", "seeds": [3, 8], **QUICK, **settings}))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    return put_in_place(monkeypatch, FakeWandb())


def put_in_place(monkeypatch: pytest.MonkeyPatch, package: FakeWandb) -> FakeWandb:
    monkeypatch.setitem(sys.modules, "wandb", package)  # type: ignore[arg-type]
    return package


def row(step: int, seed: int, **numbers: float) -> dict[str, Any]:
    return {"step": step, "seed": seed, **numbers}


def episode(length: int, episode_return: float) -> Episode:
    return Episode(np.zeros((length + 1, 1), np.float32), np.zeros((length, 1), np.float32), episode_return, False)


def test_each_seed_is_a_run_of_one_group_with_all_settings_and_steps_of_its_own(
    tmp_path: Path, package: FakeWandb
) -> None:
    log = WandbLog(tmp_path / "hopper", config_of(), "robots")
    log.trained(5, [[episode(2, 1.0)], []])
    assert package.runs == []  # a run that fails before its first evaluation leaves nothing behind
    log.evaluated([row(10, 3, fit_r2=0.5, faults=2), row(10, 8, fit_r2=float("nan"), faults=1)])
    log.trained(15, [[episode(2, 1.0), episode(4, 3.0)], []])
    log.close()
    assert [run.logged for run in package.runs] == [
        [{"step": 10, "fit_r2": 0.5, "faults": 2}, {"step": 15, "episode_return": 2.0, "episode_length": 3.0}],
        [{"step": 10, "faults": 1}],
    ]
    first, second = (run.arguments for run in package.runs)
    assert first["group"] == second["group"] == log.facts["group"]
    assert first["project"] == "robots" and (first["id"], second["id"]) == tuple(
        f"{first['group']}-{seed}" for seed in (3, 8)
    )
    assert first["config"]["seed"] == 3 and first["config"]["agent"]["name"] == "ddpg"
    assert first["dir"] == str(tmp_path / "hopper") and first["reinit"] == "create_new"
    assert all(run.step_metric == "step" and run.is_finished for run in package.runs)


def test_a_failure_is_told_once_and_nothing_is_logged_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = put_in_place(monkeypatch, FakeWandb(fails_at=1))
    log = WandbLog(tmp_path, config_of(), "robots")
    log.evaluated([row(10, 3, faults=0)])
    with pytest.raises(DiasterError, match=r"has failed \(ConnectionError: the network is gone\); the run goes on"):
        log.evaluated([row(20, 3, faults=0)])
    log.evaluated([row(30, 3, faults=0)])
    log.trained(35, [[episode(1, 1.0)], []])
    assert len(package.runs[0].logged) == 1


def test_a_missing_package_and_a_missing_login_are_sentences_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    put_in_place(monkeypatch, FakeWandb(mode="online", knows_the_user=False))
    with pytest.raises(DiasterError, match=r"cannot log in \(RuntimeError: No API key configured\); run 'wandb login'"):
        run_training(config_of(), out, Copying(out), wandb="robots")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(DiasterError, match=r"pip install 'diaster\[wandb\]'"):
        run_training(config_of(), out, Copying(out), wandb="robots")
    assert not out.exists()


def test_a_run_that_is_resumed_goes_on_with_the_same_curves(tmp_path: Path, package: FakeWandb) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        run_training(config_of(checkpoint_every=40), out, StoppingAt(160), wandb="robots")
    facts = read_metadata(out)["wandb"]
    assert facts["project"] == "robots"
    assert all(run.is_finished for run in package.runs)
    resume_training(out, Copying(out))
    assert [run.arguments["id"] for run in package.runs] == 2 * [f"{facts['group']}-{seed}" for seed in (3, 8)]
    evaluated = [numbers["step"] for run in package.runs[::2] for numbers in run.logged if "return_mean" in numbers]
    assert evaluated == [120, 240]


@pytest.mark.parametrize("what", ["fails", "is gone"])
def test_a_run_whose_log_fails_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    put_in_place(monkeypatch, FakeWandb())
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        run_training(config_of(checkpoint_every=40), out, StoppingAt(160), wandb="robots")
    if what == "is gone":
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:
        put_in_place(monkeypatch, FakeWandb(fails_at=0))
    reporter = Copying(out)
    run = resume_training(out, reporter)
    assert (out / DONE).exists()
    assert sum("Weights & Biases has failed" in text or "diaster[wandb]" in text for text in reporter.warnings) == 1
    whole = run_training(config_of(checkpoint_every=40), tmp_path / "whole", Copying(out))
    assert learnt_bytes(run) == learnt_bytes(whole)


def test_the_package_itself_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="make wandb-test has an environment with it")
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    reporter = Copying(out)
    run_training(config_of(), out, reporter, wandb="robots")
    assert not [text for text in reporter.warnings if "Weights" in text]
    folders = sorted((out / "wandb").glob("offline-run-*"))
    assert [folder.name.rsplit("-", 1)[1] for folder in folders] == ["3", "8"]
    for folder in folders:
        [file] = folder.glob("*.wandb")
        content = file.read_bytes()
        assert all(name in content for name in (b"return_mean", b"fit_r2", b"robots"))
    assert wandb.run is None
    json.dumps(read_metadata(out))

"""Runs that are made longer: they end with the bytes of runs that had as many steps from the start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import EVERY_METHOD, QUICK, XQC, StoppingAt, learnt_bytes, small

from diaster.config import build_config
from diaster.errors import DiasterError, Stopped
from diaster.run import Run
from diaster.rundir import writer
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.records import BEST, CONFIG, DONE, METADATA, read_metadata
from diaster.rundir.tidying import tidy
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training


def config_of(**settings: Any) -> Any:
    return build_config(**small(**{"env": "Toy-v0", **QUICK, **settings}))


def train(out: Path, **settings: Any) -> Run:
    return run_training(config_of(**settings), out, Silent())


def every_byte(run: Run) -> list[bytes]:
    return [*learnt_bytes(run), *((run.path / name).read_bytes() for name in (CONFIG, BEST, "nets.safetensors"))]


CASES: dict[str, dict[str, Any]] = {
    "labels": {"agent": "ddpg", "method": EVERY_METHOD["rudder"]["method"], "seeds": 2},
    "diaster": {"method": {}, "agent": {}},
    "xqc": {"agent": {**XQC, "annealing_updates": 100}},
    "feedback in pieces": {"feedback_every": 4, "method": EVERY_METHOD["rd"]["method"]},
    "a ring that wraps": {"replay": {"capacity": 190}},
    "a warm-up that ends within a chunk": {"warmup_steps": 90, "envs": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_a_complete_run_is_made_longer_to_the_bytes_of_the_longer_run(tmp_path: Path, case: str) -> None:
    run = train(tmp_path / "run", **CASES[case])
    longer = train(tmp_path / "longer", **{**CASES[case], "steps": 400})
    extended = resume_training(run.path, Silent(), steps=400)
    assert extended.done
    assert every_byte(extended) == every_byte(longer)
    assert [entry["steps"] for entry in read_metadata(extended.path)["extended"]] == [240]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of 250 steps, the last ten of them in a chunk and an evaluation of their own."""
    return train(tmp_path_factory.mktemp("short") / "run", steps=250).path


@pytest.fixture
def copy(short: Path, tmp_path: Path) -> Path:
    shutil.copytree(short, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("longer") / "run", steps=400)


def test_a_last_chunk_that_was_cut_short_is_taken_again(copy: Path, longer: Run) -> None:
    assert Run(copy).progress["step"].tolist() == [120, 240, 250]
    assert every_byte(resume_training(copy, Silent(), steps=400)) == every_byte(longer)


def test_a_run_is_made_longer_twice_and_survives_interruptions_meanwhile(copy: Path, longer: Run) -> None:
    with pytest.raises(Stopped):
        resume_training(copy, StoppingAt(280), steps=320)
    assert not (copy / DONE).exists()
    assert [entry["steps"] for entry in read_metadata(copy)["extended"]] == [250]
    resume_training(copy, Silent())
    assert every_byte(resume_training(copy, Silent(), steps=400)) == every_byte(longer)
    assert [entry["steps"] for entry in read_metadata(copy)["extended"]] == [250, 320]


def test_a_run_that_was_cut_off_is_made_longer(tmp_path: Path, longer: Run) -> None:
    with pytest.raises(Stopped):
        run_training(config_of(steps=250), tmp_path / "run", StoppingAt(160))
    assert every_byte(resume_training(tmp_path / "run", Silent(), steps=400)) == every_byte(longer)


@pytest.mark.parametrize("before", [METADATA, DONE, CONFIG])  # in the order in which they are written or removed
def test_a_kill_while_a_run_is_made_longer_leaves_one_that_goes_on(
    copy: Path, longer: Run, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KillError(Exception):
        pass

    def killed(action: Any) -> Any:
        def act(path: Path, *arguments: Any, **keywords: Any) -> None:
            if path.name == before:
                raise KillError
            action(path, *arguments, **keywords)

        return act

    monkeypatch.setattr(writer, "write_atomically", killed(writer.write_atomically))
    monkeypatch.setattr(Path, "unlink", killed(Path.unlink))
    with pytest.raises(KillError):
        resume_training(copy, Silent(), steps=400)
    monkeypatch.undo()
    assert (copy / DONE).exists() == (before != CONFIG)
    assert every_byte(resume_training(copy, Silent(), steps=400)) == every_byte(longer)


def test_a_run_that_stopped_early_goes_on_without_the_rule(tmp_path: Path, longer: Run) -> None:
    run = train(tmp_path / "run", steps=320, evaluation={"stop_at": -1e9})
    assert run.progress["step"].tolist() == [120]
    extended = resume_training(run.path, Silent(), steps=400)
    assert every_byte(extended) == every_byte(longer)
    assert "stopped" not in read_metadata(extended.path)


def test_a_run_that_the_callback_stopped_goes_on_to_its_planned_end(tmp_path: Path, longer: Run) -> None:
    run = run_training(config_of(steps=400), tmp_path / "run", Silent(), callback=lambda evaluation: True)
    assert every_byte(resume_training(run.path, Silent(), steps=400)) == every_byte(longer)


def test_a_run_that_is_no_longer_is_refused_and_stays_as_it_was(copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for steps in (1, 250):
        with pytest.raises(DiasterError, match=rf"has steps=250, and steps={steps} make it no longer; .* least 251"):
            resume_training(copy, Silent(), steps=steps)
    with pytest.raises(DiasterError, match=r"complete; there is nothing left to train.*--steps"):
        resume_training(copy, Silent())
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_complete_run_without_a_checkpoint_names_the_other_way(tmp_path: Path) -> None:
    run = train(tmp_path / "run", keep_checkpoint=0)
    assert not (run.path / DIRECTORY).exists()
    with pytest.raises(DiasterError, match=r"has kept no checkpoint.*keep_checkpoint=0.*--from"):
        resume_training(run.path, Silent(), steps=400)
    assert run.done


def test_a_damaged_checkpoint_is_refused_and_the_run_stays_complete(copy: Path) -> None:
    for path in (copy / DIRECTORY).glob("state-*"):
        path.write_bytes(b"no tensors")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(DiasterError, match=r"no checkpoint in .* is whole"):
        resume_training(copy, Silent(), steps=400)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_the_checkpoint_that_stays_is_the_one_that_the_metadata_name(copy: Path) -> None:
    [number] = generations(copy / DIRECTORY)
    assert read_metadata(copy)["checkpoint"] == number
    before = sorted(copy.rglob("*"))
    tidy(copy)
    assert sorted(copy.rglob("*")) == before
    (copy / METADATA).write_text(json.dumps({**read_metadata(copy), "checkpoint": None}))
    tidy(copy)
    assert not (copy / DIRECTORY).exists()


def test_a_checkpoint_that_is_too_large_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.training.checkpoints.MEGABYTE", 100)
    run = train(tmp_path / "run", keep_checkpoint=90)  # 9,000 bytes hold the replay alone
    assert not (run.path / DIRECTORY).exists()
    assert "checkpoint" not in read_metadata(run.path)
    kept = train(tmp_path / "kept", keep_checkpoint=900)
    assert (kept.path / DIRECTORY).exists()
    assert learnt_bytes(kept) == learnt_bytes(run)


def test_settings_that_were_changed_before_a_run_was_made_longer_are_refused(copy: Path) -> None:
    path = copy / CONFIG
    path.write_text(path.read_text().replace("discount = 0.99", "discount = 0.9"))
    with pytest.raises(DiasterError, match="not those of its checkpoint"):
        resume_training(copy, Silent(), steps=400)

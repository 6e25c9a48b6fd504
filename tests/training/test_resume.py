"""Runs that are cut off and go on: they end with the bytes of runs that were never interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import toy_envs
from command_line import run as command
from small_runs import CHUNKS, EVERY_METHOD, QUICK, XQC, Copying, StoppingAt, copy_of, learnt_bytes, small, wait_for

import diaster
from diaster.actors import fleet
from diaster.config import build_config
from diaster.errors import DiasterError, Stopped
from diaster.learning import learner as learner_module
from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY, generations, writing
from diaster.rundir.checkpoint import manifest as manifests
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, DONE, METADATA, read_metadata
from diaster.rundir.results import read_progress
from diaster.rundir.trust import SIGNATURE
from diaster.training import resolve
from diaster.training.progress import Progress, Silent
from diaster.training.train import resume_training, run_training

CASES: dict[str, dict[str, Any]] = {
    "diaster": {"seeds": 2, "replay": {"capacity": 170}, "method": {}, "agent": {}},  # the ring wraps
    **{method: EVERY_METHOD[method] for method in ("rudder", "ircr", "dense")},
    # Chunks of which the warm-up and the end take a part have numbers of updates, and so programs, of their own.
    "uniform": {**EVERY_METHOD["uniform"], "steps": 240, "warmup_steps": 80},
    "xqc": {"seeds": 2, "agent": XQC, "method": EVERY_METHOD["rudder"]["method"]},  # watches labels
    "environments that share a seed": {"seeds": 2, "envs": 3, **QUICK},
}  # `make soak` has all of them


def config_of(**settings: Any) -> Any:
    return build_config(**small(**{"env": "Toy-v0", **CHUNKS, "keep_checkpoint": 0, **QUICK, **settings}))


def cut_off(folder: Path, *steps: int, **settings: Any) -> Run:
    """A whole run, with copies of its directory as it was after some steps."""
    return run_training(config_of(**settings), folder / "run", Copying(folder / "run", *steps))


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_cut_off_ends_with_the_same_bytes(tmp_path: Path, case: str) -> None:
    steps = (66, 165) if case == "diaster" else (165,)
    whole = cut_off(tmp_path, *steps, **CASES[case])
    assert not (whole.path / DIRECTORY).exists()
    for step in steps:
        reporter = Copying(tmp_path)
        half = copy_of(whole.path, step)
        assert generations(half / DIRECTORY)
        resumed = resume_training(half, reporter)
        assert learnt_bytes(resumed) == learnt_bytes(whole)
        assert not [sentence for sentence in reporter.warnings if "fit_r2" not in sentence]
        assert sorted(item.name for item in half.iterdir()) == sorted(item.name for item in whole.path.iterdir())


def test_a_run_can_be_cut_off_again_and_again(half: Path, halves: tuple[Path, Any]) -> None:
    with pytest.raises(Stopped):
        resume_training(half, StoppingAt(198))
    assert learnt_bytes(resume_training(half, Silent())) == halves[1]


def test_a_run_that_was_cut_off_before_its_first_checkpoint_begins_anew(half: Path, halves: tuple[Path, Any]) -> None:
    shutil.rmtree(half / DIRECTORY)
    assert learnt_bytes(resume_training(half, Silent())) == halves[1]


class StoppingInEvaluation(StoppingAt):
    """Sends the signal as soon as the environments of the first evaluation are stepped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(-1)
        evaluate = fleet.try_episodes

        def interrupted(*arguments: Any) -> Any:
            monkeypatch.undo()
            os.kill(os.getpid(), self.number)
            return evaluate(*arguments)

        monkeypatch.setattr(fleet, "try_episodes", interrupted)


def test_a_signal_in_an_evaluation_waits_for_its_end_and_changes_no_byte(
    tmp_path: Path, halves: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The evaluation at 132, the end of the first chunk that reaches 120, runs while the next chunk is learnt from.
    with pytest.raises(Stopped, match="stopped at step 165;"):
        run_training(config_of(), tmp_path / "run", StoppingInEvaluation(monkeypatch))
    assert read_progress(tmp_path / "run")["step"].tolist() == [132]
    assert learnt_bytes(resume_training(tmp_path / "run", Silent())) == halves[1]


def test_a_run_that_was_cut_off_when_its_settings_alone_were_written_begins_anew(
    tmp_path: Path, halves: tuple[Path, Any]
) -> None:
    (tmp_path / "run").mkdir()
    for name in (SIGNATURE, CONFIG):  # in this order
        shutil.copy(halves[0] / name, tmp_path / "run")
    resumed = resume_training(tmp_path / "run", Silent())
    assert learnt_bytes(resumed) == halves[1]
    assert "wall_seconds" in read_metadata(resumed.path)


@pytest.mark.parametrize("every", ["auto", 0])
def test_how_often_checkpoints_are_written_changes_no_byte(
    tmp_path: Path, halves: tuple[Path, Any], every: int | str
) -> None:
    assert learnt_bytes(run_training(config_of(checkpoint_every=every), tmp_path / "run", Silent())) == halves[1]


def test_an_environment_that_does_not_repeat_itself_begins_a_new_episode_and_the_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_training(config_of(env="ToyMoody-v0", seeds=[3, 5]), tmp_path / "run", StoppingAt(165))
    reporter = Copying(tmp_path)
    resumed = resume_training(tmp_path / "run", reporter)
    assert resumed.done
    said = [sentence for sentence in reporter.warnings if "does not repeat itself" in sentence]
    assert [sentence.split(" does")[0] for sentence in said] == [f"the environment of seed {n}" for n in (3, 5)]


def test_an_environment_whose_observations_have_changed_is_named(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = resolve.describe

    def changed(*given: Any) -> Any:
        spec, space = describe(*given)
        return spec._replace(obs_dim=5), space

    monkeypatch.setattr(resolve, "describe", changed)
    with pytest.raises(DiasterError, match=r"'Toy-v0' has 5 observations and 2 actions now, and had 3 and 2 when"):
        resume_training(half, Silent())


def test_a_run_that_goes_on_with_other_cores_or_versions_says_that_its_bytes_may_differ(half: Path) -> None:
    found = read_metadata(half)
    other = {**found, "cores": 4096, "versions": {**found["versions"], "jax": "0.0.1"}}
    (half / METADATA).write_text(json.dumps(other))
    reporter = Copying(half)
    resume_training(half, reporter)
    said = [sentence for sentence in reporter.warnings if "bytes" in sentence]
    assert said == [
        f"the run was begun with cores 4096 (now {found['cores']}) and jax 0.0.1 (now {jax.__version__}); it goes on, "
        "but may not end with the same bytes."
    ]


@pytest.mark.parametrize(
    "settings", [{}, {"method": {"name": "diaster", "reward_source": "difference", "relabel_every": 1000}}]
)
def test_a_seed_that_was_rolled_back_before_the_run_was_cut_off_keeps_its_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    fit = learner_module.Learner.fit_agent

    def poisoned(self: Any, ready: Any, first_update: int, n_updates: int) -> Any:
        metrics = fit(self, ready, first_update, n_updates)
        if first_update == 33:
            lost = jax.tree.map(lambda leaf: leaf * np.nan if leaf.dtype == np.float32 else leaf, self.state.agent)
            self.state = self.state._replace(agent=lost)
        return metrics

    monkeypatch.setattr(learner_module.Learner, "fit_agent", poisoned)
    reporter = Copying(tmp_path)
    whole = run_training(config_of(**settings), tmp_path / "whole", reporter)
    assert sum("diverged" in sentence for sentence in reporter.warnings) == 1
    with pytest.raises(Stopped):
        run_training(config_of(**settings), tmp_path / "half", StoppingAt(165))
    assert learnt_bytes(resume_training(tmp_path / "half", Silent())) == learnt_bytes(whole)


# Generations, damage, versions


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[bytes, bytes, bytes]]:
    """A run that was stopped with two checkpoints, and the bytes it ends with."""
    folder = tmp_path_factory.mktemp("halves")
    whole = run_training(config_of(), folder / "whole", Silent())
    with pytest.raises(Stopped):
        run_training(config_of(), folder / "half", StoppingAt(165))
    assert len(generations(folder / "half" / DIRECTORY)) == 2
    return folder / "half", learnt_bytes(whole)


@pytest.fixture
def half(halves: tuple[Path, Any], tmp_path: Path) -> Path:
    shutil.copytree(halves[0], tmp_path / "run")
    return tmp_path / "run"


def test_where_a_file_is_damaged_the_older_generation_is_taken_with_a_warning_and_the_bytes_are_the_same(
    half: Path, halves: tuple[Path, Any]
) -> None:
    path = half / DIRECTORY / f"state-{generations(half / DIRECTORY)[0]}.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    reporter = Copying(half)
    resumed = resume_training(half, reporter)
    assert learnt_bytes(resumed) == halves[1]
    assert [path.name in sentence for sentence in reporter.warnings if "an older one" in sentence] == [True]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_a_replay_file_that_all_generations_share_may_be_damaged_and_the_run_goes_on_without_its_episodes(
    half: Path, which: str
) -> None:
    manifests_there = [
        json.loads((half / DIRECTORY / f"manifest-{n}.json").read_text())["body"] for n in generations(half / DIRECTORY)
    ]
    shared = [file[0] for file, _ in manifests_there[-1]["replay"]]
    assert len(shared) > 1
    name = shared[0 if which == "oldest" else -1]
    flip_a_bit(half / DIRECTORY / name)
    reporter = Copying(half)
    resumed = resume_training(half, reporter)
    assert resumed.done
    [said] = [sentence for sentence in reporter.warnings if name in sentence]
    assert "are lost" in said and "differs from one that was never cut off" in said


def test_a_run_whose_whole_replay_is_damaged_is_refused(half: Path) -> None:
    for path in (half / DIRECTORY).glob("replay-*"):
        flip_a_bit(path)
    with pytest.raises(DiasterError, match=r"no checkpoint in .* is whole"):
        resume_training(half, Silent())


def test_a_run_without_a_whole_checkpoint_is_refused_and_nothing_is_changed(half: Path) -> None:
    for number in generations(half / DIRECTORY):
        (half / DIRECTORY / f"state-{number}.safetensors").write_bytes(b"no tensors")
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file() and path.name != METADATA}
    with pytest.raises(DiasterError, match=r"no checkpoint in .* is whole"):
        resume_training(half, Silent())
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file() and path.name != METADATA} == before


def test_a_checkpoint_of_another_version_is_refused_by_name(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "VERSION", 7)
    with pytest.raises(DiasterError, match="a checkpoint of version 1, and this diaster reads version 7"):
        resume_training(half, Silent())


def test_settings_that_were_changed_after_the_checkpoint_are_refused(half: Path) -> None:
    path = half / CONFIG
    path.write_text(path.read_text().replace("discount = 0.99", "discount = 0.9"))
    with pytest.raises(DiasterError, match="not those of its checkpoint"):
        resume_training(half, Silent())


def test_a_run_that_was_begun_before_there_were_as_many_settings_goes_on(half: Path, halves: tuple[Path, Any]) -> None:
    path = half / CONFIG
    begun = path.read_text()
    fewer = begun.replace("envs = 1\n", "", 1)
    assert fewer != begun
    path.write_text(fewer)
    for number in generations(half / DIRECTORY):
        manifest = half / DIRECTORY / f"manifest-{number}.json"
        body = json.loads(manifest.read_text())["body"]
        body["settings"] = manifests.checksum(fewer.encode())
        text = json.dumps(body, sort_keys=True)
        manifest.write_text(json.dumps({"sha256": manifests.checksum(text.encode()), "body": body}))
    assert learnt_bytes(resume_training(half, Silent())) == halves[1]


def test_a_run_of_an_earlier_version_with_settings_that_no_new_run_may_have_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"step_seconds": 5.0, "restart_agent_at": 0.9}
    with pytest.raises(DiasterError, match="has no effect without isolate_envs"):
        cut_off(tmp_path, 132, **settings)
    with monkeypatch.context() as patch:
        patch.setattr("diaster.training.train.check_new", lambda config: None)
        whole = cut_off(tmp_path, 132, **settings)
    assert learnt_bytes(resume_training(copy_of(whole.path, 132), Silent())) == learnt_bytes(whole)
    assert diaster.load(whole.path).config.step_seconds == 5.0


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "state-1.safetensors/../x", "lock"])
def test_a_manifest_that_names_other_files_is_refused(half: Path, name: str) -> None:
    for number in generations(half / DIRECTORY):
        path = half / DIRECTORY / f"manifest-{number}.json"
        body = json.loads(path.read_text())["body"]
        body["state"][0] = name
        text = json.dumps(body, sort_keys=True)
        path.write_text(json.dumps({"sha256": manifests.checksum(text.encode()), "body": body}))
    with pytest.raises(DiasterError, match=r"no checkpoint in .* is whole"):
        resume_training(half, Silent())


def test_what_a_write_that_was_cut_off_left_behind_is_removed_and_other_files_stay(half: Path) -> None:
    for name in (".state-9.safetensors.abc123", "state-9.safetensors", "mine.txt", ".hidden.txt"):
        (half / DIRECTORY / name).write_bytes(b"left")
    resume_training(half, Silent())
    assert sorted(item.name for item in (half / DIRECTORY).iterdir()) == [".hidden.txt", "mine.txt"]


# A disk that is full


def test_checkpoints_that_cannot_be_written_stop_nothing_and_are_tried_again(
    tmp_path: Path, halves: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failed = writing.write_atomically, []

    def full(path: Path, content: bytes) -> None:
        if path.name in ("state-1.safetensors", "manifest-2.json") and path.name not in failed:
            failed.append(path.name)
            raise DiasterError(f"'{path}' cannot be written: No space left on device.")
        write(path, content)

    monkeypatch.setattr(writing, "write_atomically", full)
    reporter = Copying(tmp_path / "run", 165)
    whole = run_training(config_of(), tmp_path / "run", reporter)
    assert learnt_bytes(whole) == halves[1]
    assert failed == ["state-1.safetensors", "manifest-2.json"]
    assert sum("No space left" in sentence for sentence in reporter.warnings) == 2
    monkeypatch.undo()
    assert learnt_bytes(resume_training(copy_of(whole.path, 165), Silent())) == halves[1]


def test_a_stop_whose_checkpoint_cannot_be_written_says_where_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise DiasterError(f"'{path}' cannot be written: No space left on device.")

    monkeypatch.setattr(writing, "write_atomically", full)
    reporter = StoppingAt(33)
    with pytest.raises(Stopped):
        run_training(config_of(), tmp_path / "run", reporter)
    assert reporter.warnings[-1].startswith("a checkpoint could not be written, resume takes an earlier one: ")


class RoomAtTheEnd(StoppingAt):
    """Sends the signal, and makes room on a disk that was full until then."""

    def __init__(self, step: int, run: Path) -> None:
        super().__init__(step)
        self.run, self.is_full = run, True
        self.tries: list[Path] = []  # to write where there was no room

    def advance(self, progress: Progress) -> None:
        if progress.step == 99:  # a thread writes: the chunks would be over before it has
            wait_for(lambda: generations(self.run / DIRECTORY))
        if progress.step == self.step:
            wait_for(lambda: self.tries)
        self.is_full = progress.step < self.step
        super().advance(progress)


def test_a_disk_that_was_full_for_longer_than_the_replay_reaches_back_costs_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"replay": {"capacity": 170}}
    whole = run_training(config_of(**settings), tmp_path / "whole", Silent())
    write, reporter = writing.write_atomically, RoomAtTheEnd(198, tmp_path / "half")

    def full(path: Path, content: bytes) -> None:
        if path.name == "state-2.safetensors" and reporter.is_full:
            reporter.tries.append(path)
            raise DiasterError(f"'{path}' cannot be written: No space left on device.")
        write(path, content)

    monkeypatch.setattr(writing, "write_atomically", full)
    with pytest.raises(Stopped):
        run_training(config_of(**settings), tmp_path / "half", reporter)
    assert reporter.tries
    assert generations(tmp_path / "half" / DIRECTORY)[0] >= 2  # what was waiting could be written in the end
    assert learnt_bytes(resume_training(tmp_path / "half", Silent())) == learnt_bytes(whole)


class Filling(Copying):
    """Fills a file system after one step and makes room after another."""

    def __init__(self, mount: Path, full: int, free: int) -> None:
        super().__init__(mount)
        self.full, self.free = full, free

    def advance(self, progress: Progress) -> None:
        if progress.step == self.full:
            fill(self.run)
        if progress.step == self.free:
            (self.run / "ballast").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode:
        pytest.skip("file systems can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_for_a_while_costs_warnings_and_no_byte(small_disk: Path, halves: tuple[Path, Any]) -> None:
    reporter = Filling(small_disk, full=66, free=198)
    run = run_training(config_of(), small_disk / "run", reporter, tensorboard=True)
    assert learnt_bytes(run) == halves[1]
    assert any("a checkpoint could not be written" in sentence for sentence in reporter.warnings)
    assert any("results could not be written" in sentence for sentence in reporter.warnings)
    assert any("TensorBoard's files have to wait" in sentence for sentence in reporter.warnings)
    assert all("No space left" in sentence for sentence in reporter.warnings if "could not be" in sentence)


def fill(folder: Path) -> Path:
    """A file that leaves no room for another byte."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_run_that_is_resumed_on_a_full_disk_is_a_sentence_and_loses_nothing(
    small_disk: Path, half: Path, halves: tuple[Path, Any]
) -> None:
    run = shutil.copytree(half, small_disk / "run")
    ballast = fill(small_disk)
    with pytest.raises(DiasterError, match="No space left"):
        resume_training(run, Silent())
    assert not (run / LOCK).exists()
    ballast.unlink()
    assert learnt_bytes(resume_training(run, Silent())) == halves[1]


# One process for one directory


def test_a_directory_that_another_process_trains_in_is_refused_with_its_owner(half: Path) -> None:
    lock = RunLock(half)
    lock.take()
    try:
        with pytest.raises(DiasterError, match=f"is being trained by process {os.getpid()} on "):
            resume_training(half, Silent())
    finally:
        lock.release()
    assert not (half / LOCK).exists()


def test_a_lock_whose_owner_died_is_taken(half: Path, halves: tuple[Path, Any]) -> None:
    (half / LOCK).write_text("process 1 on a machine that is gone")
    assert learnt_bytes(resume_training(half, Silent())) == halves[1]


# The command line


def test_resuming_a_complete_run_removes_what_a_kill_has_left(runner: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runner, tmp_path / "run")
    for name in (DONE, f".{DONE}.0123456789abcdef", f"{DIRECTORY}/state-7.safetensors"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
    with pytest.raises(DiasterError, match="is complete"):
        resume_training(run, Silent())
    assert not (run / DIRECTORY).exists() and not list(run.glob(".*")) and not (run / LOCK).exists()


def test_resuming_a_complete_run_is_refused(tmp_path: Path) -> None:
    run_training(config_of(), tmp_path / "run", Silent())
    code, out, err = command("resume", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    path = tmp_path / "run"
    longer = f"'diaster resume {path} --steps N' makes it longer"
    sentence = f"'{path}' is complete; there is nothing left to train. {longer}."
    assert err == f"diaster: {sentence}\n"


@pytest.mark.parametrize("arguments", [[], ["nowhere"]])
def test_resume_without_a_run_is_a_sentence(arguments: list[str], empty_cwd: Path) -> None:
    code, out, err = command("resume", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


FLAGS = [
    "--import=toy_envs", "--steps=20000", "--chunk-steps=40", "--warmup-steps=80", "--workers=1", "--quiet",
    "--evaluation.every=10000", "--method.hidden=4", "--agent.hidden=4", "--agent.batch-size=8",
]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_chunk_writes_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    places = os.pathsep.join([str(Path(diaster.__file__).parents[1]), str(Path(toy_envs.__file__).parent)])
    process = subprocess.Popen(
        [sys.executable, "-m", "diaster", "train", "Toy-v0", *FLAGS, "--out", "run"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": places}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for((tmp_path / "run" / CONFIG).exists)
    os.killpg(process.pid, number)  # as a terminal does
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert err.splitlines()[-1].endswith("go on with 'diaster resume run'.")
    assert len(generations(tmp_path / "run" / DIRECTORY)) == 1
    assert not (tmp_path / "run" / LOCK).exists()


def test_numbers_that_json_has_not_come_back() -> None:
    facts = {"rows": [{"a": float("nan"), "b": -0.1, "c": 3}], "d": [float("inf"), float("-inf"), None, True]}
    back = manifests.from_json(json.loads(json.dumps(manifests.to_json(facts), allow_nan=False)))
    np.testing.assert_equal(back, facts)

"""Nothing is imported for a run directory that this user did not make here."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run
from made_runs import make_rollouts

import diaster
from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.rundir.records import CONFIG, DONE
from diaster.rundir.trust import SIGNATURE, check_trust, modules_of, sign

MODULE = "a_module_of_a_stranger"
SETTINGS = build_config(env="Toy-v0", imports=(MODULE,))


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def stranger(tmp_path: Path, empty_cwd: Path) -> Iterator[Callable[[], bool]]:
    """A module that can be found and leaves a trace when it is imported; asks whether it was."""
    trace = tmp_path / "trace"
    (empty_cwd / f"{MODULE}.py").write_text(f"import toy_envs\nopen({str(trace)!r}, 'w').close()\n", encoding="utf-8")
    yield trace.exists
    sys.modules.pop(MODULE, None)


def foreign_copy(original: Path, path: Path) -> Path:
    """A run of somebody else that asks to import the stranger's module."""
    shutil.copytree(original, path)
    text = (path / CONFIG).read_text(encoding="utf-8")
    assert '["toy_envs"]' in text
    (path / CONFIG).write_text(text.replace('["toy_envs"]', f'["{MODULE}"]'), encoding="utf-8")
    make_rollouts(path)
    return path


def test_modules_are_those_of_imports_and_of_the_environments_name() -> None:
    assert modules_of(build_config(env="Hopper-v5")) == ()
    assert modules_of(build_config(env="one:Toy-v0", imports=("two", "three"))) == ("two", "three", "one")


def test_a_signed_directory_is_trusted_and_one_with_other_modules_is_not(tmp_path: Path) -> None:
    sign(tmp_path, SETTINGS)
    check_trust(tmp_path, SETTINGS)
    with pytest.raises(DiasterError, match=r"not made here by you.*--trust"):
        check_trust(tmp_path, build_config(env="Toy-v0", imports=(MODULE, "another")))
    with pytest.raises(DiasterError, match="asks to import there,"):
        check_trust(tmp_path, build_config(env="there:Toy-v0"))


def test_a_signature_is_of_one_function_and_not_of_all_in_its_module(tmp_path: Path) -> None:
    sign(tmp_path, build_config(env="mine:make_env"))
    check_trust(tmp_path, build_config(env="mine:make_env", steps=7))
    with pytest.raises(DiasterError, match="asks to import mine,"):
        check_trust(tmp_path, build_config(env="mine:remove_everything"))


def test_texts_for_an_environment_need_a_signature_of_these_very_texts(tmp_path: Path) -> None:
    mine = build_config(env="Toy-v0", env_kwargs={"file": "a.xml", "size": 3})
    with pytest.raises(DiasterError, match=r"asks to make 'Toy-v0' with texts of its own for file,"):
        check_trust(tmp_path, mine)
    sign(tmp_path, mine)
    check_trust(tmp_path, mine)
    for file in ("b.xml", ["b.xml"], {"a": [{"b": "b.xml"}]}):
        with pytest.raises(DiasterError, match="with texts of its own for file"):
            check_trust(tmp_path, build_config(env="Toy-v0", env_kwargs={"file": file, "size": 3}))


def test_numbers_for_an_environment_need_no_signature(tmp_path: Path) -> None:
    config = build_config(env="Toy-v0", env_kwargs={"size": 3, "on": True, "rows": [[1.5], []]})
    sign(tmp_path, config)
    check_trust(tmp_path, config)
    assert not (tmp_path / SIGNATURE).exists()


def test_a_signature_of_a_version_before_there_were_arguments_is_still_good(tmp_path: Path, state_home: Path) -> None:
    sign(tmp_path, SETTINGS)
    key = (state_home / "diaster" / "key").read_bytes()
    before = hmac.new(key, json.dumps((MODULE,)).encode(), hashlib.sha256).hexdigest()
    assert (tmp_path / SIGNATURE).read_text() == before


def test_a_placeholder_imports_nothing(tmp_path: Path) -> None:
    check_trust(tmp_path, build_config(env="<mine:make_env>"))


def test_settings_that_import_nothing_need_no_signature(tmp_path: Path, state_home: Path) -> None:
    config = build_config(env="Hopper-v5")
    sign(tmp_path, config)
    check_trust(tmp_path, config)
    assert not (tmp_path / SIGNATURE).exists() and not state_home.exists()


def test_a_signature_of_another_user_is_worth_nothing(
    tmp_path: Path, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign(tmp_path, SETTINGS)
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home / "of-another"))
    with pytest.raises(DiasterError, match="not made here"):
        check_trust(tmp_path, SETTINGS)
    sign(state_home, SETTINGS)  # makes that user's key
    with pytest.raises(DiasterError, match="not made here"):
        check_trust(tmp_path, SETTINGS)


@pytest.mark.parametrize("content", [b"", b"0" * 64, b"\xff" * 64, b"0" * 1_000_000])
def test_a_made_up_signature_is_worth_nothing(tmp_path: Path, content: bytes) -> None:
    sign(tmp_path, SETTINGS)
    (tmp_path / SIGNATURE).write_bytes(content)
    with pytest.raises(DiasterError, match="not made here"):
        check_trust(tmp_path, SETTINGS)


def test_a_link_to_a_signature_is_worth_nothing(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    for folder in (own, foreign):
        folder.mkdir()
    sign(own, SETTINGS)
    (foreign / SIGNATURE).symlink_to(own / SIGNATURE)
    with pytest.raises(DiasterError, match="not made here"):
        check_trust(foreign, SETTINGS)


def test_only_the_user_can_read_the_key(tmp_path: Path, state_home: Path) -> None:
    sign(tmp_path, SETTINGS)
    [key] = (state_home / "diaster").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(key.read_bytes()) == 32


def test_without_a_place_for_the_key_a_run_is_unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(file))
    sign(tmp_path, SETTINGS)
    assert not (tmp_path / SIGNATURE).exists()
    with pytest.raises(DiasterError, match="not made here"):
        check_trust(tmp_path, SETTINGS)


@pytest.mark.parametrize("command", ["evaluate RUN", "resume RUN", "record RUN", "video RUN -o film.gif"])
def test_no_command_imports_for_a_stranger(
    command: str, runner: Path, tmp_path: Path, stranger: Callable[[], bool]
) -> None:
    foreign = foreign_copy(runner, tmp_path / "foreign")
    if command.startswith("resume"):
        (foreign / DONE).unlink()
    result = run(*command.replace("RUN", str(foreign)).split())
    assert result.code == 2 and MODULE in result.err and "--trust" in result.err
    assert not stranger()


@pytest.mark.parametrize("command", ["plot RUN -o curve.png", "figure credit RUN -o credit.png", "report FOLDER"])
def test_figures_import_nothing_and_need_no_trust(
    command: str, runner: Path, tmp_path: Path, stranger: Callable[[], bool]
) -> None:
    foreign = foreign_copy(runner, tmp_path / "results" / "foreign")
    words = command.replace("RUN", str(foreign)).replace("FOLDER", str(foreign.parent)).split()
    assert run(*words).code == 0
    assert not stranger()


def test_trust_imports_and_goes_on(runner: Path, tmp_path: Path, stranger: Callable[[], bool]) -> None:
    foreign = foreign_copy(runner, tmp_path / "foreign")
    with pytest.raises(DiasterError, match="trust=True"):
        diaster.load(foreign)
    assert not stranger()
    assert run("evaluate", foreign, "--trust", "--episodes", 1).code == 0
    assert stranger()
    assert diaster.load(foreign, trust=True).seeds == (3, 8)


def test_a_run_made_here_needs_no_flag(tmp_path: Path) -> None:
    """Wherever it is moved."""
    made = diaster.train(
        "Toy-v0", out=tmp_path / "run", imports=("toy_envs",), steps=100, workers=0, chunk_steps=50,
        warmup_steps=60, method={"name": "uniform"}, agent={"name": "ddpg", "hidden": 4}, device="cpu",
    )  # fmt: skip
    moved = made.path.rename(tmp_path / "moved")
    assert diaster.load(moved).done


def test_a_dry_run_of_a_sweep_imports_nothing(tmp_path: Path, stranger: Callable[[], bool]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(f'[settings]\nimports = ["{MODULE}"]\nenv = "Toy-v0"\n[axes]\nsteps = [100, 200]\n', "utf-8")
    result = run("sweep", file, "--dry-run", "--out", tmp_path / "out")
    assert result.code == 0 and "steps-200" in result.out and f"import {MODULE}" in result.out
    assert not stranger()

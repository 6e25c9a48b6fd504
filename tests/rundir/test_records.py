"""Settings, metadata and nets of a run directory, as far as they can be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.rundir.records import CONFIG, METADATA, POLICY, read_config, read_metadata, read_tensors
from diaster.rundir.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    writer = RunWriter(tmp_path / "run", build_config(env="Toy-v0"), {"device": "cpu"})
    writer.claim()
    writer.record([{"step": 10, "seed": 4, "episodes": 3}], {"weight": np.ones((2, 3), np.float32)}, {})
    writer.release()
    return tmp_path / "run"


def refusal(call: Callable[[Path], Any], path: Path, what: object = "") -> str:
    with pytest.raises(DiasterError) as caught:
        pytest.fail(f"{what} was read as {call(path)}")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_tensors_are_a_sentence(run: Path) -> None:
    path = run / POLICY
    whole = path.read_bytes()
    for content in (b"", b"garbage", b"\x02" + b"\x00" * 7 + b"[]", b"\xff" * 64, whole[:-5]):
        path.write_bytes(content)
        assert f"'{path}' is damaged" in refusal(read_tensors, path, content)


def test_damaged_metadata_are_a_sentence(run: Path) -> None:
    expected = f"'{run / METADATA}' is missing or damaged; train the run again."
    for content in (b"", b"{", b"[1]", b"3", b"\xff"):
        (run / METADATA).write_bytes(content)
        assert refusal(read_metadata, run, content) == expected
    (run / METADATA).unlink()
    assert refusal(read_metadata, run) == expected


def test_a_damaged_configuration_is_a_sentence(run: Path) -> None:
    (run / CONFIG).write_text("steps = [", encoding="utf-8")
    assert f"'{run / CONFIG}' is not valid TOML" in refusal(read_config, run)


def test_a_directory_without_a_run_is_said_to_be_one(tmp_path: Path) -> None:
    for read in (read_config, lambda path: read_tensors(path / POLICY)):
        assert refusal(read, tmp_path).startswith(f"'{tmp_path}' holds no run")


def test_a_folder_of_runs_is_said_to_be_one_and_some_are_named(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"run{number}").mkdir()
        (tmp_path / f"run{number}" / CONFIG).write_text("")
    (tmp_path / "other").mkdir()
    with pytest.raises(DiasterError, match=r"is no run but a folder of runs; give one of them \(run0, .*, run4, …\)"):
        read_config(tmp_path)


def test_metadata_are_json(run: Path) -> None:
    assert json.loads((run / METADATA).read_text(encoding="utf-8")) == {"device": "cpu"}

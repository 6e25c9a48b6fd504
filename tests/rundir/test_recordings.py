"""Recorded episodes there and back, and files that are no recording."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from made_runs import make_maze_rollouts, make_rollouts

from diaster.errors import DiasterError
from diaster.rundir.files import MissingFileError
from diaster.rundir.recordings import ROLLOUTS, nets_digest, read_rollouts, write_rollouts
from diaster.rundir.records import POLICY


def refusal(path: Path) -> str:
    with pytest.raises(DiasterError) as caught:
        read_rollouts(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the arrays or the scene of a recording."""
    content = (path / ROLLOUTS).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    arrays, scene = safetensors.numpy.load(content), json.loads(header["__metadata__"]["scene"])
    change(arrays, scene)
    (path / ROLLOUTS).write_bytes(safetensors.numpy.save(arrays, metadata={"scene": json.dumps(scene)}))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = make_rollouts(tmp_path, (4, 6))
    found = read_rollouts(tmp_path)
    for name in written._fields:
        if name != "maze":
            np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    assert found.maze is None
    assert (found.steps_of(0), found.steps_of(1)) == (slice(0, 4), slice(4, 10))
    assert found.of_policy(0) == 1


def test_a_maze_is_read_back_with_the_place_of_its_walls(tmp_path: Path) -> None:
    written = make_maze_rollouts(tmp_path, 1.0, episodes=2, length=5)
    found = read_rollouts(tmp_path)
    assert found.maze is not None and written.maze is not None
    np.testing.assert_array_equal(found.maze.walls, written.maze.walls)
    assert found.maze.extent == (-2.5, 2.5, -2.5, 2.5)


def test_a_run_without_a_recording_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=f"diaster record {tmp_path}"):
        read_rollouts(tmp_path)


def test_a_recording_of_other_nets_is_refused(tmp_path: Path) -> None:
    make_rollouts(tmp_path)
    (tmp_path / POLICY).write_bytes(b"trained further")
    assert "recorded with other nets" in refusal(tmp_path)
    assert "diaster record" in refusal(tmp_path)


def test_a_missing_array_is_refused(tmp_path: Path) -> None:
    for name in ("seed", "frames", "goal"):
        make_rollouts(tmp_path)
        rewrite(tmp_path, lambda arrays, _, name=name: arrays.pop(name))  # type: ignore[misc]
        assert f"'{name}' is missing" in refusal(tmp_path)


CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "lengths that overflow": (lambda a, _: a.update(length=np.full(3, 2**62)), "do not add up"),
    "lengths below one": (lambda a, _: a.update(length=np.array([0, 100, 50])), "do not add up"),
    "steps cut off": (lambda a, _: a.update(obs=a["obs"][:-1]), "unequal numbers of steps"),
    "episodes cut off": (lambda a, _: a.update(seed=a["seed"][:-1]), "unequal numbers of episodes"),
    "another kind": (lambda a, _: a.update(obs=a["obs"].astype(np.float64)), "'obs' is float64"),
    "rewards of NaN": (lambda a, _: a["step_reward"].fill(np.nan), "'step_reward' has numbers"),
    "infinite positions": (lambda a, _: a["position"].fill(np.inf), "'position' has numbers"),
    "huge true rewards": (lambda a, _: a["true_reward"].fill(1e300), "too large"),
    "frames of nothing": (
        lambda a, _: a.update(frames=np.zeros((1, 0, 5, 3), np.uint8), frame_step=np.zeros(1, np.int64)),
        "no pictures",
    ),
    "frames outside": (
        lambda a, _: a.update(frames=np.zeros((1, 2, 2, 3), np.uint8), frame_step=np.array([41])),
        "outside",
    ),
    "another version": (lambda _, scene: scene.update(version=2), "of the form 2"),
    "no nets": (lambda _, scene: scene.pop("nets"), "which nets"),
    "a ragged maze": (lambda _, scene: scene.update(maze={"walls": [[1, 0], [1]], "cell": 1.0}), "map of the maze"),
    "a huge maze": (lambda _, scene: scene.update(maze={"walls": [[1] * 65], "cell": 1.0}), "map of the maze"),
    "cells without size": (lambda _, scene: scene.update(maze={"walls": [[1]], "cell": 0}), "map of the maze"),
    "a maze of text": (lambda _, scene: scene.update(maze="walls"), "map of the maze"),
}


def test_what_no_recording_can_hold_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for what, (alter, words) in CHANGES.items():
        make_rollouts(tmp_path)
        rewrite(tmp_path, alter)
        sentence = refusal(tmp_path)
        assert words in sentence and "diaster record" in sentence, (what, sentence)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    make_rollouts(tmp_path)
    for content in (b"", b"garbage", b"\xff" * 64, (2).to_bytes(8, "little") + b"{}"):
        (tmp_path / ROLLOUTS).write_bytes(content)
        assert str(tmp_path / ROLLOUTS) in refusal(tmp_path), content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    make_rollouts(tmp_path)
    (tmp_path / ROLLOUTS).rename(tmp_path / "elsewhere")
    (tmp_path / ROLLOUTS).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refusal(tmp_path)


def test_more_than_a_recording_may_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_rollouts(tmp_path)
    (tmp_path / ROLLOUTS).unlink()
    monkeypatch.setattr("diaster.rundir.recordings.MOST_BYTES", 100)
    with pytest.raises(DiasterError, match="--episodes"):
        write_rollouts(tmp_path, found, nets_digest(tmp_path))
    assert not (tmp_path / ROLLOUTS).exists()

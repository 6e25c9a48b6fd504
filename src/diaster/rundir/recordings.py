"""Recorded episodes of a trained run, in one file of its directory: all that figures need of an environment.

The file is safetensors. The steps of all episodes are concatenated; the scene is JSON in the header. It can be made
again at any time (`diaster record`), so a file that cannot be used is refused with that advice.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.rundir.files import MissingFileError, parse_json, parse_tensors, read_bytes, write_atomically
from diaster.rundir.records import DECOMPOSER, POLICY, no_run

ROLLOUTS = "rollouts.safetensors"
VERSION = 1
MOST_BYTES = 2**30
MOST_NET_BYTES = 2**30
MOST_MAZE = 64  # cells along a side


class Maze(NamedTuple):
    """Walls of a maze seen from above: row 0 is at the largest y."""

    walls: NDArray[np.bool_]  # [rows, columns]
    cell: float
    """The side of a cell, in metres."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top; the middle of the map is the origin."""
        rows, columns = self.walls.shape
        return -columns * self.cell / 2, columns * self.cell / 2, -rows * self.cell / 2, rows * self.cell / 2


class Rollouts(NamedTuple):
    """N steps of E episodes, concatenated. `position` has P columns: none, the forward one, or the two of a plane."""

    seed: NDArray[np.int64]  # [E]
    is_spread: NDArray[np.bool_]  # [E]; of the spread of behaviours, not of the policy alone
    length: NDArray[np.int64]  # [E]
    episode_return: NDArray[np.float64]  # [E]
    goal: NDArray[np.float64]  # [E, 2], or [E, 0] where the task has none
    obs: NDArray[np.float32]  # [N, D], in which the action was taken
    action: NDArray[np.float32]  # [N, A], in [−1, 1] or one-hot
    step_reward: NDArray[np.float64]  # [N], r̂ in the environment's units
    true_reward: NDArray[np.float64]  # [N]; NaN where the environment has none
    position: NDArray[np.float64]  # [N, P], before the step
    next_position: NDArray[np.float64]  # [N, P]
    frames: NDArray[np.uint8]  # [F, height, width, 3], of the first episode; F may be 0
    frame_step: NDArray[np.int64]  # [F]
    maze: Maze | None = None

    def steps_of(self, episode: int) -> slice:
        """The steps of an episode."""
        first = int(self.length[:episode].sum())
        return slice(first, first + int(self.length[episode]))

    def of_policy(self, seed: int) -> int:
        """How many episodes of its policy alone a seed has."""
        return int(((self.seed == seed) & ~self.is_spread).sum())


_KINDS: dict[str, tuple[Any, int]] = {
    "seed": (np.int64, 1),
    "is_spread": (np.bool_, 1),
    "length": (np.int64, 1),
    "episode_return": (np.float64, 1),
    "goal": (np.float64, 2),
    "obs": (np.float32, 2),
    "action": (np.float32, 2),
    "step_reward": (np.float64, 1),
    "true_reward": (np.float64, 1),
    "position": (np.float64, 2),
    "next_position": (np.float64, 2),
    "frames": (np.uint8, 4),
    "frame_step": (np.int64, 1),
}
_PER_STEP = ("obs", "action", "step_reward", "true_reward", "position", "next_position")
_PER_EPISODE = ("seed", "is_spread", "length", "episode_return", "goal")


def nets_digest(path: Path) -> str:
    """A digest of the nets of a run: it changes when they are trained further."""
    try:
        contents = [read_bytes(path / name, MOST_NET_BYTES) for name in (POLICY, DECOMPOSER)]
    except MissingFileError:
        raise no_run(path) from None
    return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()


def write_rollouts(path: Path, rollouts: Rollouts, nets: str) -> None:
    """Write the recording into the run directory; `nets` is the digest of the nets that acted."""
    arrays = {name: np.ascontiguousarray(getattr(rollouts, name), dtype=kind) for name, (kind, _) in _KINDS.items()}
    size = sum(array.nbytes for array in arrays.values())
    if size > MOST_BYTES:
        raise DiasterError(
            f"these episodes of '{path}' take {size / 1e9:.1f} GB, and a recording at most {MOST_BYTES / 1e9:.1f}; "
            "record fewer with --episodes."
        )
    maze = rollouts.maze
    scene = {
        "version": VERSION,
        "nets": nets,
        "maze": None if maze is None else {"walls": maze.walls.astype(int).tolist(), "cell": maze.cell},
    }
    content = safetensors.numpy.save(arrays, metadata={"scene": json.dumps(scene)})
    write_atomically(path / ROLLOUTS, content)


def read_rollouts(path: Path) -> Rollouts:
    """The recording of a run directory, if it is whole and of the nets that are there now."""
    file = path / ROLLOUTS
    try:
        content = read_bytes(file, MOST_BYTES + 2**20)
    except MissingFileError:
        raise MissingFileError(
            f"'{path}' has no recorded episodes; record some with 'diaster record {path}'."
        ) from None
    arrays = parse_tensors(content, file)
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")], file)
    scene = _scene(header, file)
    if scene["nets"] != nets_digest(path):
        raise DiasterError(
            f"'{file}' was recorded with other nets than the run has now; record it again with 'diaster record {path}'."
        )
    _check_forms(arrays, file)
    rollouts = Rollouts(**arrays, maze=_maze(scene.get("maze"), file))
    _check_content(rollouts, file)
    return rollouts


def _unusable(file: Path, why: str) -> DiasterError:
    return DiasterError(
        f"'{file}' is no recording that can be used: {why}; record it again with 'diaster record {file.parent}'."
    )


def _scene(header: dict[str, Any], file: Path) -> dict[str, Any]:
    metadata = header.get("__metadata__")
    text = metadata.get("scene") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise _unusable(file, "its header does not describe it")
    scene = parse_json(text.encode(), file)
    if scene.get("version") != VERSION:
        raise _unusable(file, f"it is of the form {scene.get('version')!r}, and {VERSION} is known")
    if not isinstance(scene.get("nets"), str):
        raise _unusable(file, "it does not say which nets it was made with")
    return scene


def _check_forms(arrays: dict[str, NDArray[Any]], file: Path) -> None:
    if arrays.keys() != _KINDS.keys():
        raise _unusable(file, f"'{min(arrays.keys() ^ _KINDS.keys())}' is missing or no part of it")
    for name, (kind, rank) in _KINDS.items():
        if arrays[name].dtype != kind or arrays[name].ndim != rank:
            raise _unusable(file, f"'{name}' is {arrays[name].dtype} of rank {arrays[name].ndim}")
    for names, what in ((_PER_STEP, "steps"), (_PER_EPISODE, "episodes")):
        if len({len(arrays[name]) for name in names}) > 1:
            raise _unusable(file, f"its arrays have unequal numbers of {what}")
    if len(arrays["frames"]) != len(arrays["frame_step"]):
        raise _unusable(file, "it has unequal numbers of frames and of their steps")


def _check_content(found: Rollouts, file: Path) -> None:
    if not len(found.length):
        raise _unusable(file, "it holds no episode")
    n_steps = len(found.step_reward)
    # Each length is bounded, so that their sum cannot overflow.
    if found.length.min() < 1 or found.length.max() > n_steps or found.length.sum() != n_steps:
        raise _unusable(file, "the lengths of its episodes do not add up to its steps")
    if found.position.shape != found.next_position.shape or found.position.shape[1] > 2:
        raise _unusable(file, "its positions are of no known kind")
    if found.goal.shape[1] not in (0, 2):
        raise _unusable(file, "its goals are of no known kind")
    for name in ("episode_return", "goal", "step_reward", "position", "next_position"):
        values = getattr(found, name)
        if not (np.abs(values) < 1e100).all():
            raise _unusable(file, f"'{name}' has numbers that are not finite")
    if (np.abs(found.true_reward) > 1e100).any():
        raise _unusable(file, "'true_reward' has numbers that are too large")
    if len(found.frames) and (found.frames.shape[3] != 3 or 0 in found.frames.shape):
        raise _unusable(file, "its frames are no pictures")
    if ((found.frame_step < 0) | (found.frame_step > found.length[0])).any():
        raise _unusable(file, "its frames lie outside of their episode")


def _maze(found: Any, file: Path) -> Maze | None:
    if found is None:
        return None
    walls, cell = (found.get("walls"), found.get("cell")) if isinstance(found, dict) else (None, None)
    rows = walls if isinstance(walls, list) else []
    if (
        not 0 < len(rows) <= MOST_MAZE
        or not all(isinstance(row, list) and 0 < len(row) <= MOST_MAZE for row in rows)
        or len({len(row) for row in rows}) > 1
        or any(value not in (0, 1) for row in rows for value in row)
        or not isinstance(cell, int | float)
        or not 0 < cell < 1e6
    ):
        raise _unusable(file, "its map of the maze is none")
    return Maze(np.array(rows, bool), float(cell))

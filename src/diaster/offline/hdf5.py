"""HDF5 in D4RL's form: steps end to end, with `terminals` and `timeouts` that are true at the last step of an episode.

observations, actions, rewards, terminals, timeouts [N, …]; and, where there are any, next_observations [N, D], returns
and groups [E]. The groups `infos` and `metadata` are carried along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.columns import PER_EPISODE, columns_of, required
from diaster.offline.episodes import Recorded
from diaster.offline.extras import extra
from diaster.offline.faults import Faults
from diaster.offline.flat import PIECE_BYTES, BadRowsError, Column, Fetch, FlatData, check_rows, flat_episodes
from diaster.offline.relabelled import Relabelled
from diaster.rundir.files import written_in_pieces

SUFFIXES = (".hdf5", ".h5")
CARRIED = ("infos", "metadata")
DAMAGE = (OSError, RuntimeError, KeyError, ValueError)  # in the words of the library


class Hdf5Source:
    """A data set in an HDF5 file."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path, self.name, self.faults = path, f"'{path}'", faults
        h5py = extra("h5py", "hdf5", "HDF5 files")
        try:
            self._file = h5py.File(path, "r")
            names = [name for name in self._file if name not in CARRIED]
            self._stored = columns_of(names, self.name, faults, absent=("lengths", "terminated"))
            required(self._stored, ("observations", "actions"), self.name)
            for name, stored in self._stored.items():
                if not isinstance(self._file[stored], h5py.Dataset) or not self._file[stored].shape:
                    raise DiasterError(f"'{name}' in {self.name} is no array; D4RL's form has one.")
            self._data = self._flat()
        except DiasterError:
            raise
        except DAMAGE as error:
            raise DiasterError(
                f"{self.name} is no HDF5 file, or one that was cut off ({error}); copy it again from where it is whole."
            ) from None

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        return flat_episodes(self._data, wanted)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def write(self, out: Path, relabelled: Relabelled) -> None:
        """A copy with these rewards, and what it had as rewards beside them."""
        import h5py

        original = self._stored.get("original_rewards") or self._stored.get("rewards")
        replaced = {self._stored[name] for name in ("rewards", "original_rewards") if name in self._stored}
        with written_in_pieces(out) as temporary, h5py.File(temporary, "w") as made:
            try:
                made.attrs.update(self._file.attrs)
                for name in self._file:
                    if name not in replaced:
                        self._copy(self._file[name], made, name, relabelled)
                if original is not None:
                    self._copy(self._file[original], made, "original_rewards", relabelled)
                made.create_dataset("rewards", data=relabelled.rewards)
            except (RuntimeError, KeyError, ValueError) as error:  # of what lies beside the columns
                raise DiasterError(f"{self.name} is damaged and cannot be copied: {error}.") from None

    def _flat(self) -> FlatData:
        n_steps = int(self._file[self._stored["actions"]].shape[0])
        ends = np.zeros(n_steps, bool)
        marks = [name for name in ("terminals", "timeouts") if name in self._stored]
        if not marks:
            raise DiasterError(
                f"{self.name} has neither 'terminals' nor 'timeouts', so nothing says where episodes end."
            )
        for mark in marks:
            flags = np.asarray(self._file[self._stored[mark]]).reshape(-1) != 0
            if len(flags) != n_steps:
                raise DiasterError(f"{self.name} has {n_steps:,} actions and {len(flags):,} {mark}; one per step.")
            ends |= flags
        if n_steps:
            ends[-1] = True  # the file may end within an episode: it is as if a time limit had cut it off
        lengths = np.diff(np.flatnonzero(ends), prepend=-1).astype(np.int64)
        per_episode = {
            name: np.asarray(self._file[stored]) for name, stored in self._stored.items() if name in PER_EPISODE
        }
        for name, values in per_episode.items():
            if values.shape[:1] != lengths.shape:
                raise DiasterError(
                    f"{self.name} has {len(lengths):,} episodes by its terminals and timeouts, and {len(values):,} "
                    f"{name}; one of each belongs to an episode."
                )
        if "groups" in per_episode and per_episode["groups"].dtype.kind in "SO":
            per_episode["groups"] = self._file[self._stored["groups"]].asstr()[()]
        steps = {
            name: self._column(self._file[stored]) for name, stored in self._stored.items() if name not in PER_EPISODE
        }
        check_rows(steps, n_steps, 0, self.name)
        return FlatData(lengths, steps, per_episode, "episode {}".format, has_last_observation=False)

    def _column(self, dataset: Any) -> Column:
        row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
        return Column(dataset.shape[0], row_bytes, lambda: _fetch(dataset))

    def _copy(self, item: Any, to: Any, name: str, relabelled: Relabelled) -> None:
        """Something in the file as it is, or what is left of it without the episodes that were skipped."""
        import h5py

        if relabelled.is_whole:
            item.file.copy(item, to, name)
        elif isinstance(item, h5py.Group):
            made = to.create_group(name)
            made.attrs.update(item.attrs)
            for inner in item:
                self._copy(item[inner], made, inner, relabelled)
        else:
            of_steps = self._data.kept_rows(relabelled.is_kept)
            is_per_episode = name in (self._stored.get(known) for known in PER_EPISODE)
            is_kept = relabelled.is_kept if is_per_episode else of_steps
            if item.shape[:1] == is_kept.shape:
                _copy_rows(item, to, name, is_kept)
            else:
                item.file.copy(item, to, name)


def _copy_rows(item: Any, to: Any, name: str, is_kept: NDArray[np.bool_]) -> None:
    made = to.create_dataset(name, (int(is_kept.sum()), *item.shape[1:]), item.dtype)
    made.attrs.update(item.attrs)
    n_rows = max(1, PIECE_BYTES // max(item.dtype.itemsize * math.prod(item.shape[1:]), 1))
    place = 0
    for first in range(0, len(is_kept), n_rows):
        rows = item[first : first + n_rows][is_kept[first : first + n_rows]]
        made[place : place + len(rows)] = rows
        place += len(rows)


def _fetch(dataset: Any) -> Fetch:
    return partial(_rows, dataset)


def _rows(dataset: Any, first: int, end: int) -> NDArray[Any]:
    try:
        return np.asarray(dataset[first:end])
    except DAMAGE as error:
        raise BadRowsError(first, f"cannot be read: {error}") from None

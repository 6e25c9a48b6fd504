"""`.npz`: NumPy's arrays in a zip file, with steps end to end. Read and written in pieces, compressed or not.

observations [N, D] (one row per step, or L+1 rows per episode), actions [N, A] or [N], lengths [E], returns [E]; and,
where there are any, next_observations, rewards, terminals, timeouts [N, …], groups and terminated [E].
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.columns import PER_EPISODE, columns_of, required
from diaster.offline.episodes import Recorded
from diaster.offline.faults import Faults
from diaster.offline.flat import PIECE_BYTES, BadRowsError, Column, Fetch, FlatData, check_rows, flat_episodes
from diaster.offline.relabelled import Relabelled
from diaster.rundir.files import written_in_pieces

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError)
SUFFIXES = (".npz",)


class Member(NamedTuple):
    """An array in the file."""

    file: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    header_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


class NpzSource:
    """A data set in an .npz file."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path, self.name, self.faults = path, f"'{path}'", faults
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise DiasterError(f"{self.name} cannot be read: {error.strerror}; check its name.") from None
        except zipfile.BadZipFile as error:
            raise DiasterError(
                f"{self.name} is no .npz file, or one that was cut off ({error}); copy it again from where it is whole."
            ) from None
        members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}
        columns = columns_of(members, self.name, faults, absent=("features",))
        required(columns, ("observations", "actions", "lengths"), self.name)
        self._members = {name: self._member(stored) for name, stored in columns.items()}
        self._data = self._flat()

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        return flat_episodes(self._data, wanted)

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()

    def write(self, out: Path, relabelled: Relabelled) -> None:
        """A copy with these rewards, and what it had as rewards beside them."""
        original = self._members.get("original_rewards") or self._members.get("rewards")
        replaced = {self._members[name].file for name in ("rewards", "original_rewards") if name in self._members}
        kind = next(iter(self._zip.infolist())).compress_type
        with written_in_pieces(out) as temporary, zipfile.ZipFile(temporary, "w", kind) as made:
            for info in self._zip.infolist():
                if info.filename not in replaced:
                    self._copy(made, info.filename, info.filename, relabelled)
            if original is not None:
                self._copy(made, original.file, "original_rewards.npy", relabelled)
            with made.open("rewards.npy", "w", force_zip64=True) as file:
                npy.write_array(file, relabelled.rewards, allow_pickle=False)

    def _member(self, stored: str) -> Member:
        file = f"{stored}.npy"
        try:
            with self._zip.open(file) as stream:
                version = npy.read_magic(stream)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, is_fortran, dtype = read(stream)
                header_bytes = stream.tell()
            size = self._zip.getinfo(file).file_size
        except (KeyError, *DAMAGE) as error:
            raise DiasterError(f"'{stored}' in {self.name} is no array: {error}; write it with numpy.savez.") from None
        if dtype.hasobject:
            raise DiasterError(f"'{stored}' in {self.name} holds Python objects; save plain numbers.")
        if is_fortran and len(shape) > 1:
            raise DiasterError(f"'{stored}' in {self.name} is in Fortran's order; save numpy.ascontiguousarray of it.")
        if len(shape) == 0 or header_bytes + dtype.itemsize * math.prod(shape) != size:
            raise DiasterError(f"'{stored}' in {self.name} does not hold the array of shape {shape} that it names.")
        return Member(file, shape, dtype, header_bytes)

    def _flat(self) -> FlatData:
        per_episode = {name: self._whole(member) for name, member in self._members.items() if name in PER_EPISODE}
        lengths = per_episode.pop("lengths")
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths):
            raise DiasterError(f"'lengths' in {self.name} are not whole numbers, one per episode; put them right.")
        for name, values in per_episode.items():
            if values.shape[:1] != lengths.shape:
                raise DiasterError(
                    f"{self.name} has {len(lengths):,} lengths and {len(values):,} {name}; one of each belongs to an "
                    "episode."
                )
        lengths = lengths.astype(np.int64)
        n_steps, n_episodes = int(np.maximum(lengths, 0).sum()), len(lengths)
        steps = {
            name: Column(member.shape[0], member.row_bytes, partial(self._open, member))
            for name, member in self._members.items()
            if name not in PER_EPISODE
        }
        has_last = steps["observations"].n_rows == n_steps + n_episodes
        check_rows(steps, n_steps, n_episodes if has_last else 0, self.name)
        return FlatData(lengths, steps, per_episode, "episode {}".format, has_last)

    def _whole(self, member: Member) -> NDArray[Any]:
        return self._open(member)(0, member.shape[0])

    def _open(self, member: Member) -> Fetch:
        return partial(_fetch, self._zip.open(member.file), member, [0])

    def _copy(self, made: zipfile.ZipFile, file: str, to: str, relabelled: Relabelled) -> None:
        """An array as it is, or what is left of it without the episodes that were skipped."""
        name = next((name for name, member in self._members.items() if member.file == file), None)
        with made.open(to, "w", force_zip64=True) as target:
            if name is None or relabelled.is_whole:
                with self._zip.open(file) as stream:
                    while piece := stream.read(PIECE_BYTES):
                        target.write(piece)
                return
            member = self._members[name]
            is_kept = relabelled.is_kept if name in PER_EPISODE else self._data.kept_rows(relabelled.is_kept, name)
            shape = (int(is_kept.sum()), *member.shape[1:])
            header = {"descr": npy.dtype_to_descr(member.dtype), "fortran_order": False, "shape": shape}
            npy.write_array_header_2_0(target, header)
            fetch, n_rows = self._open(member), max(1, PIECE_BYTES // max(member.row_bytes, 1))
            for first in range(0, member.shape[0], n_rows):
                end = min(first + n_rows, member.shape[0])
                target.write(np.ascontiguousarray(fetch(first, end)[is_kept[first:end]]).tobytes())


def _fetch(stream: IO[bytes], member: Member, place: list[int], first: int, end: int) -> NDArray[Any]:
    """Rows of an array, from a stream of its bytes that has been read up to row `place[0]`."""
    try:
        if stream.tell() == 0:
            stream.read(member.header_bytes)
        n_bytes = (first - place[0]) * member.row_bytes
        while n_bytes > 0:
            passed = len(stream.read(min(n_bytes, PIECE_BYTES)))
            if not passed:
                raise EOFError("it ends too early")
            n_bytes -= passed
        wanted = (end - first) * member.row_bytes
        content = stream.read(wanted)
        if len(content) < wanted:
            raise EOFError("it ends too early")
    except DAMAGE as error:
        raise BadRowsError(first, f"cannot be read: {error}") from None
    place[0] = end
    return np.frombuffer(content, member.dtype).reshape(end - first, *member.shape[1:])

"""Parquet: one row per step, in order, with `episode_id`.

observations and actions (a list of numbers, or one number), and, where there are any, next_observations, rewards,
terminals, timeouts; returns and groups, which all rows of an episode repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.columns import columns_of, required
from diaster.offline.episodes import Recorded
from diaster.offline.extras import extra
from diaster.offline.faults import Faults
from diaster.offline.flat import BadRowsError, Column, Fetch, FlatData, flat_episodes
from diaster.offline.relabelled import Relabelled
from diaster.rundir.files import written_in_pieces

SUFFIXES = (".parquet",)
BATCH = 16_384  # rows
REPEATED = ("returns", "groups")  # in all rows of an episode


class ParquetSource:
    """A data set in a Parquet file."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path, self.name, self.faults = path, f"'{path}'", faults
        self._pyarrow = extra("pyarrow", "parquet", "Parquet files")
        self._parquet = extra("pyarrow.parquet", "parquet", "Parquet files")
        self._compute = extra("pyarrow.compute", "parquet", "Parquet files")
        try:
            self._file = self._parquet.ParquetFile(path)
        except (OSError, self._pyarrow.ArrowException) as error:
            raise DiasterError(
                f"{self.name} is no Parquet file, or one that was cut off ({_first_line(error)}); copy it again from "
                "where it is whole."
            ) from None
        absent = ("lengths", "terminated")
        names = self._file.schema_arrow.names
        self._stored = columns_of(names, self.name, faults, others=("episode_id",), absent=absent)
        required(self._stored, ("episode_id", "observations", "actions"), self.name)
        self._data = self._flat()

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        return flat_episodes(self._data, wanted)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def write(self, out: Path, relabelled: Relabelled) -> None:
        """A copy with these rewards, and what it had as rewards beside them."""
        original = self._stored.get("original_rewards") or self._stored.get("rewards")
        kept, place, row = self._data.kept_rows(relabelled.is_kept), 0, 0
        with written_in_pieces(out) as temporary:
            writer = None
            for batch in self._file.iter_batches(BATCH):
                is_kept = kept[row : row + len(batch)]
                table = self._pyarrow.Table.from_batches([batch]).filter(self._pyarrow.array(is_kept))
                row += len(batch)
                before = None if original is None else table[original]
                for name in ("rewards", "original_rewards"):
                    if name in self._stored:
                        table = table.drop_columns([self._stored[name]])
                if before is not None:
                    table = table.append_column("original_rewards", before)
                rewards = relabelled.rewards[place : place + len(table)]
                table = table.append_column("rewards", self._pyarrow.array(rewards))
                place += len(table)
                writer = writer or self._parquet.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
            if writer is not None:
                writer.close()

    def _flat(self) -> FlatData:
        """Where episodes end, and what all rows of an episode repeat."""
        repeated = [name for name in REPEATED if name in self._stored]
        ids, lengths = self._runs("episode_id")
        if len(set(ids)) < len(ids):
            seen: set[Any] = set()
            again = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
            raise DiasterError(f"the rows of episode_id {again!r} in {self.name} are not together; sort by episode_id.")
        ends = np.cumsum(lengths)
        per_episode = {name: self._repeated(name, ends) for name in repeated}
        steps = {
            name: self._column(stored) for name, stored in self._stored.items() if name not in (*REPEATED, "episode_id")
        }

        def label(number: int) -> str:
            return f"episode {number} (episode_id {ids[number]!r})"

        return FlatData(lengths, steps, per_episode, label, has_last_observation=False)

    def _runs(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """The values of a column and how often each comes in a row."""
        values: list[Any] = []
        lengths: list[int] = []
        try:
            for batch in self._file.iter_batches(BATCH, columns=[self._stored[name]]):
                runs = self._compute.run_end_encode(batch.column(0))
                counts = np.diff(np.asarray(runs.run_ends), prepend=0).tolist()
                for value, count in zip(runs.values.to_pylist(), counts, strict=True):
                    if values and value == values[-1]:
                        lengths[-1] += count
                    else:
                        values.append(value)
                        lengths.append(count)
        except (OSError, self._pyarrow.ArrowException) as error:
            raise DiasterError(
                f"'{self._stored[name]}' in {self.name} cannot be read after row {sum(lengths):,}: "
                f"{_first_line(error)}; copy the file again from where it is whole."
            ) from None
        return values, np.array(lengths, np.int64)

    def _repeated(self, name: str, ends: NDArray[np.int64]) -> NDArray[Any]:
        """One value per episode. Where its rows differ, a text that says so stands for it, and is refused as such."""
        values, lengths = self._runs(name)
        their_ends = np.cumsum(lengths)
        found = np.array([None, *values], object)[1:][np.searchsorted(their_ends, ends - 1, side="right")]
        inside = their_ends[~np.isin(their_ends, ends)]
        for episode in np.unique(np.searchsorted(ends, inside, side="right")).tolist():
            first = np.searchsorted(their_ends, ends[episode - 1] if episode else 0, side="right")
            found[episode] = f"{values[first]} in one row and {values[first + 1]} in another"
        return np.asarray(found)

    def _column(self, stored: str) -> Column:
        wrong: dict[int, str] = {}
        n_rows = self._file.metadata.num_rows
        width = 8 * 32  # a guess; batches have a fixed number of rows
        return Column(n_rows, width, lambda: self._open(stored, wrong), wrong)

    def _open(self, stored: str, wrong: dict[int, str]) -> Fetch:
        batches = self._file.iter_batches(BATCH, columns=[stored])
        state: dict[str, Any] = {"row": 0, "rest": None, "width": None}

        def fetch(first: int, end: int) -> NDArray[Any]:
            parts = []
            while state["row"] < end:
                rest = state["rest"]
                if rest is None:
                    try:
                        rest = _numbers(next(batches).column(0), state, wrong)
                    except (OSError, StopIteration, self._pyarrow.ArrowException) as error:
                        raise BadRowsError(state["row"], f"cannot be read: {_first_line(error)}") from None
                take = min(len(rest), end - state["row"])
                skip = min(max(first - state["row"], 0), take)
                parts.append(rest[skip:take])
                state["row"] += take
                state["rest"] = rest[take:] if take < len(rest) else None
            return np.concatenate(parts)

        return fetch


def _numbers(column: Any, state: dict[str, Any], wrong: dict[int, str]) -> NDArray[Any]:
    """A column's rows as numbers; a row of another width than the first is noted, and holds NaN."""
    import pyarrow.compute

    kind, types = column.type, pyarrow.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        found = column.to_numpy(zero_copy_only=False)
        are_missing = types.is_null(kind) or types.is_boolean(kind)  # these have no NaN of their own
        return np.full(len(found), math.nan) if are_missing and found.dtype.kind == "O" else np.asarray(found)
    widths = np.asarray(pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
    state["width"] = width = widths[0] if state["width"] is None and len(widths) else state["width"]
    bad = np.flatnonzero(widths != width)
    if not len(bad) and column.null_count == 0:
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
    made = np.full((len(column), width), math.nan)
    for row in bad.tolist():
        wrong[state["row"] + row] = f"has {widths[row]} numbers, and rows before it {width}"
    for row in np.flatnonzero(widths == width).tolist():
        made[row] = [math.nan if value is None else value for value in column[row].as_py() or []]
    return made


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["it ends too early"])[0].rstrip(".")

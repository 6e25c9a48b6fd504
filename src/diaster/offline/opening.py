"""From what a user names to a data set that can be read, and to a place that a new one can be written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from diaster.errors import DiasterError
from diaster.offline import hdf5, json_lines, minari_sets, npz, parquet
from diaster.offline.episodes import Source
from diaster.offline.faults import Faults
from diaster.offline.in_memory import ArraysSource, RecordsSource
from diaster.offline.relabelled import Relabelled

FILES: dict[str, Callable[[Path, Faults], Any]] = {
    **dict.fromkeys(npz.SUFFIXES, npz.NpzSource),
    **dict.fromkeys(parquet.SUFFIXES, parquet.ParquetSource),
    **dict.fromkeys(hdf5.SUFFIXES, hdf5.Hdf5Source),
    **dict.fromkeys(json_lines.SUFFIXES, json_lines.JsonLinesSource),
}
FORMATS = f"{', '.join(FILES)}, or the name of a Minari data set, such as mujoco/hopper/medium-v0"


def open_source(data: Any, faults: Faults) -> Source:
    """A data set from the name of a file, a Minari data set's name, arrays by name, or episodes."""
    if isinstance(data, Mapping):
        return ArraysSource(data, faults)
    if isinstance(data, Iterable) and not isinstance(data, str | os.PathLike):
        return RecordsSource(data, faults)
    if not isinstance(data, str | os.PathLike):
        raise DiasterError(f"data of the type {type(data).__name__} was given; give {FORMATS}, or a list of episodes.")
    path = Path(data)
    kind = FILES.get(path.suffix.lower())
    if kind is not None:
        if not path.is_file():
            raise DiasterError(f"there is no file '{path}'; give {FORMATS}.")
        opened: Source = kind(path, faults)
        return opened
    if minari_sets.is_name(str(data)):
        return minari_sets.MinariSource(str(data), faults)
    raise DiasterError(f"'{data}' is no data set that this can read; give {FORMATS}.")


def check_out(source: Source, out: str | os.PathLike[str]) -> None:
    """Refuse a place that cannot be written to, before anything is computed."""
    if minari_sets.is_name(str(out)):
        minari_sets.check_name(str(out))
        return
    path, given = Path(out), getattr(source, "path", None)
    suffix = path.suffix.lower()
    if suffix not in FILES:
        raise DiasterError(f"'{out}' is no data set that this can write; give {FORMATS}.")
    if FILES[suffix] is not type(source):
        if isinstance(source, ArraysSource | RecordsSource):
            raise DiasterError(
                f"'{out}' cannot be written from episodes at hand; write a Minari data set, or take their rewards from "
                "rewards(episode)."
            )
        same = "" if given is None else f"the same one ({given.suffix}), or "
        raise DiasterError(f"'{out}' is of another format than {source.name}; write {same}a Minari data set.")
    if not path.parent.is_dir():
        raise DiasterError(f"the folder '{path.parent}' for '{path.name}' does not exist; make it first.")
    if path.is_dir():
        raise DiasterError(f"'{path}' is a folder; give the name of a file.")
    if given is not None and path.exists() and path.samefile(given):
        raise DiasterError(f"'{out}' is the data set itself, which is never changed; choose another name.")
    if os.path.lexists(path):
        raise DiasterError(f"'{out}' is there already; choose another name, or remove it.")


def write(source: Any, out: str | os.PathLike[str], relabelled: Relabelled) -> None:
    """Write a copy of a data set with other rewards."""
    if not minari_sets.is_name(str(out)):
        source.write(Path(out), relabelled)
    elif isinstance(source, minari_sets.MinariSource):
        source.write(str(out), relabelled)
    else:
        minari_sets.write_minari_set(str(out), source, relabelled)

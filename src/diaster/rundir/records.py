"""What a run directory holds, and how its settings, metadata and nets are read.

config.toml              every setting, resolved; loads back into the same run
progress.csv             a row per seed and evaluation, see results.py
metadata.json            versions, device, command, wall time, commit
policy.safetensors       the policies of all seeds
policy-best.safetensors  those with the best evaluation so far
decomposer.safetensors   the decomposers of all seeds
nets.safetensors         all nets, for runs that begin with them; present when the run is complete
DONE                     present when the run is complete
checkpoint/              all that resume needs; stays when the run is complete, unless it is too large
rollouts.safetensors     recorded episodes, see recordings.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from diaster.config import RunConfig, as_they_were, combine, parse_toml, validate
from diaster.config.toml import MOST_BYTES as MOST_CONFIG_BYTES
from diaster.errors import LONGEST_SHOWN, DiasterError, shortened
from diaster.rundir import files
from diaster.rundir.files import (
    MOST_TENSOR_BYTES,
    Form,
    MissingFileError,
    check_tensors,
    is_file,
    parse_json,
    read_bytes,
    tensor_bytes,
    typed,
)

CONFIG, PROGRESS, METADATA, DONE = "config.toml", "progress.csv", "metadata.json", "DONE"
POLICY, DECOMPOSER = "policy.safetensors", "decomposer.safetensors"
BEST, NETS = "policy-best.safetensors", "nets.safetensors"
EXTENDED = "extended"  # in the metadata: the settings of the shorter runs that a run has been
CHECKPOINT = "checkpoint"  # in the metadata of a complete run: the number of the one that stays, and
STOPPED = "stopped"  # why it ended early
RESTARTED = "agents_begun_anew"  # at which evaluation of each seed
OF_AN_END = (CHECKPOINT, STOPPED)
# Far above what a run writes, and little enough to be held in memory.
MOST_METADATA_BYTES = 2**20
MOST_LOOKED_AT, MOST_NAMED = 1000, 5  # folders in one that is no run


def no_run(path: Path) -> DiasterError:
    """The error for a directory without a run, which may be a folder of runs."""
    with contextlib.suppress(OSError):
        below = sorted(found.name for found in islice(path.iterdir(), MOST_LOOKED_AT) if is_file(found / CONFIG))
        if below:
            named = ", ".join(shortened(name, LONGEST_SHOWN) for name in below[:MOST_NAMED])
            more = ", …" if len(below) > MOST_NAMED else ""
            return DiasterError(f"'{path}' is no run but a folder of runs; give one of them ({named}{more}).")
    return DiasterError(f"'{path}' holds no run; give a directory that 'diaster train --out' has written.")


def refuse_untrained(path: Path) -> None:
    """A run without a policy is still in training, or was cut off before its first evaluation."""
    if is_file(path / CONFIG) and not is_file(path / POLICY) and not is_file(path / DONE):
        raise DiasterError(
            f"'{path}' has no policy yet: the run is training, or was stopped before its first evaluation; "
            f"'diaster resume {typed(path)}' goes on with it."
        )


def read_config(path: Path) -> RunConfig:
    """The settings of a run directory."""
    file = path / CONFIG
    try:
        content = read_bytes(file, MOST_CONFIG_BYTES)
    except MissingFileError:
        raise no_run(path) from None
    config = combine(None, as_they_were(parse_toml(content, file)), str(file))
    validate(config)
    return config


def read_settings(path: Path) -> str:
    """The text of a run's settings as it was written when the run began."""
    return read_bytes(path / CONFIG, MOST_CONFIG_BYTES).decode(errors="replace")


def read_metadata(path: Path) -> dict[str, Any]:
    """How a run was made: versions, device, command and times."""
    file, content = path / METADATA, b""
    with contextlib.suppress(MissingFileError):
        content = read_bytes(file, MOST_METADATA_BYTES)
    try:
        return parse_json(content, file)
    except DiasterError:
        raise DiasterError(f"'{file}' is missing or damaged; train the run again.") from None


def former_settings(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps, and the checksum of the settings, of every shorter run that a run has been."""
    found = metadata.get(EXTENDED)
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("settings"), str)]


def read_tensors(path: Path, expected: Mapping[str, Form] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays in a safetensors file of a run directory; on demand, only if they are those expected."""
    most = MOST_TENSOR_BYTES if expected is None else min(tensor_bytes(expected), MOST_TENSOR_BYTES)
    try:
        found = files.read_tensors(path, most)
    except MissingFileError:
        raise no_run(path.parent) from None
    if expected is not None:
        check_tensors(found, expected, path)
    return found

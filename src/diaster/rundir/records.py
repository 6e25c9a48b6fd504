"""What a run directory holds, and how its settings, metadata and nets are read.

config.toml              every setting, resolved; loads back into the same run
progress.csv             a row per seed and evaluation, see results.py
metadata.json            versions, device, command, wall time, commit
policy.safetensors       the policies of all seeds
decomposer.safetensors   the decomposers of all seeds
DONE                     present when the run is complete
checkpoint/              present while it is not
rollouts.safetensors     recorded episodes, see recordings.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from diaster.config import RunConfig, combine, parse_toml, validate
from diaster.config.toml import MOST_BYTES as MOST_CONFIG_BYTES
from diaster.errors import DiasterError
from diaster.rundir import files
from diaster.rundir.files import (
    MOST_TENSOR_BYTES,
    Form,
    MissingFileError,
    check_tensors,
    parse_json,
    read_bytes,
    tensor_bytes,
)

CONFIG, PROGRESS, METADATA, DONE = "config.toml", "progress.csv", "metadata.json", "DONE"
POLICY, DECOMPOSER = "policy.safetensors", "decomposer.safetensors"
# Far above what a run writes, and little enough to be held in memory.
MOST_METADATA_BYTES = 2**20


def no_run(path: Path) -> DiasterError:
    """The error for a directory without a run."""
    return DiasterError(f"'{path}' holds no run; give a directory that 'diaster train --out' has written.")


def read_config(path: Path) -> RunConfig:
    """The settings of a run directory."""
    file = path / CONFIG
    try:
        content = read_bytes(file, MOST_CONFIG_BYTES)
    except MissingFileError:
        raise no_run(path) from None
    config = combine(None, parse_toml(content, file), str(file))
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

"""The manifest of a checkpoint: its files with sizes and checksums, and the facts that are no arrays."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diaster.errors import DiasterError
from diaster.rundir.files import read_json

DIRECTORY = "checkpoint"
VERSION = 1
MOST_MANIFEST_BYTES = 256 << 20  # it holds the results of a long run
NAMES = re.compile(r"(manifest-\d+\.json|(state|replay|held-out)-\d+\.safetensors)")


class OtherVersionError(DiasterError):
    """A checkpoint that this version of diaster cannot read; an older one of the same run is no substitute."""


class StoredFile(NamedTuple):
    """A file of a checkpoint."""

    name: str
    size: int
    sha256: str


class ReplayFile(NamedTuple):
    """A file of episodes, and the number of rows of every seed up to its end."""

    file: StoredFile
    end_rows: tuple[int, ...]


class LastingFiles(NamedTuple):
    """The files that several generations share."""

    replay: tuple[ReplayFile, ...] = ()
    held_out: Mapping[int, StoredFile] = {}  # by evaluation


class Manifest(NamedTuple):
    """What a manifest says."""

    number: int
    settings: str  # the checksum of the run's settings
    state: StoredFile
    lasting: LastingFiles
    facts: Mapping[str, Any]

    @property
    def files(self) -> list[StoredFile]:
        """Every file that belongs to the checkpoint."""
        return [self.state, *(item.file for item in self.lasting.replay), *self.lasting.held_out.values()]


def manifest_name(number: int) -> str:
    """The name of a generation's manifest."""
    return f"manifest-{number}.json"


def manifest_bytes(manifest: Manifest) -> bytes:
    """A manifest as it is written."""
    body = {
        "version": VERSION,
        "number": manifest.number,
        "settings": manifest.settings,
        "state": manifest.state,
        "replay": manifest.lasting.replay,
        "held_out": {str(evaluation): file for evaluation, file in manifest.lasting.held_out.items()},
        "facts": to_json(manifest.facts),
    }
    text = json.dumps(body, allow_nan=False, sort_keys=True)
    return json.dumps({"sha256": checksum(text.encode()), "body": body}, allow_nan=False, sort_keys=True).encode()


def read_manifest(directory: Path, number: int) -> Manifest:
    """A manifest with the right checksum, each value of its type.

    The checksum finds accidents only: anyone who alters a file can alter its checksum.
    """
    path = directory / manifest_name(number)
    outer = read_json(path, MOST_MANIFEST_BYTES, root=directory.parent)
    try:
        body = outer["body"]
        text = json.dumps(body, allow_nan=False, sort_keys=True)
        if outer["sha256"] != checksum(text.encode()) or body["number"] != number:
            raise ValueError("its checksum is wrong")
        version = body["version"]
        if type(version) is not int or type(body["number"]) is not int:
            raise TypeError("its version is no number")
        if version == VERSION:
            return _parse(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DiasterError(f"'{path}' is damaged.") from None
    raise OtherVersionError(
        f"'{directory}' holds a checkpoint of version {version}, and this diaster reads version {VERSION}; "
        "resume it with the diaster that wrote it."
    )


def _parse(body: Mapping[str, Any]) -> Manifest:
    replay = tuple(ReplayFile(_stored_file(file), tuple(map(int, rows))) for file, rows in body["replay"])
    held_out = {int(evaluation): _stored_file(file) for evaluation, file in body["held_out"].items()}
    facts = body["facts"]
    if not isinstance(facts, dict) or not isinstance(body["replay"], list):
        raise TypeError("it has no facts")
    state = _stored_file(body["state"])
    names = [file.name for file in (state, *(item.file for item in replay), *held_out.values())]
    if len(set(names)) < len(names):
        raise ValueError("it names a file twice")
    return Manifest(body["number"], body["settings"], state, LastingFiles(replay, held_out), from_json(facts))


def _stored_file(value: Any) -> StoredFile:
    name, size, sha256 = value
    if not (isinstance(name, str) and type(size) is int and isinstance(sha256, str) and NAMES.fullmatch(name)):
        raise ValueError("it names a file that is none of a checkpoint")
    return StoredFile(name, size, sha256)


def generations(directory: Path) -> list[int]:
    """The numbers of the checkpoints in a directory, the newest first."""
    if not directory.is_dir():
        return []
    found = (re.fullmatch(r"manifest-(\d{1,9})\.json", item.name) for item in directory.iterdir())
    return sorted((int(match[1]) for match in found if match), reverse=True)


def checksum(content: bytes) -> str:
    """As manifests have it."""
    return hashlib.sha256(content).hexdigest()


def to_json(value: Any) -> Any:
    """Plain values; numbers that JSON lacks become text."""
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`; only three texts are numbers."""
    if isinstance(value, dict):
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value

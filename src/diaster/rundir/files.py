"""Files of a run directory: the one place that opens them for reading, and the one way they are written.

A run directory may come from anywhere. A file in it is read only if it is a regular file, lies in the directory
itself and is no larger than it has reason to be; nothing in it is ever executed; and whatever is wrong with it is a
sentence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from diaster.errors import DiasterError

# A header has about a hundred bytes per array; one this long would describe ten thousand of them.
MOST_HEADER_BYTES = 2**20
# Files of nets have megabytes; a caller that knows the settings gives a tighter bound.
MOST_TENSOR_BYTES = 4 * 2**30
# A folder that may not be read cannot be synced, and on some file systems none can.
CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBADF, errno.ENOTSUP)

# Walking through what is nested more deeply could exhaust the stack.
MOST_LEVELS = 50

Form = tuple[tuple[int, ...], np.dtype[Any]]  # shape and kind of numbers


class MissingFileError(DiasterError):
    """There is no such file; a caller that knows what its absence means says that instead."""


def damaged(path: Path, why: str) -> DiasterError:
    """The error for a file that cannot be what it should be."""
    return DiasterError(f"'{path}' is damaged: {why}; restore it from a copy, or train the run again.")


def is_file(path: Path) -> bool:
    """Whether a regular file is there, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, most: int, root: Path | None = None) -> bytes:
    """The content of a regular file of at most `most` bytes.

    `root` is the run directory, if the file is in a folder below it: the directory itself may be reached through
    links, but no folder below it may be one.
    """
    refuse_detours(path, path.parent if root is None else root)
    try:
        refuse_special(path, path.lstat().st_mode)
        # The file may be another one by now: a link is not followed, and a pipe without a writer does not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            refuse_special(path, found.st_mode)
            if found.st_size > most:
                raise DiasterError(
                    f"'{path}' has {found.st_size:,} bytes, and at most {most:,} are allowed; "
                    "restore it from a copy, or train the run again."
                )
            content = file.read(found.st_size + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"'{path}' does not exist; give a directory that holds it.") from None
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be read: {error.strerror}; check its permissions and its disk.") from None
    except MemoryError:
        raise DiasterError(f"'{path}' does not fit into memory; free some, or use a larger machine.") from None
    if len(content) != found.st_size:
        raise DiasterError(f"'{path}' changed while it was read; try again when nothing writes to it.")
    return content


def refuse_detours(path: Path, root: Path) -> None:
    """The path from the run directory to its file only goes down, and through no link."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ("..",)
    if not parts or ".." in parts:
        raise DiasterError(f"'{path}' leads out of '{root}'; a run directory has to hold its files itself.")
    folder = root
    for part in parts[:-1]:
        folder /= part
        if folder.is_symlink():
            raise DiasterError(f"'{folder}' is a link; a run directory has to hold its folders itself.")


def typed(path: Path) -> str:
    """A path as a person would type it in a shell here."""
    with contextlib.suppress(OSError):  # the working directory may be gone
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def refuse_link(directory: Path) -> None:
    """Nothing is read, written or removed behind a link: it may lead anywhere."""
    if directory.is_symlink():
        raise DiasterError(f"'{directory}' is a link; a run directory has to hold its folders itself.")


def refuse_special(path: Path, mode: int) -> None:
    """Only regular files are read: links may lead anywhere, pipes and devices have no end."""
    if stat.S_ISREG(mode):
        return
    kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "a pipe, a socket or a device")
    raise DiasterError(f"'{path}' is {kind}; a run directory has to hold the file itself: put it in this place.")


def read_json(path: Path, most: int, root: Path | None = None, allow_nan: bool = False) -> dict[str, Any]:
    """The object in a JSON file."""
    return parse_json(read_bytes(path, most, root), path, allow_nan)


def parse_json(content: bytes, path: Path, allow_nan: bool = False) -> dict[str, Any]:
    """The object that bytes of a file stand for: each name once, and finite numbers unless others are allowed."""

    def finite(text: str) -> float:
        value = float(text)
        if not allow_nan and not math.isfinite(value):
            raise damaged(path, f"it holds the number {text[:20]}, which is not finite")
        return value

    def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise damaged(path, "it gives one name twice")
        return found

    try:
        text = content.decode("utf-8")
        found = json.loads(text, parse_float=finite, parse_constant=finite, object_pairs_hook=named_once)
    except DiasterError:
        raise
    except RecursionError:
        raise damaged(path, "it is nested too deeply") from None
    except ValueError:  # no text, no JSON, or a whole number of thousands of digits
        raise damaged(path, "it is not valid JSON") from None
    if not isinstance(found, dict):
        raise damaged(path, "it is no JSON object")
    values: list[Any] = [found]
    for _ in range(MOST_LEVELS):
        groups = [
            value.values() if isinstance(value, dict) else value for value in values if type(value) in (dict, list)
        ]
        values = [inner for group in groups for inner in group]
    if values:
        raise damaged(path, "it is nested too deeply")
    return found


def read_tensors(path: Path, most: int = MOST_TENSOR_BYTES, root: Path | None = None) -> dict[str, NDArray[Any]]:
    """The arrays in a safetensors file; nothing in it can execute code."""
    return parse_tensors(read_bytes(path, most, root), path)


def parse_tensors(content: bytes, path: Path, most_header: int = MOST_HEADER_BYTES) -> dict[str, NDArray[Any]]:
    """The arrays that bytes of a safetensors file stand for."""
    check_header(content, path, most_header)
    try:
        return dict(safetensors.numpy.load(content))
    except KeyError as error:  # a kind of number that NumPy has no name for
        raise damaged(path, f"it has numbers of the unknown kind {error}") from None
    except (ValueError, TypeError, OverflowError, safetensors.SafetensorError) as error:
        raise damaged(path, str(error).rstrip(".")) from None
    except MemoryError:
        raise DiasterError(f"'{path}' does not fit into memory; free some, or use a larger machine.") from None


def check_header(content: bytes, path: Path, most: int = MOST_HEADER_BYTES) -> None:
    """The header is there, as long as it says, no longer than it has reason to be, and names each array once."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise damaged(path, "it ends before its header does")
    if length > most:
        raise damaged(path, f"its header has {length:,} bytes, and at most {most:,} are allowed")
    parse_json(content[8 : 8 + length], path)


def tensor_bytes(expected: Mapping[str, Form]) -> int:
    """How large a file of these arrays can be, its header included."""
    return MOST_HEADER_BYTES + sum(math.prod(shape) * dtype.itemsize for shape, dtype in expected.values())


def check_tensors(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, Form], path: Path, finite: bool = False
) -> None:
    """Exactly the expected arrays, each of its shape and kind; on demand, without NaN and infinities."""
    for name, (shape, dtype) in expected.items():
        if name not in found:
            _refuse_tensors(path, f"'{name}' is missing")
        array = found[name]
        if (array.shape, array.dtype) != (shape, dtype):
            _refuse_tensors(
                path, f"'{name}' has {array.dtype} {list(array.shape)}, and {dtype} {list(shape)} is expected"
            )
    for name in found:
        if name not in expected:
            _refuse_tensors(path, f"'{name}' is no part of it")
    if finite:
        check_finite(found, path)


def _refuse_tensors(path: Path, why: str) -> NoReturn:
    raise DiasterError(
        f"'{path}' does not belong to this run's configuration: {why}; restore both from one copy, or train it again."
    )


def check_finite(found: Mapping[str, NDArray[Any]], path: Path) -> None:
    """No array holds NaN or an infinity."""
    for name, array in found.items():
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise DiasterError(
                f"'{path}' has numbers in '{name}' that are not finite; the run has diverged or the file is damaged: "
                "restore it, or train the run again."
            )


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part; when this returns, the new one survives a power cut."""
    try:
        handle, temporary = new_file(path.parent, f".{path.name}.")
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror}.") from None
    finally:
        with contextlib.suppress(OSError):  # the file system may have become read-only
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def written_in_pieces(path: Path) -> Iterator[Path]:
    """The name of a new file to write to, which becomes `path` when all went well and is removed if not."""
    try:
        handle, temporary = new_file(path.parent, f".{path.name}.")
        os.close(handle)
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror}.") from None
    try:
        yield temporary
        sync_folder(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DiasterError(f"'{path}' cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def new_file(folder: Path, prefix: str, suffix: str = "") -> tuple[int, Path]:
    """Open a new file with a random name. The umask decides its permissions, which tempfile's would not have."""
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}{suffix}"
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), path


def is_temporary(name: str, of: Collection[str]) -> bool:
    """Whether `write_atomically` was cut off when it wrote one of these files and left this one."""
    return name[:1] == "." and name[1:-17] in of and re.fullmatch(r"\.[0-9a-f]{16}", name[-17:]) is not None


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the file system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in CANNOT_SYNC:
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)

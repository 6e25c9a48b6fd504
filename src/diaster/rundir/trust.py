"""Which run directories may have their modules imported: those that this user has made here.

Settings name modules to import (`imports`, and `module:` in front of an environment's name), and a module may do
anything; so may an environment with a text that it is given. A run that is made here gets a signature of these, with a
key that only this user can read. A directory of a stranger has none, or one of another key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from diaster.config import RunConfig, is_placeholder
from diaster.errors import DiasterError
from diaster.rundir.files import MissingFileError, read_bytes, write_atomically

SIGNATURE = "signature"
KEY_BYTES = 32


def modules_of(config: RunConfig) -> tuple[str, ...]:
    """The modules that settings ask to import."""
    module, colon, _ = ("" if is_placeholder(config.env) else config.env).partition(":")
    return (*config.imports, module) if colon else config.imports


def sign(path: Path, config: RunConfig) -> None:
    """Mark a directory as made here, where its settings reach code. Without a key it stays unmarked."""
    key = _key(is_made=True) if _requests(config) else None
    if key is not None:
        write_atomically(path / SIGNATURE, _signature(key, config).encode())


def check_trust(path: Path, config: RunConfig) -> None:
    """Refuse settings that reach code, unless this user has made the directory here."""
    requests = _requests(config)
    if requests and not _is_made_here(path, config):
        raise DiasterError(
            f"'{path}' asks to {' and to '.join(requests)}, and was not made here by you; that may do anything, "
            "so look at it first, then add --trust (in Python, trust=True)."
        )


def _requests(config: RunConfig) -> list[str]:
    """What settings ask for that may do anything: modules, functions of them, and texts for an environment to read."""
    modules, texts = modules_of(config), [name for name, value in config.env_kwargs.items() if _has_text(value)]
    requests = [f"import {', '.join(modules)}"] if modules else []
    # A text may be the path of a file, or a further environment to import; numbers are only numbers.
    return requests + ([f"make '{config.env}' with texts of its own for {', '.join(texts)}"] if texts else [])


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str)


def _is_made_here(path: Path, config: RunConfig) -> bool:
    key = _key(is_made=False)
    if key is None:
        return False
    expected = _signature(key, config).encode()
    with contextlib.suppress(MissingFileError, DiasterError):
        return hmac.compare_digest(read_bytes(path / SIGNATURE, len(expected)), expected)
    return False


def _signature(key: bytes, config: RunConfig) -> str:
    """Of all that reaches code; of the modules alone where there is nothing else, as in earlier versions."""
    reached: Any = config.imports
    if ":" in config.env or config.env_kwargs:
        reached = [config.imports, config.env, config.env_kwargs]
    return hmac.new(key, json.dumps(reached).encode(), hashlib.sha256).hexdigest()


def _key(is_made: bool) -> bytes | None:
    """This user's key; none where there is no place for it. It never leaves the user's own folder."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        file = Path(state) / "diaster" / "key"
        if is_made and not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _put_in_place(file, secrets.token_bytes(KEY_BYTES))
        key = file.read_bytes()
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return None
    return key if len(key) == KEY_BYTES else None


def _put_in_place(file: Path, key: bytes) -> None:
    """Write a key whole or not at all, for nobody else to read; of two processes the first one's stays."""
    temporary = file.with_name(f".key.{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(key)
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)

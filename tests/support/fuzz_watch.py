"""One case of `make fuzz`, watched: how it ended, how long it took, what memory it took, what it changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fuzz_cases import Case, Sandbox, make_case
from fuzz_sources import Sources

from diaster.errors import DiasterError

LONGEST_SENTENCE = 2500
MOST_MEMORY = 2 * 2**30
"""Bytes of a case. Recordings and nets may have a GiB each, and are read before their content can be judged."""
READ, REFUSED, FAILED = "read", "refused", "failed"


class Outcome(NamedTuple):
    """How a case ended; `why` is the sentence, or what is wrong with diaster."""

    number: int
    kind: str
    what: str
    outcome: str
    why: str
    seconds: float
    memory: int  # bytes at most, beyond what the process had before


def watch(number: int, sources: Sources, sandbox: Sandbox) -> Outcome:
    """Make a case, read it, and judge what came of it."""
    case = make_case(number, sources, sandbox)
    before = snapshot(sandbox.root, case)
    forget_peak()
    held, start = status("VmRSS"), time.monotonic()
    with errors_of_threads() as in_threads:
        outcome, why = outcome_of(case)
    seconds, memory = time.monotonic() - start, max(0, status("VmHWM") - held)
    changed = sorted(path for path, _ in (before.items() ^ snapshot(sandbox.root, case).items()))
    if in_threads:
        outcome, why = FAILED, in_threads[0]
    elif changed:
        outcome, why = FAILED, f"it has changed {changed[0]}"
    elif memory > MOST_MEMORY:
        outcome, why = FAILED, f"it has taken {memory / 2**20:.0f} MiB"
    return Outcome(number, case.kind, case.what, outcome, why, seconds, memory)


def outcome_of(case: Case) -> tuple[str, str]:
    try:
        case.read()
    except DiasterError as error:
        sentence = str(error)
        is_sentence = sentence and sentence.isprintable() and len(sentence) < LONGEST_SENTENCE
        return (REFUSED, sentence) if is_sentence else (FAILED, f"no sentence: {sentence!r}")
    except BaseException:
        return FAILED, traceback.format_exc()
    return READ, ""


@contextlib.contextmanager
def errors_of_threads() -> Iterator[list[str]]:
    """What threads raise meanwhile, and nobody hears."""
    found: list[str] = []
    before = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda given: found.append(f"in a thread: {given.exc_type.__name__}: {given.exc_value}")
    sys.unraisablehook = lambda given: found.append(f"in passing: {given.exc_value!r}")
    try:
        yield found
    finally:
        threading.excepthook, sys.unraisablehook = before


def snapshot(root: Path, case: Case) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder but what the reader may write to; small files with their content."""
    found: dict[str, tuple[Any, ...]] = {}
    ahead = [root]
    while ahead:
        path = ahead.pop()
        if path in case.own:
            continue
        seen = path.lstat()
        is_small = path.is_file() and not path.is_symlink() and seen.st_size < 2**20
        digest = hashlib.sha256(path.read_bytes()).digest() if is_small else b""
        found[str(path)] = (seen.st_mode, seen.st_size, seen.st_ino, seen.st_mtime_ns, digest)
        if path.is_dir() and not path.is_symlink():
            ahead += [Path(entry.path) for entry in os.scandir(path)]
    return found


def status(name: str) -> int:
    """A number of bytes that Linux tells of this process; 0 elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def forget_peak() -> None:
    """Let the peak of this process's memory begin anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return

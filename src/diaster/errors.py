"""The errors that a user sees, each one sentence, and how a run says that it was stopped."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import sys
import traceback
from collections.abc import Iterable, Iterator

LONGEST_SENTENCE = 2000  # it may quote a file of any length
LONGEST_NAME = 100  # longer names are not compared in full
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "OUT_OF_MEMORY")  # in XLA's and CUDA's words
REFUSED = tuple(map(os.strerror, (errno.EAGAIN, errno.ENOMEM)))
LONGEST_SHOWN = 40  # of a name in a title or a row


class DiasterError(ValueError):
    """Something the user can correct. Its text is one sentence: what was given, what is allowed, what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


def printable(text: str) -> str:
    """A text on one line, without signs that control a terminal."""
    if len(text) > LONGEST_SENTENCE:
        text = f"{text[: LONGEST_SENTENCE // 2]} … {text[-LONGEST_SENTENCE // 2 :]}"
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def shortened(name: str, most: int = LONGEST_SHOWN) -> str:
    """A name as figures, pages and tables show it: it may come from a file and have any length."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def traceback_of(error: BaseException) -> str:
    """Where an error came from, with the errors that led to it and what other processes noted on them."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link.__suppress_context__ = False  # what `from None` hides
        link = link.__cause__ or link.__context__
    return "".join(traceback.format_exception(error))


def with_traceback(error: BaseException) -> BaseException:
    """An error that goes to another process, where its traceback would be lost."""
    error.add_note(f"in the process that the environment was in:\n{traceback_of(error)}")
    return error


def one_line(error: BaseException) -> str:
    """What an exception says, as part of a sentence."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class EnvironmentFault(DiasterError):  # noqa: N818 - the error is the environment's
    """An environment raised, died, hung or returned no finite number. The run can drop the episode and continue."""


@contextlib.contextmanager
def refusing_shortage() -> Iterator[None]:
    """Within `with`, too little memory, and no thread or process left to start, is a sentence. JAX's errors too."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        why = f" ({said[:200]})" if said else ""
        if isinstance(error, MemoryError) or any(sign in str(error) for sign in OUT_OF_MEMORY):
            raise DiasterError(
                f"there is too little memory{why}; free some, or use a larger machine; training takes less with fewer "
                "seeds, a smaller --replay.capacity or --agent.batch-size."
            ) from error
        # A stream that does not block has other words for the same number.
        is_refused = isinstance(error, OSError) and error.strerror in REFUSED
        if is_refused or "can't start new thread" in said:
            raise DiasterError(
                f"the system starts no further thread or process{why}; end other programs, or use fewer --workers."
            ) from error
        raise


class Stopped(KeyboardInterrupt):
    """A run ended early because of a signal. Its text says how to resume it."""

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal


def complain(sentence: str) -> None:
    """Print a sentence on standard error, if it can be printed: a disk may be full, a pipe or the handle closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that is closed is a ValueError, or None
        print(sentence, file=sys.stderr, flush=True)


def unknown(kind: str, given: str, known: Iterable[str]) -> DiasterError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(given[:LONGEST_NAME], names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return DiasterError(f"unknown {kind} '{given}'; known: {', '.join(names)}.{hint}")

"""A command of the program, run in this process."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from diaster import cli


class Output(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object, encoding: str = "utf-8") -> Output:
    """A command, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Output(code, *texts)

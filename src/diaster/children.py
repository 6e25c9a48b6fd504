"""Processes of this package's own modules, with a line to talk to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection

from diaster.interruption import SIGNALS


def start_child(
    module: str, variables: Mapping[str, str] | None = None, output: int | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run `python -m module` with the number of a file to talk through as its argument.

    Not by multiprocessing: a user's script needs no `__main__` guard. What it prints goes to `output`, an open file, if
    one is given.
    """
    ours, theirs = socket.socketpair()
    # BLAS reads this when it is loaded; one observation is too little work for more than one thread.
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment = {**os.environ, **own, **(variables or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # Ctrl-C in a terminal is not for it, not even while it starts
    )
    theirs.close()
    return process, Connection(ours.detach())


def leave_signals_to_the_parent() -> None:
    """A batch system signals every process; the main one decides when this one ends, by closing the line."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

"""Processes of this package's own modules, with a line to talk to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from diaster.interruption import SIGNALS


def start_child(module: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run `python -m module` with the number of a file to talk through as its argument.

    Not by multiprocessing: a user's script needs no `__main__` guard.
    """
    ours, theirs = socket.socketpair()
    # BLAS reads this when it is loaded; one observation is too little work for more than one thread.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in a terminal is not for it, not even while it starts
    )
    theirs.close()
    return process, Connection(ours.detach())


def leave_signals_to_the_parent() -> None:
    """A batch system signals every process; the main one decides when this one ends, by closing the line."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)

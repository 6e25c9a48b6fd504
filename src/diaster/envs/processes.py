"""Starts processes of this package's own modules, with a connection to each."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from diaster.signals import SIGNALS

LAST_SECONDS = 3.0  # for a child to end by itself when the connection has been closed
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def start_child(
    module: str,
    variables: Mapping[str, str] | None = None,
    output: int | None = None,
    handles: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run `python -m module`, which calls `line_to_the_parent` for the other end of the connection.

    This is not multiprocessing, so that a user's script needs no `__main__` guard. If `output`, an open file, is given,
    the child prints to it. The child inherits `handles` with the same numbers.
    """
    ours, theirs = socket.socketpair()
    # BLAS reads these when it is loaded. One observation is too little work for several threads, and another number of
    # threads would give another result.
    own = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, **own, **(variables or {})}
    # On Linux a child that is to die with its parent dies with the thread that started it: only the main one lasts.
    lasts = threading.current_thread() is threading.main_thread()
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno()), "lasts" if lasts else "may end"],
        pass_fds=[theirs.fileno(), *handles],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # so that Ctrl-C in a terminal does not reach it, not even while it starts
    )
    theirs.close()
    return process, Connection(ours.detach())


def line_to_the_parent() -> Connection:
    """The other end, in the child. From now on the child ignores signals and ends when its parent does."""
    handle, starter = int(sys.argv[1]), sys.argv[2]
    # A batch system signals every process; the parent decides when this one ends, by closing the connection.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux" and starter == "lasts":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_the_line, args=(handle,), daemon=True).start()
    return Connection(handle)


def _end_with_the_line(handle: int) -> None:
    """End even if an environment hangs; only C code that blocks all of Python's threads prevents it."""
    poll = select.poll()
    poll.register(handle, 0)  # only its end
    poll.poll()
    time.sleep(LAST_SECONDS)
    os._exit(1)

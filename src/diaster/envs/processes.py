"""Processes of this package's own modules, with a line to talk to them."""

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

LAST_SECONDS = 3.0  # for a child to end by itself when the line has been closed
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def start_child(
    module: str,
    variables: Mapping[str, str] | None = None,
    output: int | None = None,
    handles: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run `python -m module`, which talks to us through what `line_to_the_parent` gives it.

    Not by multiprocessing: a user's script needs no `__main__` guard. What it prints goes to `output`, an open file, if
    one is given; it knows `handles`, open ones, by the same numbers.
    """
    ours, theirs = socket.socketpair()
    # BLAS reads these when it is loaded. One observation is too little work for more than one thread, and with another
    # number of threads the result would be another.
    own = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, **own, **(variables or {})}
    # What dies with its parent on Linux does so with the thread that started it: only the main one lasts to the end.
    lasts = threading.current_thread() is threading.main_thread()
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno()), "lasts" if lasts else "may end"],
        pass_fds=[theirs.fileno(), *handles],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # Ctrl-C in a terminal is not for it, not even while it starts
    )
    theirs.close()
    return process, Connection(ours.detach())


def line_to_the_parent() -> Connection:
    """The other end, in the child; from now on it leaves signals to its parent and ends when that does."""
    handle, starter = int(sys.argv[1]), sys.argv[2]
    # A batch system signals every process; the main one decides when this one ends, by closing the line.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux" and starter == "lasts":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_the_line, args=(handle,), daemon=True).start()
    return Connection(handle)


def _end_with_the_line(handle: int) -> None:
    """An environment may hang when the parent dies; only C code that lets no thread of Python run outlasts this."""
    poll = select.poll()
    poll.register(handle, 0)  # its end alone
    poll.poll()
    time.sleep(LAST_SECONDS)
    os._exit(1)

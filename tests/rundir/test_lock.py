"""One process per run directory, and no lock that outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diaster.errors import DiasterError
from diaster.rundir.lock import LOCK, RunLock

HOLD = """
import sys, time
from pathlib import Path
from diaster.rundir.lock import RunLock
RunLock(Path(sys.argv[1])).take()
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_owner_is_told_of_the_first(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    first.take()
    with pytest.raises(DiasterError, match=f"is being trained by process {os.getpid()} on"):
        RunLock(tmp_path).take()
    first.release()


def test_a_lock_that_was_released_leaves_nothing_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        lock = RunLock(tmp_path)
        lock.take()
        lock.release()
        lock.release()
        assert list(tmp_path.iterdir()) == []


def test_a_lock_dies_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "held\n"
    with pytest.raises(DiasterError, match=f"process {owner.pid} on"):
        RunLock(tmp_path).take()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert (tmp_path / LOCK).exists()
    lock = RunLock(tmp_path)
    lock.take()
    lock.release()


def test_the_umask_decides_who_may_read_the_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for mask, mode in ((0o077, 0o600), (0o002, 0o664)):
            os.umask(mask)
            lock = RunLock(tmp_path)
            lock.take()
            assert oct((tmp_path / LOCK).stat().st_mode & 0o777) == oct(mode), oct(mask)
            lock.release()
    finally:
        os.umask(before)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "run" / LOCK).symlink_to(outside)
    with pytest.raises(DiasterError, match="cannot be opened"):
        RunLock(tmp_path / "run").take()
    assert outside.read_text() == "precious"


def test_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(DiasterError, match="is no regular file of its own; remove it"):
        RunLock(tmp_path).take()


def test_a_process_that_was_forked_from_the_owner_does_not_hold_the_lock_after_it(tmp_path: Path) -> None:
    script = f"""
import os, time
from pathlib import Path
from diaster.rundir.lock import RunLock

lock = RunLock(Path({str(tmp_path)!r}))
lock.take()
child = os.fork()
if child == 0:
    for handle in range(3):
        os.close(handle)
    time.sleep(300)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    child = int(done.stdout)
    try:
        lock = RunLock(tmp_path)
        lock.take()
        lock.release()
    finally:
        os.kill(child, 9)


def test_a_lock_that_is_a_second_name_of_another_file_is_refused_and_the_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine", encoding="utf-8")
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "outside", tmp_path / "run" / LOCK)
    with pytest.raises(DiasterError, match="is no regular file of its own; remove it"):
        RunLock(tmp_path / "run").take()
    assert (tmp_path / "outside").read_text(encoding="utf-8") == "mine"

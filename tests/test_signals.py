"""The first signal is noted and answered, the second does what it always did."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from diaster.signals import INTERRUPTION, SIGNALS, Interruption, owning_the_process

# The main thread hears nothing, as in C code that computes. The second signal follows once the first is answered.
BUSY = """
import contextlib, os, select, signal, threading
from diaster import signals
for number in signals.SIGNALS:
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
answered, (never, write) = threading.Event(), os.pipe()

class Deaf(signals.Interruption):
    def _note(self, *_):
        pass

def send():
    os.kill(os.getpid(), signal.{name})
    answered.wait()
    os.kill(os.getpid(), signal.{name})

with {outside}, Deaf(lambda number: answered.set(), lambda: os.write(1, b"again\\n")):
    threading.Thread(target=send, daemon=True).start()
    select.select([never], [], [], {seconds})
print("alive")
"""
# A child that Python has forked, and that ends by a signal which has a handler.
FORKING = """
import os, signal
from diaster.signals import Interruption
heard = []
with Interruption(heard.append) as interruption:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    os.waitpid(child, 0)
print(heard, interruption.signal)
"""


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """A shell's background processes begin with Ctrl-C ignored, those of nohup with SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_handlers_from_before_are_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption() as interruption:
        assert interruption.signal is None
        os.kill(os.getpid(), number)
        assert interruption.signal == number
        assert [signal.getsignal(each) for each in SIGNALS] == before
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.usefixtures("usual_signals")
def test_a_second_ctrl_c_interrupts() -> None:
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert interruption.signal == signal.SIGINT


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    seen = []

    def enter() -> None:
        with Interruption():
            seen.append([signal.getsignal(each) for each in SIGNALS])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.signal is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_while_the_main_thread_does_not_hear_it(number: signal.Signals) -> None:
    read, write = os.pipe()
    with Interruption(lambda heard: os.write(write, bytes([heard])) and None) as interruption:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
            assert select.select([read], [], [], 300)[0], "nothing was said"
            assert os.read(read, 1)[0] == number
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    assert interruption.signal == number
    for end in (read, write):
        os.close(end)


@pytest.mark.usefixtures("usual_signals")
def test_only_the_first_signal_is_answered() -> None:
    answers: list[int] = []
    with Interruption(answers.append), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert answers == [signal.SIGINT]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_second_ends_the_process_of_a_command_though_its_main_thread_does_not_hear_it(
    python: Callable[..., subprocess.CompletedProcess[str]], name: str
) -> None:
    done = python("-c", BUSY.format(name=name, outside="signals.owning_the_process()", seconds=300))
    assert (done.returncode, done.stdout) == (128 + signal.Signals[name], "again\n"), done.stderr
    assert done.stderr == f"{INTERRUPTION}\n"


def test_a_second_ctrl_c_does_not_end_the_process_of_others(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    script = BUSY.format(name="SIGINT", outside="contextlib.nullcontext()", seconds=2)
    done = python("-c", script.replace("answered, ", "signals.SECONDS_TO_QUIT = 0.0\nanswered, "))
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_signals_of_forked_processes_are_not_heard(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python("-c", FORKING)
    assert (done.returncode, done.stdout) == (0, "[] None\n"), done.stderr


@pytest.mark.usefixtures("usual_signals")
def test_where_somebody_else_listens_to_signals_the_main_thread_answers() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    answers: list[int] = []
    signal.set_wakeup_fd(write)
    try:
        with Interruption(answers.append):
            os.kill(os.getpid(), signal.SIGTERM)
            assert answers == [signal.SIGTERM]
        assert os.read(read, 10) == bytes([signal.SIGTERM])
    finally:
        assert signal.set_wakeup_fd(-1) == write
        os.close(read)
        os.close(write)


@pytest.mark.usefixtures("usual_signals")
def test_nobody_listens_once_it_is_over() -> None:
    n_threads = threading.active_count()
    with Interruption():
        pass
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == n_threads


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_in_a_command_interrupts_as_ever() -> None:
    with pytest.raises(KeyboardInterrupt), owning_the_process():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

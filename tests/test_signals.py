"""The first signal is noted, the second does what it always did."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from diaster.signals import SIGNALS, Interruption


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_handlers_from_before_are_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption() as interruption:
        assert interruption.signal is None
        os.kill(os.getpid(), number)
        assert interruption.signal == number
        assert [signal.getsignal(each) for each in SIGNALS] == before
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    """A shell's background processes begin with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_ctrl_c")
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

"""Messages whose arrays lie in memory that two processes share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import numpy as np
import pytest

from diaster.actors import shared_arrays
from diaster.actors.shared_arrays import ArrayReceiver, ArraySender, make_memory

Ends = tuple[ArraySender, list[ArrayReceiver]]
N = 2  # receivers


def connected(handle: int | None) -> Ends:
    lines = [Pipe() for _ in range(N)]
    sender = ArraySender([near for near, _ in lines], handle)
    return sender, [ArrayReceiver(far, None if handle is None else os.dup(handle)) for _, far in lines]


@pytest.fixture(params=["shared", "none"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    sender, receivers = connected(make_memory() if request.param == "shared" else None)
    yield sender, receivers
    sender.close()


@pytest.fixture
def memory() -> int:
    handle = make_memory()
    if handle is None:
        pytest.skip("this system has no memory without a name")
    return handle


def message(number: int, size: int = 1000) -> dict[str, Any]:
    weights = [np.full((3, size), number, np.float32), np.arange(size, dtype=np.float64)[:, None] + number]
    return {"number": number, "weights": weights, "nothing": None, "empty": np.zeros((0, 4), np.float32)}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    arrays = [*zip(one["weights"], other["weights"], strict=True), (one["empty"], other["empty"])]
    return one["number"] == other["number"] and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in arrays
    )


class Line:
    """A sender whose rounds are read while they are written: more than a pipe holds may go through one."""

    def __init__(self, ends: Ends) -> None:
        self._sender, self._receivers = ends

    def exchange(self, messages: list[Any]) -> list[Any]:
        thread = threading.Thread(target=self._sender.send, args=(messages,))
        thread.start()
        received = [receiver.receive() for receiver in self._receivers]
        thread.join()
        return received


def round_of(number: int, size: int = 1000) -> list[dict[str, Any]]:
    return [message(10 * number + position, size) for position in range(N)]


def test_messages_arrive_as_they_were_sent(ends: Ends) -> None:
    line = Line(ends)
    for number in range(10):
        received = line.exchange(round_of(number))
        assert all(map(same, received, round_of(number)))


def test_messages_larger_than_the_first_arrive_too(ends: Ends) -> None:
    line = Line(ends)
    for number, size in enumerate((10, 10, 4000, 4000, 5000, 5000, 20_000, 20_000, 10, 1)):
        assert all(map(same, line.exchange(round_of(number, size)), round_of(number, size)))


def test_only_what_is_no_array_goes_through_the_connection_and_arrays_lie_there_once(memory: int) -> None:
    sender, receivers = connected(memory)
    one = message(0, 100_000)
    Line((sender, receivers)).exchange([one, one])  # now it is known how much room it takes
    sender.send([one, one])
    (body, spans), (_, others) = (receiver._connection.recv() for receiver in receivers)
    assert len(body) < 1000
    assert [end - start for start, end in spans] == [1_200_000, 800_000]
    assert others == spans
    assert all(start % shared_arrays.ALIGNMENT == 0 for start, _ in spans)
    sender.close()


def test_what_is_received_cannot_be_written_to_where_it_is_shared(memory: int) -> None:
    sender, receivers = connected(memory)
    for _ in range(2):
        sender.send(round_of(0))
    receivers[0].receive()
    with pytest.raises(ValueError, match="read-only"):
        receivers[0].receive()["weights"][0][:] = 1.0
    sender.close()


def test_what_cannot_be_laid_out_goes_through_the_connection(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(shared_arrays.os, "ftruncate", refuse)
    line = Line(connected(memory))
    for number in range(3):
        assert all(map(same, line.exchange(round_of(number)), round_of(number)))


def test_the_memory_never_takes_the_number_of_a_standard_handle(memory: int) -> None:
    script = (
        "import os; os.close(0); from diaster.actors.shared_arrays import make_memory; handle = make_memory(); "
        "print(handle > 2, os.path.exists('/proc/self/fd/0'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
    os.close(memory)


def test_what_cannot_be_packed_is_an_error_and_not_silence(ends: Ends) -> None:
    sender, _ = ends
    with pytest.raises(TypeError, match="cannot pickle"):
        sender.send([threading.Lock(), None])


def test_a_receiver_that_is_gone_keeps_nothing_from_the_others(ends: Ends) -> None:
    sender, receivers = ends
    receivers[0]._connection.close()
    sender.send(round_of(7))
    assert same(receivers[1].receive(), message(71))

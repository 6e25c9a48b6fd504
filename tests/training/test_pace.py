"""How fast a run learns, measured on chunks whose times are given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diaster.config import build_config
from diaster.training import pace as module
from diaster.training.pace import Pace
from diaster.training.schedule import Chunk

SETTINGS: dict[str, Any] = {"env": "Toy-v0", "seeds": 2, "chunk_steps": 200, "evaluation": {"every": 10_000}}


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module, "time", time)
    return time


class Run:
    """A run of which a test says how long everything takes."""

    def __init__(self, clock: Time, steps: int = 10_000, **settings: Any) -> None:
        self.pace = Pace(build_config(**{**SETTINGS, "steps": steps, **settings}))
        self._clock, self.step, self._number = clock, 0, 0

    def chunk(
        self, seconds: float, learns: bool = True, compiles: bool = False, evaluation: float = 0.0, begins: bool = False
    ) -> None:
        if compiles:
            assert self.pace.is_new("agent", self._number)
        self._clock.now += seconds
        with self.pace.evaluating(begins):
            self._clock.now += evaluation
        chunk = Chunk(self._number, self.step, self.step + 200)
        self._number, self.step = self._number + 1, chunk.end
        self.pace.ended(chunk, learns)

    @property
    def left(self) -> float:
        return self.pace.seconds_left(self.step)


def test_before_a_chunk_of_learning_has_passed_nothing_is_known(clock: Time) -> None:
    run = Run(clock)
    run.chunk(0.1, learns=False)
    run.chunk(60.0, compiles=True)
    assert math.isnan(run.pace.speed) and math.isnan(run.left)


def test_time_left_is_that_of_chunks_with_learning_and_without_compilation(clock: Time) -> None:
    run = Run(clock)
    for seconds, learns, compiles in ((0.1, False, False), (60.0, True, True)):
        run.chunk(seconds, learns, compiles)
    run.chunk(2.0)
    run.chunk(4.0)
    assert run.pace.speed == pytest.approx(2 * 400 / 6.0)
    assert run.left == pytest.approx(9200 * 6.0 / 400)
    run.chunk(50.0, compiles=True)
    assert run.left == pytest.approx(9000 * 6.0 / 400)


def test_a_program_is_new_once_for_each_number_of_updates(clock: Time) -> None:
    pace = Run(clock).pace
    found = [pace.is_new(*what) for what in (("agent", 200), ("agent", 200), ("decomposer", 200), ("agent", 100))]
    assert found == [True, False, True, True]


def test_evaluations_are_counted_apart_and_from_the_second_on(clock: Time) -> None:
    run = Run(clock, evaluation={"every": 1000})
    run.chunk(60.0, compiles=True)
    run.chunk(2.0)
    run.chunk(4.0, evaluation=30.0, begins=True)  # its own learning is waited for, and not in the next one
    run.chunk(0.0, evaluation=5.0)
    assert run.pace.speed == pytest.approx(200.0)
    assert run.left == pytest.approx(9200 / 100), "the first one was compiled, and the second is to come"
    run.chunk(4.0, evaluation=3.0, begins=True)
    run.chunk(0.0, evaluation=4.0)
    assert run.left == pytest.approx(8800 / 100)
    run.chunk(4.0, evaluation=1.0, begins=True)
    assert run.pace.speed == pytest.approx(200.0)
    assert run.left == pytest.approx(8600 / 100 + 9 * 7.0)  # at 2,000, 3,000, …, 10,000


@pytest.mark.parametrize("n_before", [0, 2])
def test_learning_that_was_waited_for_before_does_not_look_fast(clock: Time, n_before: int) -> None:
    run = Run(clock)
    for _ in range(n_before):
        run.chunk(2.0)
    run.chunk(60.0 + 2.0, compiles=True, evaluation=1.0, begins=True)
    run.chunk(0.1)
    before = run.pace.speed
    assert math.isnan(before) if n_before == 0 else before == pytest.approx(200.0)
    run.chunk(2.0)
    run.chunk(4.0, evaluation=1.0, begins=True)
    assert run.pace.speed == pytest.approx(2 * 600 / 6.1)


def test_where_every_chunk_is_evaluated_the_pace_is_known(clock: Time) -> None:
    run = Run(clock)
    run.chunk(62.0, compiles=True, evaluation=7.0, begins=True)
    for _ in range(3):
        run.chunk(2.0, evaluation=7.0, begins=True)
    assert run.pace.speed == pytest.approx(200.0)


def test_the_pace_is_that_of_the_last_half_minute_of_learning(clock: Time) -> None:
    run = Run(clock, steps=100_000)
    run.chunk(60.0, compiles=True)
    for seconds in [1.0] * 50 + [10.0] * 4:
        run.chunk(seconds)
    assert run.pace.speed == pytest.approx(2 * 200 / 10.0)


def test_two_chunks_at_one_time_are_no_division_by_zero(clock: Time) -> None:
    run = Run(clock)
    run.chunk(60.0, compiles=True)
    run.chunk(0.0)
    assert run.pace.speed > 0 and run.left == 0.0


@pytest.mark.parametrize(("seconds", "due"), [(1.0, 5), (4.0, 3), (60.0, 1)])
def test_the_pace_is_known_and_told_once_after_five_chunks_or_ten_seconds_of_learning(
    clock: Time, seconds: float, due: int
) -> None:
    run = Run(clock)
    run.chunk(100.0, learns=False)
    run.chunk(100.0, compiles=True)
    found, known = [], []
    for _ in range(8):
        run.chunk(seconds)
        found.append(run.pace.is_outlook_due())
        known.append(run.pace.is_known)
    assert [number for number, is_due in enumerate(found, 1) if is_due] == [due]
    assert [number for number, is_known in enumerate(known, 1) if is_known] == list(range(due, 9))

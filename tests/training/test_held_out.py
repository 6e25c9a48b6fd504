"""Which evaluation episodes serve the diagnostics: spread over the run, the same evaluations for all seeds."""

from __future__ import annotations

import numpy as np

from diaster.training.held_out import HeldOut
from diaster.types import Episode, EvaluationEpisode


def numbered(value: int) -> EvaluationEpisode:
    return EvaluationEpisode(Episode(np.zeros((2, 1)), np.zeros((1, 1)), float(value), True), None)


def numbers(kept: list[list[EvaluationEpisode]]) -> list[list[float]]:
    return [[item.episode.episode_return for item in of_seed] for of_seed in kept]


def test_held_out_episodes_are_spread_over_the_whole_run_and_hold_the_newest() -> None:
    held_out = HeldOut(10, 1)
    for evaluation in range(100):
        [kept] = held_out.add(evaluation, [[numbered(evaluation)]])
        assert len(kept) <= 10
        assert kept[-1].episode.episode_return == evaluation
    assert numbers([kept]) == [[0, 16, 32, 48, 64, 80, 96, 99]]


def test_one_evaluation_is_kept_whole_even_where_it_is_larger_than_the_room() -> None:
    held_out = HeldOut(7, 5)
    assert len(held_out.add(0, [[numbered(0)] * 5])[0]) == 5
    assert len(held_out.add(1, [[numbered(1)] * 5])[0]) == 5
    assert len(HeldOut(2, 5).add(0, [[numbered(0)] * 5])[0]) == 5


def test_seeds_keep_the_same_evaluations_also_where_one_of_them_loses_episodes() -> None:
    held_out = HeldOut(10, 2)
    for evaluation in range(30):
        whole, lossy = held_out.add(evaluation, [[numbered(evaluation)] * 2, [numbered(evaluation)]])
        assert sorted(set(numbers([whole])[0])) == numbers([lossy])[0] == held_out.evaluations


def test_what_is_held_out_goes_on_after_it_was_restored() -> None:
    one, other = HeldOut(10, 1), HeldOut(10, 1)
    for evaluation in range(45):
        one.add(evaluation, [[numbered(evaluation)]])
    other.restore(one.stride, {number: [[numbered(number)]] for number in reversed(one.evaluations)})
    for evaluation in range(45, 90):
        kept = [numbers(held_out.add(evaluation, [[numbered(evaluation)]])) for held_out in (one, other)]
        assert kept[0] == kept[1]

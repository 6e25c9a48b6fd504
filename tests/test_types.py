"""Actions between the nets' terms and the environment's, and the named random streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from diaster.types import EnvSpec, Stream, host_random, reset_seed


def test_actions_come_back_from_the_environments_bounds() -> None:
    low, high = np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)
    spec = EnvSpec("x", 1, 2, low, high, (2,), 10)
    unit = np.array([[-1.0, 1.0], [0.0, 0.5]], np.float32)
    np.testing.assert_allclose(spec.to_env(unit), [[-3.0, 10.0], [-1.0, 7.5]])
    np.testing.assert_allclose(spec.from_env(spec.to_env(unit)), unit, atol=1e-6)


def discrete(n: int, first: int) -> EnvSpec:
    return EnvSpec("x", 1, n, np.zeros(n, np.float32), np.ones(n, np.float32), (), 10, True, first)


@pytest.mark.parametrize("first", [0, 1, 7, -2])
def test_a_discrete_action_is_its_number_outside_and_one_hot_inside(first: int) -> None:
    spec = discrete(4, first)
    for place in range(4):
        one_hot = np.eye(4, dtype=np.float32)[place]
        action = spec.to_env(one_hot)
        assert isinstance(action, np.integer)  # no array: environments look actions up in their tables
        assert {first + place: "found"}[action] == "found"
        inside = spec.from_env(action)
        assert inside.dtype == np.float32
        np.testing.assert_array_equal(inside, one_hot)
        np.testing.assert_array_equal(spec.from_env(np.asarray(first + place)), one_hot)


@pytest.mark.parametrize("first", [0, 7])
def test_batches_of_discrete_actions_come_back_in_their_shape(first: int) -> None:
    spec = discrete(4, first)
    numbers = first + np.array([[0, 3, 1], [2, 2, 0]])
    inside = spec.from_env(numbers)
    assert inside.shape == (2, 3, 4)
    np.testing.assert_array_equal(inside.sum(axis=-1), 1.0)
    np.testing.assert_array_equal(spec.to_env(inside), numbers)


def test_the_largest_entry_decides_on_a_discrete_action_that_is_not_quite_one_hot() -> None:
    assert int(discrete(3, 10).to_env(np.array([0.2, 0.1, 0.7], np.float32))) == 12


ELSEWHERE = spaces.MultiDiscrete([[3, 2], [1, 4]], np.int8, start=[[1, -5], [0, 7]])
COMBINED: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "several choices": (spaces.MultiDiscrete([3, 2]), (3, 2), (0, 0)),
    "numbered from elsewhere, in a matrix": (ELSEWHERE, (3, 2, 1, 4), (1, -5, 0, 7)),
    "switches": (spaces.MultiBinary(3), (2, 2, 2), (0, 0, 0)),
    "a matrix of switches": (spaces.MultiBinary([2, 2]), (2,) * 4, (0,) * 4),
}


@pytest.mark.parametrize("name", COMBINED)
def test_every_combination_of_choices_is_one_action_inside_and_comes_back(name: str) -> None:
    space, parts, first = COMBINED[name]
    spec = discrete(int(np.prod(parts)), 0)
    spec = spec._replace(action_shape=space.shape, parts=parts, first_parts=first, action_type=space.dtype.name)
    one_hot = np.eye(spec.action_dim, dtype=np.float32)
    actions = [spec.to_env(row) for row in one_hot]
    assert all(space.contains(action) for action in actions)
    assert len({action.tobytes() for action in actions}) == spec.action_dim
    for action, row in zip(actions, one_hot, strict=True):
        np.testing.assert_array_equal(spec.from_env(action), row)
    batch = spec.to_env(one_hot)
    assert batch.shape == (spec.action_dim, *space.shape)
    np.testing.assert_array_equal(batch, np.stack(actions))
    np.testing.assert_array_equal(spec.from_env(batch), one_hot)


def test_actions_of_whole_numbers_are_rounded_and_not_cut_off() -> None:
    spec = EnvSpec("x", 1, 2, np.zeros(2, np.float32), np.full(2, 9, np.float32), (2,), 10, action_type="int32")
    action = spec.to_env(np.array([0.999, 0.1], np.float32))
    assert spaces.Box(0, 9, (2,), np.int32).contains(action)
    np.testing.assert_array_equal(action, [9, 5])


def test_every_seed_stream_and_place_has_numbers_of_its_own() -> None:
    places = [(seed, stream, index) for seed in (0, 1) for stream in Stream for index in (0, 1)]
    draws = {host_random(seed, stream, index).integers(2**62) for seed, stream, index in places}
    seeds = {reset_seed(seed, stream, index) for seed, stream, index in places}
    assert len(draws) == len(seeds) == len(places)


def test_the_same_place_has_the_same_numbers() -> None:
    first, second = (host_random(3, Stream.COLLECT_ACTION, 7).normal(size=4) for _ in range(2))
    np.testing.assert_array_equal(first, second)

"""Actions between the nets' terms and the environment's, and the named random streams."""

from __future__ import annotations

import numpy as np
import pytest

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
        assert action.shape == () and np.issubdtype(action.dtype, np.integer)
        assert int(action) == first + place
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


def test_every_seed_stream_and_place_has_numbers_of_its_own() -> None:
    places = [(seed, stream, index) for seed in (0, 1) for stream in Stream for index in (0, 1)]
    draws = {host_random(seed, stream, index).integers(2**62) for seed, stream, index in places}
    seeds = {reset_seed(seed, stream, index) for seed, stream, index in places}
    assert len(draws) == len(seeds) == len(places)


def test_the_same_place_has_the_same_numbers() -> None:
    first, second = (host_random(3, Stream.COLLECT_ACTION, 7).normal(size=4) for _ in range(2))
    np.testing.assert_array_equal(first, second)

"""Actions between the policy's bounds and the environment's, and the named random streams."""

from __future__ import annotations

import numpy as np

from diaster.types import EnvSpec, Stream, host_random, reset_seed


def test_actions_come_back_from_the_environments_bounds() -> None:
    low, high = np.array([-3.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)
    spec = EnvSpec("x", 1, 2, low, high, (2,), 10)
    unit = np.array([[-1.0, 1.0], [0.0, 0.5]], np.float32)
    np.testing.assert_allclose(spec.to_env(unit), [[-3.0, 10.0], [-1.0, 7.5]])
    np.testing.assert_allclose(spec.from_env(spec.to_env(unit)), unit, atol=1e-6)


def test_every_seed_stream_and_place_has_numbers_of_its_own() -> None:
    places = [(seed, stream, index) for seed in (0, 1) for stream in Stream for index in (0, 1)]
    draws = {host_random(seed, stream, index).integers(2**62) for seed, stream, index in places}
    seeds = {reset_seed(seed, stream, index) for seed, stream, index in places}
    assert len(draws) == len(seeds) == len(places)


def test_the_same_place_has_the_same_numbers() -> None:
    first, second = (host_random(3, Stream.COLLECT_ACTION, 7).normal(size=4) for _ in range(2))
    np.testing.assert_array_equal(first, second)

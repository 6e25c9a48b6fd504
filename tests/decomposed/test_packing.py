"""Episodes as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from diaster.decomposed.packing import packed, unpacked
from diaster.types import EnvSpec, Episode

SPEC = EnvSpec("toy", 3, 2, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), 5)


@pytest.mark.parametrize("lengths", [(), (1,), (3, 1, 5)])
def test_episodes_come_back_from_their_arrays_as_they_were(lengths: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    episodes = [
        Episode(random.normal(size=(n + 1, 3)), random.normal(size=(n, 2)), float(n), n % 2 == 0) for n in lengths
    ]
    found = unpacked(packed(episodes, SPEC))
    assert [(e.episode_return, e.terminated) for e in found] == [(e.episode_return, e.terminated) for e in episodes]
    for mine, wanted in zip(found, episodes, strict=True):
        np.testing.assert_array_equal(mine.obs, wanted.obs)
        np.testing.assert_array_equal(mine.action, wanted.action)

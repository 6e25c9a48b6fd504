"""Episodes as arrays: what does not fit together is no episode."""

from __future__ import annotations

import numpy as np
import pytest

from diaster.rundir.checkpoint.packing import pack_episodes, unpack_episodes, unpack_numbers
from diaster.types import Episode, EpisodeNumbers


def episode(length: int) -> Episode:
    obs = np.arange(2.0 * (length + 1), dtype=np.float32).reshape(-1, 2)
    return Episode(obs, -obs[:-1, :1], 0.1 * length, length % 2 == 0)


def test_episodes_whose_lengths_do_not_add_up_are_no_episodes() -> None:
    for lengths in ([0], [-1, 4], [2], [3, 1]):
        arrays = pack_episodes([episode(3)])
        arrays["length"] = np.array(lengths)
        with pytest.raises(ValueError, match="do not add up"):
            unpack_episodes(arrays)


def test_numbers_that_no_episode_can_have_are_none() -> None:
    assert unpack_numbers({"first": np.array([2, 9, 7])}) == EpisodeNumbers(2, 9, 7)
    for wrong in ([-1, 0, 1], [2, 9, 8], [0, 2**31, 2**31], [0, 0], [0, 0, 0, 0], [2.0, 9.0, 7.0], [[2, 9, 7]]):
        with pytest.raises(ValueError, match="numbers"):
            unpack_numbers({"first": np.array(wrong)})


def test_episodes_of_another_kind_or_rank_are_no_episodes() -> None:
    arrays = pack_episodes([episode(3), episode(2)])
    for name, array in arrays.items():
        for wrong in (array.astype(np.complex64), array.astype("U9"), array[..., None], array.ravel()[0]):
            with pytest.raises(ValueError, match=f"{name} is no array"):
                unpack_episodes({**arrays, name: wrong})


def test_episodes_that_are_not_finite_are_no_episodes() -> None:
    arrays = pack_episodes([episode(3)])
    arrays["obs"][1, 0] = np.nan
    with pytest.raises(ValueError, match="obs is not finite"):
        unpack_episodes(arrays)

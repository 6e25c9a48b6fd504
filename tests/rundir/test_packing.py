"""Episodes as arrays: what does not fit together is no episode."""

from __future__ import annotations

import numpy as np
import pytest

from diaster.rundir.checkpoint.packing import pack_episodes, unpack_episodes, unpack_numbers
from diaster.types import Episode, EpisodeNumbers, Spans


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
    assert unpack_numbers({"first": np.array([2, 9, 7, 5])}) == EpisodeNumbers(2, 9, 7, 5)
    few_or_many, signs = ([0, 0], [0, 0, 0, 0, 0]), ([-1, 0, 1], [2, 9, 7, -1])
    too_many = ([2, 9, 8], [0, 2**31, 2**31], [2, 9, 7, 6], [0, 0, 0, 1])  # 7 steps have no more than 7 spans
    for wrong in (*few_or_many, *signs, *too_many, [2.0, 9.0, 7.0], [[2, 9, 7]]):
        with pytest.raises(ValueError, match="numbers"):
            unpack_numbers({"first": np.array(wrong)})


def test_episodes_of_another_kind_or_rank_are_no_episodes() -> None:
    arrays = pack_episodes([with_spans(3, 1, 3), with_spans(2, 2)])
    for name, array in arrays.items():
        for wrong in (array.astype(np.complex64), array.astype("U9"), array[..., None], array.ravel()[0]):
            with pytest.raises(ValueError, match=f"{name} is no array"):
                unpack_episodes({**arrays, name: wrong})


def with_spans(length: int, *ends: int) -> Episode:
    numbers = np.arange(len(ends), dtype=np.float64)
    numbers[::2] = np.nan
    known = np.linspace(0.0, 1.0, length).astype(np.float32)
    return episode(length)._replace(spans=Spans(np.array(ends), numbers), known_reward=known)


def test_spans_and_known_rewards_come_back_as_they_were() -> None:
    given = [with_spans(3, 1, 3), with_spans(1, 1), with_spans(4, 1, 2, 3, 4)]
    for one, other in zip(unpack_episodes(pack_episodes(given)), given, strict=True):
        assert one.spans is not None and other.spans is not None
        for name in Spans._fields:
            np.testing.assert_array_equal(getattr(one.spans, name), getattr(other.spans, name))
        np.testing.assert_array_equal(one.known_reward, other.known_reward)
    assert not {"n_spans", "span_end", "span_number", "known_reward"} & pack_episodes([episode(3)]).keys()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("n_spans", [1, 2]), ("n_spans", [0, 3]), ("n_spans", [2]), ("n_spans", [2**62, 2**62]), ("n_spans", [-1, 4]),
        ("span_end", [1, 3, 2, 3]), ("span_end", [0, 3, 2]), ("span_end", [3, 3, 2]), ("span_end", [1, 2, 2]),
        ("span_end", [-1, 3, 2]), ("span_end", [1, 3, 3]), ("span_end", []), ("span_number", [1.0, 2.0]),
        ("span_number", [1.0, np.inf, 2.0]), ("known_reward", [0.0] * 4),
        ("known_reward", [0.0, np.nan, 0.0, 0.0, 0.0]),
    ],
)  # fmt: skip
def test_spans_that_are_no_parts_of_their_episodes_are_refused(name: str, wrong: list[float]) -> None:
    arrays = pack_episodes([with_spans(3, 1, 3), with_spans(2, 2)])
    kind = np.int64 if arrays[name].dtype.kind == "i" else arrays[name].dtype
    with pytest.raises(ValueError, match=r"span|known"):
        unpack_episodes({**arrays, name: np.array(wrong, kind)})


def test_episodes_that_are_not_finite_are_no_episodes() -> None:
    arrays = pack_episodes([episode(3)])
    arrays["obs"][1, 0] = np.nan
    with pytest.raises(ValueError, match="obs is not finite"):
        unpack_episodes(arrays)

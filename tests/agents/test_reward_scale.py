"""The size of rewards: that of their discounted sums, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from jax import jit

from diaster.agents.reward_scale import (
    FEW_STEPS,
    LEAST,
    MARGIN,
    SLOWEST,
    RewardScale,
    add_rewards,
    init_reward_scale,
    size_of_returns,
)

add = jit(add_rewards, static_argnums=3)
LIMIT = 5.0


def stretches(rewards, is_last=None, width: int = 2):
    """The same stretch in every column.  # [T, W]"""
    rewards = np.asarray(rewards, np.float32)
    is_last = np.zeros(len(rewards), bool) if is_last is None else np.asarray(is_last)
    return np.repeat(rewards[:, None], width, axis=1), np.repeat(is_last[:, None], width, axis=1)


def seen(rewards, is_last=None, discount: float = 0.9) -> RewardScale:
    return add(init_reward_scale(), *stretches(rewards, is_last), discount)


def test_the_size_of_a_constant_reward_in_an_endless_episode_is_that_of_its_sum():
    size = float(size_of_returns(seen(np.full(400, -3.0)), LIMIT))
    assert size == pytest.approx(3.0 / (1.0 - 0.9), rel=1e-3)


def test_sums_are_of_what_follows_and_end_with_their_episode():
    # Episodes 1, 2 | 4 | 0, 8: with a discount of a half the sums are 2, 2, 4, 4, 8.
    scale = seen([1, 2, 4, 0, 8, 0, 0], [0, 1, 1, 0, 1, 1, 1], 0.5)  # of seven steps the last one is left out
    assert float(scale.square) == pytest.approx((4 + 4 + 16 + 16 + 64 + 0) / 6)
    assert float(scale.largest) == 8.0
    joined = seen([1, 2, 4, 0, 8, 0, 0], None, 0.5)  # 3.5, 5, 6, 4, 8, 0
    assert float(joined.square) == pytest.approx((12.25 + 25 + 36 + 16 + 64 + 0) / 6)


def test_the_last_quarter_of_a_stretch_counts_only_as_what_follows():
    scale = seen([0, 0, 0, 0, 0, 0, 0, 1], None, 0.5)
    assert float(scale.largest) == 0.25  # two steps before
    assert float(scale.square) == pytest.approx(sum(0.25**n for n in range(2, 8)) / 6)


def test_the_size_is_the_root_mean_square_unless_the_largest_would_come_near_the_limit():
    ordinary = RewardScale(np.float32(1), np.float32(9.0), np.float32(6.0))
    assert float(size_of_returns(ordinary, LIMIT)) == 3.0
    rare = RewardScale(np.float32(1), np.float32(9.0), np.float32(60.0))
    assert float(size_of_returns(rare, LIMIT)) == pytest.approx(60.0 / (MARGIN * LIMIT))
    # Divided by it, the largest lies inside the range.
    assert 60.0 / float(size_of_returns(rare, LIMIT)) == pytest.approx(MARGIN * LIMIT)


def test_an_episode_that_was_cut_short_counts_as_if_it_had_gone_on_as_it_was():
    # 60 steps with a reward of 2; of an endless episode with a discount of 0.99 there are 100, and 1024 here.
    ends = np.arange(1024) % 60 == 59
    scale = seen(np.full(1024, 2.0), ends, 0.99)
    endless, at_first = (2.0 * (1.0 - 0.99**n) / 0.01 for n in (1024, 60))
    # The first step of an episode has the largest sum; with 45 discounted steps it is taken for one of 50.
    assert float(scale.largest) == pytest.approx(at_first * (endless / 2.0) / FEW_STEPS, rel=1e-4)
    longer = seen(np.full(1024, 2.0), np.arange(1024) % 200 == 199, 0.99)
    assert float(longer.largest) == pytest.approx(endless, rel=1e-3)
    # Then the value of never falling lies within the range.
    assert endless / float(size_of_returns(longer, 2.0)) <= 2.0 * MARGIN


def test_one_large_sum_among_many_zeros_stays_inside_the_range_of_values():
    rewards = np.zeros(1024)
    rewards[100] = 50.0
    scale = seen(rewards, np.arange(1024) % 10 == 9)
    assert 50.0 / float(size_of_returns(scale, LIMIT)) == pytest.approx(MARGIN * LIMIT, rel=1e-5)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_rewards_that_are_all_zero_have_the_least_size_and_lose_no_number(chunks):
    scale = init_reward_scale()
    for _ in range(chunks):
        scale = add(scale, *stretches(np.zeros(8)), 0.9)
    assert float(size_of_returns(scale, LIMIT)) == pytest.approx(LEAST)
    assert float(scale.chunks) == chunks
    assert 0.0 / float(size_of_returns(scale, LIMIT)) == 0.0


def test_chunks_weigh_the_same_at_first_and_later_ones_a_fixed_share():
    scale, squares = init_reward_scale(), []
    for number in range(60):
        squares.append(float(number % 7) ** 2)
        ends = np.ones(8, bool)  # every step by itself: a sum is its reward
        scale = add(scale, *stretches(np.full(8, number % 7), ends), 0.9)
        if number < round(1.0 / SLOWEST):
            assert float(scale.square) == pytest.approx(np.mean(squares), rel=1e-4)
    before = float(scale.square)
    scale = add(scale, *stretches(np.full(8, 20.0), ends), 0.9)
    assert float(scale.square) == pytest.approx(before + SLOWEST * (400.0 - before), rel=1e-5)


def test_the_largest_is_forgotten_slowly():
    ends = np.ones(8, bool)
    scale = add(init_reward_scale(), *stretches(np.full(8, 100.0), ends), 0.9)
    for number in range(1, 4):
        scale = add(scale, *stretches(np.ones(8), ends), 0.9)
        assert float(scale.largest) == pytest.approx(100.0 * (1.0 - SLOWEST) ** number, rel=1e-5)
    for _ in range(200):
        scale = add(scale, *stretches(np.ones(8), ends), 0.9)
    assert float(scale.largest) == 1.0
    assert float(size_of_returns(scale, LIMIT)) == pytest.approx(1.0, rel=0.1)


def test_a_stretch_of_one_to_three_steps_is_taken_whole():
    for n in (1, 2, 3):
        assert float(seen(np.ones(n), np.ones(n, bool)).square) == 1.0

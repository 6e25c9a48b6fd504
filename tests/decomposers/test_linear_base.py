"""The linear base: rewards that come back from returns alone, and the regression against one written out in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.config import DiasterConfig, RrdConfig
from diaster.config.methods import with_base
from diaster.decomposers import linear_base, make_decomposer
from diaster.decomposers.diaster import make_diaster
from diaster.decomposers.linear_base import (
    add_episodes,
    init_linear_base,
    linear_and_net,
    linear_reward,
    returns_for_net,
    with_base_fitted,
)
from diaster.decomposers.statistics import add_rows, init_moments
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode, Feedback, Spans

OBS, ACTIONS = 3, 2
FEATURES = OBS + 2 * ACTIONS
UNITS = np.array([1.0, 1e4, 1e-3])  # of observations


def spec_of(obs_dim: int = OBS) -> EnvSpec:
    return EnvSpec("Made-up", obs_dim, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), 1000)


def features(obs, action):
    return np.concatenate([(obs[:-1] + obs[1:]) / 2, action, action**2], axis=-1)


def true_reward(obs, action):
    return features(obs / UNITS, action) @ np.array([1.0, -2.0, 0.5, 0.3, 0.0, -0.7, 0.1]) + 4.0


def random_episodes(lengths, reward=true_reward, seed: int = 0):
    rng = np.random.default_rng(seed)
    episodes = []
    for length in lengths:
        obs = (rng.normal(size=OBS) + rng.normal(size=(length + 1, OBS))) * UNITS
        action = np.clip(rng.normal(size=ACTIONS) * 0.3 + rng.normal(size=(length, ACTIONS)) * 0.5, -1.0, 1.0)
        total = float(reward(obs, action).sum())
        episodes.append(Episode(obs.astype(np.float32), action.astype(np.float32), total, False))
    return episodes


def lengths(n: int, seed: int = 1):
    return np.random.default_rng(seed).integers(3, 12, n)


@jit
def grown(base, moments, block, net_reward):
    moments = add_rows(moments, block)
    return add_episodes(*base, block, moments, net_reward, True), moments


def block_of(episodes, n_rows: int = 1024):
    obs_dim = episodes[0].obs.shape[1]
    return replay.make_block(list(episodes), n_rows, n_rows // 2, obs_dim, ACTIONS)


def fitted(*groups, net=lambda steps: jnp.zeros(steps.time.shape), obs_dim: int = OBS):
    """The reward and what was seen, after groups of episodes that arrive one after the other."""
    base, moments = init_linear_base(jax.random.key(0), spec_of(obs_dim)), init_moments(obs_dim)
    for episodes in groups:
        block = block_of(episodes)
        base, moments = grown(base, moments, block, net(linear_base.steps_of_block(block)[0]))
    return base


def rewards(base, episode):
    steps = replay.Steps(episode.obs[:-1], episode.action, episode.obs[1:], None, None, None, None)
    return np.asarray(linear_reward(base[0], steps))


def test_a_reward_that_is_linear_comes_back_from_the_returns_of_thirty_episodes_whatever_the_units():
    base = fitted(random_episodes(lengths(30)))
    [other] = random_episodes([50], seed=9)
    truth = true_reward(other.obs, other.action)
    np.testing.assert_allclose(rewards(base, other), truth, atol=0.02 * truth.std())
    assert float(base[1].explained) > 0.999


def test_before_any_episode_the_reward_is_zero_and_with_two_it_is_their_mean():
    [other] = random_episodes([5], seed=9)
    empty = init_linear_base(jax.random.key(0), spec_of())
    np.testing.assert_array_equal(rewards(empty, other), np.zeros(5))
    few = random_episodes([4, 8])
    base = fitted(few)
    mean = sum(episode.episode_return for episode in few) / 12
    np.testing.assert_allclose(rewards(base, other), np.full(5, mean), rtol=1e-5)


def test_weights_are_those_of_the_strength_whose_predictions_of_left_out_episodes_are_best():
    rng = np.random.default_rng(3)
    noisy = random_episodes(lengths(20), lambda obs, action: true_reward(obs, action) + 3.0 * rng.normal())
    base = fitted(noisy)
    x = np.stack([features(e.obs.astype(float), e.action.astype(float)).mean(axis=0) for e in noisy])
    length = np.array([e.length for e in noisy], float)
    y = np.array([e.episode_return for e in noisy]) / length
    x = x / np.asarray(base[0].deviation, float)

    def ridge(kept, strength):
        share = length[kept] / length.sum() * len(noisy)
        centre, constant = np.average(x[kept], axis=0, weights=share), np.average(y[kept], weights=share)
        d = x[kept] - centre
        matrix = d.T @ (share[:, None] * d) + strength * len(noisy) * np.eye(FEATURES)
        return centre, constant, np.linalg.solve(matrix, d.T @ (share * (y[kept] - constant)))

    def error(strength):
        total = 0.0
        for i in range(len(noisy)):
            centre, constant, weight = ridge(np.arange(len(noisy)) != i, strength)
            total += length[i] * (y[i] - constant - (x[i] - centre) @ weight) ** 2
        return total

    errors = [error(strength) for strength in linear_base.STRENGTHS]
    best = linear_base.STRENGTHS[int(np.argmin(errors))]
    assert min(linear_base.STRENGTHS) < best < max(linear_base.STRENGTHS)  # there was something to choose
    _, constant, weight = ridge(np.ones(len(noisy), bool), best)
    np.testing.assert_allclose(base[0].weight, weight, rtol=0.01, atol=0.01 * np.abs(weight).max())
    assert float(base[0].constant) == pytest.approx(constant, rel=1e-4)
    without = (length * ((y - constant) / (1.0 - length / length.sum())) ** 2).sum()
    assert float(base[1].explained) == pytest.approx(1.0 - min(errors) / without, abs=0.02)


def test_returns_that_have_nothing_to_do_with_the_steps_leave_next_to_no_weights():
    noise = np.random.default_rng(5)
    base = fitted(random_episodes(np.full(60, 8), lambda obs, action: np.full(len(action), noise.normal())))
    informed = fitted(random_episodes(np.full(60, 8)))
    assert float(base[1].explained) < 0.2
    assert np.abs(base[0].weight).max() < 0.2 * np.abs(informed[0].weight).max()


def test_episodes_that_arrive_at_once_or_one_by_one_give_the_same_reward():
    episodes = random_episodes(lengths(12))
    together, apart = fitted(episodes), fitted(*([episode] for episode in episodes))
    np.testing.assert_allclose(together[0].weight, apart[0].weight, rtol=1e-2, atol=1e-3)
    assert int(together[1].episodes) == int(apart[1].episodes) == 12


def test_only_the_last_episodes_count(monkeypatch):
    monkeypatch.setattr(linear_base, "MOST_EPISODES", 16)
    early = random_episodes(lengths(30), lambda obs, action: -true_reward(obs, action))
    late = random_episodes(lengths(40), seed=7)
    base, moments = init_linear_base(jax.random.key(0), spec_of()), init_moments(OBS)
    for episodes in (early, late[:7], late[7:]):  # the last one has more than there is room for
        block = block_of(episodes)
        moments = add_rows(moments, block)
        base = add_episodes(*base, block, moments, jnp.zeros(1024), True)
    np.testing.assert_allclose(np.sort(base[1].length), np.sort([e.length for e in late[-16:]]))
    [other] = random_episodes([50], seed=9)
    truth = true_reward(other.obs, other.action)
    np.testing.assert_allclose(rewards(base, other), truth, atol=0.05 * truth.std())


def test_a_net_counts_as_far_as_it_says_of_new_episodes_what_the_weights_leave():
    constant = random_episodes(np.full(12, 6), lambda obs, action: np.full(len(action), 5.0))
    # With returns of 0 so far the reward is 0 everywhere; the next ones have 5 per step, and nothing explains them.
    before = [episode._replace(episode_return=0.0) for episode in random_episodes(np.full(3, 6))]
    for says, share in ((5.0, 1.0), (10.0, 0.5), (2.0, 1.0), (-5.0, 0.0)):
        base = fitted(before, constant, net=lambda steps, says=says: jnp.full(steps.time.shape, says))
        # The first group is not counted: no weights had been fitted that could have left anything.
        power = says**2 * (1.0 - linear_base.FORGETTING**12) / (1.0 - linear_base.FORGETTING)
        assert float(base[1].power) == pytest.approx(power, rel=1e-4)
        assert float(linear_base.share_of_net("linear", base[1])) == pytest.approx(share, rel=1e-4)


def test_the_spans_of_an_episode_judge_a_net_alike_and_earlier_episodes_fade():
    feedback = Feedback(every=2)

    def in_spans(episodes):
        numbers = [Spans(np.array([2, 4, 6]), np.full(3, 10.0)) for _ in episodes]
        cut = [episode._replace(spans=of_one) for episode, of_one in zip(episodes, numbers, strict=True)]
        return replay.make_block(cut, 1024, 512, OBS, ACTIONS, feedback)

    base, moments = init_linear_base(jax.random.key(0), spec_of()), init_moments(OBS)
    for n in (3, 12, 7):
        block = in_spans(random_episodes(np.full(n, 6)))
        base, moments = grown(base, moments, block, jnp.full(1024, 2.0))
    # Three spans each; the first group is not counted.
    power = 3 * 2.0**2 * (1.0 - linear_base.FORGETTING**19) / (1.0 - linear_base.FORGETTING)
    assert float(base[1].power) == pytest.approx(power, rel=1e-4)


def test_a_net_that_has_not_learnt_yet_is_not_judged_and_counts_in_full():
    block = block_of(random_episodes(np.full(12, 6)))
    base, moments = init_linear_base(jax.random.key(0), spec_of()), init_moments(OBS)
    for _ in range(2):
        moments = add_rows(moments, block)
        base = add_episodes(*base, block, moments, jnp.full(1024, 3.0), has_learnt=False)
    assert float(base[1].power) == 0.0 and float(linear_base.share_of_net("linear", base[1])) == 1.0


@pytest.mark.parametrize("n_steps", [1, 5, 128, 200])
def test_a_net_is_fitted_to_what_the_linear_reward_leaves_of_a_return(n_steps):
    base = fitted(random_episodes(lengths(30)))
    episodes = random_episodes([7, n_steps], seed=4)
    store = replay.insert(replay.init_store(4096, OBS, ACTIONS), block_of(episodes))
    for seed in range(3):
        left = returns_for_net("linear", base[0], store, jnp.array([1, 1]), jax.random.key(seed))
        of_steps = rewards(base, episodes[1])
        # Up to 128 steps each counts once or evenly often, beyond that most do.
        tolerance = 1e-3 * n_steps if n_steps in (1, 128) else 3.0 * of_steps.std() * n_steps**0.5
        np.testing.assert_allclose(left, episodes[1].episode_return - of_steps.sum(), atol=tolerance)


@pytest.mark.parametrize("kind", ["none", "mixed"])
def test_a_net_is_fitted_to_whole_returns_without_a_base_and_beside_a_mixed_one(kind):
    base = fitted(random_episodes(lengths(30)))[0] if kind == "mixed" else None
    episodes = random_episodes([7, 5], seed=4)
    store = replay.insert(replay.init_store(4096, OBS, ACTIONS), block_of(episodes))
    np.testing.assert_array_equal(
        returns_for_net(kind, base, store, jnp.array([0, 1]), jax.random.key(0)),
        np.float32([episode.episode_return for episode in episodes]),
    )


@pytest.mark.parametrize("kind, linear_share", [("linear", 1.0), ("mixed", 0.75)])
def test_a_mixed_reward_is_a_mean_of_both_and_a_net_is_added_to_a_linear_one(kind, linear_share):
    base = fitted(random_episodes(lengths(30)))[0]._replace(net_share=jnp.array(0.25))
    episode = random_episodes([9], seed=4)[0]
    steps = replay.Steps(episode.obs[:-1], episode.action, episode.obs[1:], None, None, None, None)
    both = linear_and_net(kind, base, jnp.full(9, 8.0), steps, jnp.array(2.0))
    np.testing.assert_allclose(both, linear_share * linear_reward(base, steps) / 2.0 + 0.25 * 8.0, rtol=1e-6)


def test_a_mixed_base_weighs_half_where_it_explains_everything_and_nothing_where_it_explains_nothing():
    def net_share(episodes):
        decomposer = make_diaster(DiasterConfig(base="mixed", hidden=4), 12)
        return float(
            decomposer.ingest(decomposer.init(jax.random.key(0), spec_of()), None, block_of(episodes)).base.net_share
        )

    assert net_share(random_episodes(lengths(60))) == pytest.approx(0.5, abs=1e-3)
    rng = np.random.default_rng(0)
    assert net_share(random_episodes(lengths(60), lambda obs, action: rng.normal(size=len(action)))) > 0.9


@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
def test_beside_a_mixed_base_a_net_has_more_than_half_where_it_foresees_new_episodes_better(is_right):
    def half_hidden(obs, action):  # a part of the reward is not linear
        return true_reward(obs, action) + 6.0 * np.sin(3.0 * obs[:-1, 0])

    def net(steps):
        known = jnp.asarray(
            half_hidden(np.asarray(jnp.concatenate([steps.obs, steps.obs[-1:]])), np.asarray(steps.action))
        )
        return known if is_right else -known

    decomposer = make_diaster(DiasterConfig(base="mixed", hidden=4), 12)
    state = decomposer.init(jax.random.key(0), spec_of())
    shares, least = [], []
    for seed in range(4):
        block = block_of(random_episodes(lengths(40, seed), half_hidden, seed))
        state = state._replace(moments=add_rows(state.moments, block))
        state = with_base_fitted("mixed", state, block, net, jnp.array(True))
        shares.append(float(state.base.net_share))
        least.append(1.0 - linear_base.MIXED * float(state.base_means.explained))
    assert 0.5 < least[-1] < 0.8
    assert shares[0] == pytest.approx(least[0])  # not judged yet
    assert shares[-1] > 0.9 if is_right else shares[-1] == pytest.approx(least[-1])


def test_thousands_of_observations_are_projected():
    n_obs, rng = 2000, np.random.default_rng(0)
    weight = rng.normal(size=n_obs) / n_obs**0.5
    episodes = []
    for _ in range(40):
        obs = (rng.normal() * weight * 30 + rng.normal(size=(6, n_obs))).astype(np.float32)
        episodes.append(Episode(obs, np.zeros((5, ACTIONS), np.float32), float((obs @ weight)[:-1].sum()), False))
    base = fitted(episodes, obs_dim=n_obs)
    assert base[0].weight.shape == (linear_base.MOST_FEATURES,)
    assert float(base[1].explained) > 0.9


def test_the_share_of_the_net_can_be_given():
    decomposer = make_diaster(DiasterConfig(base="linear", hidden=4), 10)
    state = decomposer.init(jax.random.key(0), spec_of())
    assert float(linear_base.with_net_share(state, 0.25).base.net_share) == 0.25
    bare = make_diaster(DiasterConfig(base="none", hidden=4), 10).init(jax.random.key(0), spec_of())
    assert linear_base.with_net_share(bare, 0.25) is bare


def test_auto_is_a_mixed_base_and_none_where_there_can_be_none():
    assert with_base(DiasterConfig()).base == "mixed"
    assert with_base(DiasterConfig(reward_source="difference")).base == "none"
    assert with_base(DiasterConfig(), has_images=True).base == "none"
    assert with_base(DiasterConfig(base="linear")).base == "linear"
    assert with_base(RrdConfig()).base == "none"  # as published, unless asked for
    assert with_base(RrdConfig(base="auto")).base == "mixed"
    state = make_decomposer(DiasterConfig(hidden=4), 10).init(jax.random.key(0), spec_of())
    assert state.base is not None

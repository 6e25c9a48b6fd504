"""The potential: what it leaves of rewards, that sums stay what they are, and the regression beside one in NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import continuous_spec

from diaster.agents import Transition, make_agent
from diaster.agents import potential as potentials
from diaster.agents.potential import Shaped, changes_of, features_of, fitted, gain, init_potential
from diaster.config import SacConfig, XqcConfig

LENGTH, N_STRETCHES = 64, 64
MANY = 10**6  # stored steps
fit = jit(fitted)


def walks(obs_dim: int = 4, seed: int = 0, n: int = N_STRETCHES):
    """Observations of random walks that stay near zero, one walk in a column.  # [T + 1, W, D]"""
    rng = np.random.default_rng(seed)
    obs = [rng.normal(size=(n, obs_dim))]
    for _ in range(LENGTH):
        obs.append(0.9 * obs[-1] + 0.4 * rng.normal(size=(n, obs_dim)))
    return np.array(obs, np.float32)


def nose(obs):
    """Where a part of a body is: it depends on two joints."""
    return 3.0 * np.sin(obs[..., 0]) + 2.0 * np.cos(obs[..., 1] - 0.5)


def steps_of(obs, reward, terminal=None) -> Transition:
    ends = np.zeros(reward.shape, bool) if terminal is None else terminal
    return Transition(obs[:-1], np.zeros((*reward.shape, 1)), reward.astype(np.float32), obs[1:], ends)


def to_and_fro(obs, seed: int = 1):
    """Little that is gained, and much that moves to and fro.  # [T, W] each"""
    gained = 0.1 * np.random.default_rng(seed).normal(size=obs.shape[:2])[1:] + 0.05
    return gained, gained + nose(obs[1:]) - nose(obs[:-1])


def potential_of(steps: Transition, first_obs, n_stored: int = MANY):
    potential = init_potential(jax.random.key(0), steps.obs.shape[-1])
    return fit(potential, steps, np.asarray(first_obs, np.float32), n_stored)


def seen(potential, steps: Transition):
    return np.asarray(steps.reward + gain(potential, steps))


def test_what_moves_to_and_fro_is_taken_out_of_rewards_and_what_is_gained_stays():
    obs = walks()
    _, reward = to_and_fro(obs)
    potential = potential_of(steps_of(obs, reward), obs[0])
    new = walks(seed=7)
    gained, reward = to_and_fro(new, seed=8)
    assert np.corrcoef(reward.ravel(), gained.ravel())[0, 1] < 0.3
    left = seen(potential, steps_of(new, reward))
    assert np.corrcoef(left.ravel(), gained.ravel())[0, 1] > 0.9
    assert left.std() < 0.2 * reward.std()
    assert float(potential.kept) < 0.05


def test_sums_over_an_episode_change_by_no_more_than_the_potential_where_it_begins_and_where_it_is_cut_off():
    obs = walks()
    _, reward = to_and_fro(obs)
    potential = potential_of(steps_of(obs, reward), obs[0])
    p = np.asarray(features_of(potential, obs) @ potential.weight)
    steps = steps_of(obs, reward)
    np.testing.assert_allclose((seen(potential, steps) - reward).sum(axis=0), p[-1] - p[0], atol=1e-3)


def test_over_episodes_that_end_sums_stay_the_same_on_average_so_that_to_end_pays_nothing():
    obs = walks()
    _, reward = to_and_fro(obs)
    ends = np.zeros(reward.shape, bool)
    ends[-1] = True
    steps = steps_of(obs, reward, ends)
    potential = potential_of(steps, obs[0])
    assert float(potential.kept) < 0.2
    added = (seen(potential, steps) - reward).sum(axis=0)
    assert np.abs(added).max() > 0.1  # of one episode they change: where it begins differs
    assert abs(added.mean()) < 1e-3


def test_rewards_that_a_potential_explains_only_in_part_stay_as_they_are_to_the_bit():
    obs = walks()
    reward = nose(obs[1:]) - nose(obs[:-1]) + np.random.default_rng(3).normal(size=obs.shape[:2])[1:]
    steps = steps_of(obs, reward)
    potential = potential_of(steps, obs[0])
    assert potentials.MOST_KEPT < float(potential.kept) < 0.9
    np.testing.assert_array_equal(seen(potential, steps), steps.reward)


def test_that_some_stretches_are_better_than_others_is_not_for_the_potential_to_explain():
    obs = walks()
    _, reward = to_and_fro(obs)
    better = np.random.default_rng(5).normal(size=N_STRETCHES) * 50.0
    steps = steps_of(obs, reward)
    one, other = (gain(potential_of(steps_of(obs, r), obs[0]), steps) for r in (reward, reward + better))
    np.testing.assert_allclose(other, one, atol=0.01)


def test_the_weights_are_those_of_a_ridge_regression_in_double_precision():
    obs = walks()
    _, reward = to_and_fro(obs)
    steps = steps_of(obs, reward)
    potential = potential_of(steps, obs[0])
    x = np.asarray(changes_of(potential, steps), np.float64).reshape(reward.size, -1)
    y = (reward - reward.mean(axis=0)).ravel()
    size = np.sqrt((x**2).mean(axis=0))
    x = x / size
    gram = x.T @ x / len(y) + potentials.STRENGTH * np.eye(x.shape[1])
    expected = -np.linalg.solve(gram, x.T @ y / len(y)) / size
    x = x * size
    np.testing.assert_allclose(x @ potential.weight, x @ expected, atol=0.02)


def test_where_steps_are_hardly_more_than_features_noise_that_it_could_explain_stays_as_it_is():
    obs = walks(obs_dim=24, n=3)
    reward = np.random.default_rng(3).normal(size=obs.shape[:2])[1:]
    steps = steps_of(obs, reward)
    features = init_potential(jax.random.key(0), obs.shape[-1]).weight.size
    assert reward.size < features
    potential = potential_of(steps, obs[0], reward.size)
    assert float(potential.kept) < potentials.MOST_KEPT  # in the steps it is fitted to
    np.testing.assert_array_equal(seen(potential, steps), steps.reward)
    assert np.any(potential_of(steps, obs[0], potentials.LEAST_STEPS * features).weight)


@pytest.mark.parametrize("reward", [0.0, 1.0, np.nan], ids=["none", "constant", "lost"])
def test_where_there_is_nothing_to_explain_no_potential_is_used_and_all_numbers_stay_finite(reward):
    for obs in (walks(), np.ones_like(walks())):
        potential = potential_of(steps_of(obs, np.full(obs[1:].shape[:2], reward)), obs[0])
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(potential))
        assert not np.any(potential.weight)


def test_an_observation_beyond_all_that_were_seen_makes_no_reward_that_is():
    obs = walks()
    _, reward = to_and_fro(obs)
    potential = potential_of(steps_of(obs, reward), obs[0])
    far = np.stack([obs[:1], obs[:1] * 1e6])
    added = np.asarray(gain(potential, steps_of(far[:, 0], np.zeros((1, N_STRETCHES)))))
    assert np.abs(added).max() < 100.0


def test_each_cosine_sees_two_numbers_of_the_state_or_all_there_are():
    frequencies = np.asarray(init_potential(jax.random.key(3), 6).frequencies)
    assert ((frequencies != 0).sum(axis=0) == potentials.TOGETHER).all()
    assert (frequencies != 0).any(axis=1).all()
    assert np.all(np.asarray(init_potential(jax.random.key(3), 1).frequencies) != 0)


@pytest.mark.parametrize("settings", [SacConfig(hidden=8, potential=True), XqcConfig(layers=1, potential=True)])
def test_an_agent_with_a_potential_learns_from_what_it_is_given_and_acts_as_without_one(settings):
    spec = continuous_spec(1)
    agent = make_agent(settings, spec)
    state = agent.init(jax.random.key(0), spec)
    assert isinstance(state, Shaped)
    obs = walks(obs_dim=spec.obs_dim)
    _, reward = to_and_fro(obs)
    steps = steps_of(obs, reward)
    assert agent.survey is not None
    assert agent.rewards is not None
    surveyed = agent.survey(state, steps, obs[0], MANY)
    np.testing.assert_array_equal(agent.rewards(state, steps), steps.reward)  # before it has seen any
    assert np.asarray(agent.rewards(surveyed, steps)).std() < 0.2 * reward.std()
    for one, other in zip(*(jax.tree.leaves(agent.policy(s)) for s in (state, surveyed)), strict=True):
        np.testing.assert_array_equal(one, other)

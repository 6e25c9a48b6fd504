"""The host's policies are the learners' policies, and explore as they say."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diaster.actors import acting
from diaster.actors.acting import CATEGORICAL, EPSILON_GREEDY, NOISY_TANH, TANH_GAUSSIAN, HostParameters
from diaster.agents.tanh_gaussian import tanh_gaussian
from diaster.nn import nets
from diaster.types import EnvSpec

POLICIES = (TANH_GAUSSIAN, NOISY_TANH, EPSILON_GREEDY, CATEGORICAL)

OBS, ACTIONS = 4, 3
CONTINUOUS = EnvSpec("x", OBS, ACTIONS, -np.ones(ACTIONS, np.float32), np.ones(ACTIONS, np.float32), (ACTIONS,), 10)
DISCRETE = EnvSpec(
    "x", OBS, ACTIONS, np.zeros(ACTIONS, np.float32), np.ones(ACTIONS, np.float32), (), 10, True, first_action=5
)


@pytest.fixture(scope="module")
def layers():
    """A policy whose outputs reach the clipped range of the deviation for some observations."""
    key = jax.random.key(3)
    wide = jax.jit(nets.mlp_init, static_argnums=1)(key, (OBS, 32, 32, 2 * ACTIONS))
    return (*wide[:-1], nets.Linear(wide[-1].weight * 20.0, wide[-1].bias))


@pytest.fixture(scope="module")
def narrow():
    """A net with an output for each action."""
    wide = jax.jit(nets.mlp_init, static_argnums=1)(jax.random.key(6), (OBS, 32, 32, ACTIONS))
    return (*wide[:-1], nets.Linear(wide[-1].weight * 5.0, wide[-1].bias))


def with_layers(layers, exploration: float = 0.0) -> HostParameters:
    return HostParameters(on_host(layers), exploration)


def constant(*outputs: float, exploration: float = 0.0) -> HostParameters:
    """A net that gives the same outputs whatever it sees."""
    layer = (np.zeros((OBS, len(outputs)), np.float32), np.array(outputs, np.float32))
    return HostParameters((layer,), exploration)


def some_obs(n: int = 100) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(n, OBS)).astype(np.float32)


def on_host(layers):
    return tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in layers)


def test_the_host_perceptron_equals_the_learners(layers):
    obs = np.random.default_rng(0).normal(size=(50, OBS)).astype(np.float32)
    host = acting.mlp(on_host(layers), obs)
    assert host.dtype == np.float32
    np.testing.assert_allclose(host, jax.jit(nets.mlp)(layers, jnp.asarray(obs)), rtol=1e-5, atol=1e-5)


def test_the_host_policy_equals_the_learners_with_the_same_noise(layers):
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(200, OBS)).astype(np.float32) * 2.0
    noise = rng.normal(size=(200, ACTIONS)).astype(np.float32)
    log_std = acting.mlp(on_host(layers), obs)[:, ACTIONS:]
    assert (log_std > acting.LOG_STD_MAX).any() and (log_std < 0.0).any()
    expected, _ = jax.jit(tanh_gaussian)(nets.mlp(layers, jnp.asarray(obs)), jnp.asarray(noise))
    np.testing.assert_allclose(TANH_GAUSSIAN.act(with_layers(layers), obs, noise), expected, atol=1e-5)


def test_one_observation_gives_the_same_action_as_a_batch_of_them(layers):
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(20, OBS)).astype(np.float32)
    noise = rng.normal(size=(20, ACTIONS)).astype(np.float32)
    batch = TANH_GAUSSIAN.act(with_layers(layers), obs, noise)
    single = [TANH_GAUSSIAN.act(with_layers(layers), o, n) for o, n in zip(obs, noise, strict=True)]
    assert single[0].shape == (ACTIONS,)
    np.testing.assert_allclose(np.stack(single), batch, atol=1e-5)


def test_without_noise_the_host_policy_takes_the_squashed_mean(layers):
    obs = np.random.default_rng(4).normal(size=(100, OBS)).astype(np.float32)
    host = TANH_GAUSSIAN.act(with_layers(layers), obs, None)
    learner, _ = jax.jit(tanh_gaussian)(nets.mlp(layers, jnp.asarray(obs)), jnp.zeros((100, ACTIONS)))
    assert host.dtype == np.float32
    np.testing.assert_allclose(host, learner, atol=1e-5)


def test_the_host_policy_is_tanh_of_mean_plus_deviation_times_noise_by_hand():
    # obs 2: mean 2 · 0.25 = 0.5, log_std 2 · 0 − 1 = −1
    layers = ((np.array([[0.25, 0.0]], np.float32), np.array([0.0, -1.0], np.float32)),)
    parameters = HostParameters(layers, 0.0)
    obs = np.array([2.0], np.float32)
    assert TANH_GAUSSIAN.act(parameters, obs, None)[0] == pytest.approx(np.tanh(0.5))
    noise = np.array([-1.5], np.float32)
    assert TANH_GAUSSIAN.act(parameters, obs, noise)[0] == pytest.approx(np.tanh(0.5 - 1.5 * np.exp(-1.0)))


def test_the_host_policy_clips_the_deviation():
    for log_std, clipped in ((50.0, acting.LOG_STD_MAX), (-50.0, acting.LOG_STD_MIN)):
        layers = ((np.zeros((1, 2), np.float32), np.array([0.0, log_std], np.float32)),)
        obs, noise = np.zeros(1, np.float32), np.array([0.05], np.float32)
        action = TANH_GAUSSIAN.act(HostParameters(layers, 0.0), obs, noise)
        assert action[0] == pytest.approx(np.tanh(0.05 * np.exp(clipped)), rel=1e-5)


def test_sac_explores_by_its_own_deviation_and_by_nothing_else(layers):
    obs, noise = some_obs(), TANH_GAUSSIAN.draw(np.random.default_rng(0), 100, CONTINUOUS)
    with_other = TANH_GAUSSIAN.act(with_layers(layers, exploration=9.0), obs, noise)
    np.testing.assert_array_equal(TANH_GAUSSIAN.act(with_layers(layers), obs, noise), with_other)


# A deterministic policy with noise


def test_the_deterministic_policy_is_tanh_of_the_learners_net(narrow):
    obs = some_obs()
    action = NOISY_TANH.act(with_layers(narrow, exploration=0.7), obs, None)
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, jnp.tanh(jax.jit(nets.mlp)(narrow, jnp.asarray(obs))), atol=1e-5)


def test_the_noise_of_the_deterministic_policy_has_the_stated_deviation_and_stays_in_bounds(narrow):
    noise = NOISY_TANH.draw(np.random.default_rng(0), 20_000, CONTINUOUS)
    actions = NOISY_TANH.act(constant(0.2, 0.0, -0.1, exploration=0.15), np.zeros((20_000, OBS), np.float32), noise)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(axis=0), np.tanh([0.2, 0.0, -0.1]), atol=0.005)
    np.testing.assert_allclose(actions.std(axis=0), 0.15, rtol=0.03)
    # Near a bound the noise is clipped, not squashed.
    obs = some_obs()
    loud = with_layers(narrow, exploration=2.0)
    clipped = np.clip(NOISY_TANH.act(loud, obs, None) + 2.0 * noise[:100], -1.0, 1.0)
    assert (np.abs(clipped) == 1.0).any()
    np.testing.assert_allclose(NOISY_TANH.act(loud, obs, noise[:100]), clipped, atol=1e-6)


# Discrete actions


def is_one_hot(actions: np.ndarray) -> bool:
    return actions.dtype == np.float32 and set(np.unique(actions)) <= {0.0, 1.0} and bool((actions.sum(-1) == 1).all())


@pytest.mark.parametrize("policy", [EPSILON_GREEDY, CATEGORICAL], ids=lambda policy: policy.name)
def test_the_deterministic_discrete_action_is_where_the_learners_net_is_largest(policy, narrow):
    obs = some_obs()
    largest = np.asarray(jnp.argmax(jax.jit(nets.mlp)(narrow, jnp.asarray(obs)), axis=-1))
    actions = np.stack([policy.act(with_layers(narrow, exploration=1.0), one, None) for one in obs])
    assert is_one_hot(actions)
    assert len(set(largest.tolist())) == ACTIONS
    np.testing.assert_array_equal(actions.argmax(axis=-1), largest)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_takes_any_action_with_the_stated_probability_and_else_the_best(epsilon):
    parameters, obs = constant(0.1, 0.3, 0.2, exploration=epsilon), np.zeros(OBS, np.float32)
    n = 10_000
    draws = EPSILON_GREEDY.draw(np.random.default_rng(0), n, DISCRETE)
    actions = np.stack([EPSILON_GREEDY.act(parameters, obs, draw) for draw in draws])
    assert is_one_hot(actions)
    # A random action may be the best one by chance.
    expected = epsilon / ACTIONS + (1.0 - epsilon) * np.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(actions.mean(axis=0), expected, atol=5.0 * np.sqrt(0.25 / n))
    if epsilon == 0.0:
        np.testing.assert_array_equal(actions[:, 1], 1.0)


def test_epsilon_greedy_knows_every_action_to_the_very_end_of_its_draw():
    parameters, obs = constant(0.0, 0.0, 0.0, exploration=1.0), np.zeros(OBS, np.float32)
    almost = np.nextafter(np.float32(1.0), np.float32(0.0))
    for value, action in ((0.0, 0), (0.34, 1), (almost, 2), (1.0, 2)):
        drawn = EPSILON_GREEDY.act(parameters, obs, np.array([0.0, value], np.float32))
        assert drawn.tolist() == np.eye(3)[action].tolist()


def test_gumbel_draws_follow_the_softmax_of_the_outputs():
    logits = np.array([0.5, -1.0, 2.0])
    n = 20_000
    gumbel = CATEGORICAL.draw(np.random.default_rng(1), n, DISCRETE)
    actions = CATEGORICAL.act(constant(*logits), np.zeros((n, OBS), np.float32), gumbel)
    assert is_one_hot(actions)
    softmax = np.asarray(jax.nn.softmax(jnp.asarray(logits)))
    assert softmax.min() > 0.03
    np.testing.assert_allclose(actions.mean(axis=0), softmax, atol=5.0 * np.sqrt(0.25 / n))


# Draws


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policys_draws_have_a_row_per_step_that_it_can_act_with(policy, layers, narrow):
    spec = CONTINUOUS if policy in (TANH_GAUSSIAN, NOISY_TANH) else DISCRETE
    draws = policy.draw(np.random.default_rng(3), 12, spec)
    again = policy.draw(np.random.default_rng(3), 12, spec)
    assert (len(draws), draws.dtype) == (12, np.float32)
    np.testing.assert_array_equal(draws, again)
    assert len({row.tobytes() for row in draws}) == 12
    parameters = with_layers(layers if policy is TANH_GAUSSIAN else narrow, exploration=0.5)
    for obs, draw in zip(some_obs(12), draws, strict=True):
        action = policy.act(parameters, obs, draw)
        assert action.shape == (ACTIONS,) and np.abs(action).max() <= 1.0


def test_a_policy_can_be_sent_to_another_process():
    for policy in POLICIES:
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_actions_of_no_policy_are_uniform_over_all_there_are():
    continuous = acting.random_actions(np.random.default_rng(0), 10_000, CONTINUOUS)
    assert (continuous.shape, continuous.dtype) == ((10_000, ACTIONS), np.float32)
    assert np.abs(continuous).max() <= 1.0
    np.testing.assert_allclose(continuous.mean(axis=0), 0.0, atol=0.03)
    np.testing.assert_allclose(continuous.var(axis=0), 1.0 / 3.0, atol=0.02)
    discrete = acting.random_actions(np.random.default_rng(0), 10_000, DISCRETE)
    assert discrete.shape == (10_000, ACTIONS)
    assert is_one_hot(discrete)
    np.testing.assert_allclose(discrete.mean(axis=0), 1.0 / 3.0, atol=0.025)

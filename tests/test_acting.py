"""The host's policy is the learner's policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diaster import acting, nets

OBS, ACTIONS = 4, 3


@pytest.fixture(scope="module")
def layers():
    """A policy whose outputs reach the clipped range of the deviation for some observations."""
    key = jax.random.key(3)
    wide = jax.jit(nets.mlp_init, static_argnums=1)(key, (OBS, 32, 32, 2 * ACTIONS))
    return (*wide[:-1], nets.Linear(wide[-1].weight * 20.0, wide[-1].bias))


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
    expected, _ = jax.jit(nets.tanh_gaussian)(layers, jnp.asarray(obs), jnp.asarray(noise))
    np.testing.assert_allclose(acting.tanh_gaussian(on_host(layers), obs, noise), expected, atol=1e-5)


def test_one_observation_gives_the_same_action_as_a_batch_of_them(layers):
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(20, OBS)).astype(np.float32)
    noise = rng.normal(size=(20, ACTIONS)).astype(np.float32)
    batch = acting.tanh_gaussian(on_host(layers), obs, noise)
    single = [acting.tanh_gaussian(on_host(layers), o, n) for o, n in zip(obs, noise, strict=True)]
    assert single[0].shape == (ACTIONS,)
    np.testing.assert_allclose(np.stack(single), batch, atol=1e-5)


def test_without_noise_the_host_policy_takes_the_squashed_mean(layers):
    obs = np.random.default_rng(4).normal(size=(100, OBS)).astype(np.float32)
    host = acting.tanh_gaussian(on_host(layers), obs, None)
    learner, _ = jax.jit(nets.tanh_gaussian)(layers, jnp.asarray(obs), jnp.zeros((100, ACTIONS)))
    assert host.dtype == np.float32
    np.testing.assert_allclose(host, learner, atol=1e-5)


def test_the_host_policy_is_tanh_of_mean_plus_deviation_times_noise_by_hand():
    # obs 2: mean 2 · 0.25 = 0.5, log_std 2 · 0 − 1 = −1
    layers = ((np.array([[0.25, 0.0]], np.float32), np.array([0.0, -1.0], np.float32)),)
    obs = np.array([2.0], np.float32)
    assert acting.tanh_gaussian(layers, obs, None)[0] == pytest.approx(np.tanh(0.5))
    noise = np.array([-1.5], np.float32)
    assert acting.tanh_gaussian(layers, obs, noise)[0] == pytest.approx(np.tanh(0.5 - 1.5 * np.exp(-1.0)))


def test_the_host_policy_clips_the_deviation():
    for log_std, clipped in ((50.0, acting.LOG_STD_MAX), (-50.0, acting.LOG_STD_MIN)):
        layers = ((np.zeros((1, 2), np.float32), np.array([0.0, log_std], np.float32)),)
        action = acting.tanh_gaussian(layers, np.zeros(1, np.float32), np.array([0.05], np.float32))
        assert action[0] == pytest.approx(np.tanh(0.05 * np.exp(clipped)), rel=1e-5)

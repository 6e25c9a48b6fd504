"""Discrete SAC on numbers small enough to work out by hand, and on bandits it has to solve."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import OBS, batch_of, changed, constant, discrete_spec, first_gradient, greedy, one_hot

from diaster.actors import acting
from diaster.agents.sac_discrete import make_sac_discrete
from diaster.config import SacConfig

RATE, TARGET_RATE, DISCOUNT, ACTIONS = 3e-3, 0.25, 0.9, 3
CONFIG = SacConfig(
    hidden=16,
    learning_rate=RATE,
    discount=DISCOUNT,
    target_rate=TARGET_RATE,
    initial_temperature=0.8,
    discrete_entropy=0.5,
)
NOISE, NUMBER = np.zeros((0,), np.float32), np.int32(0)
PROBABILITY = np.array([0.5, 0.3, 0.2])
ENTROPY = float(-(PROBABILITY * np.log(PROBABILITY)).sum())

agent = make_sac_discrete(CONFIG)
update = jit(agent.update)


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), discrete_spec(ACTIONS)))


def flat(state, critics=((0.0,) * 3,) * 2, targets=((0.0,) * 3,) * 2, probability=PROBABILITY, temperature=0.5):
    """A state whose nets have the same outputs everywhere."""
    return state._replace(
        actor=constant(OBS, *(np.log(probability) + 7.0)),  # a softmax does not see what is added to all
        critics=tuple(constant(OBS, *values) for values in critics),
        target_critics=tuple(constant(OBS, *values) for values in targets),
        log_temperature=np.float32(np.log(temperature)),
    )


def test_a_terminal_step_is_worth_its_reward_and_others_their_expected_soft_future_as_well(fresh):
    critics, targets = ([1.0, 2.0, 9.0], [3.0, -1.0, 9.0]), ([5.0, 1.0, 2.0], [4.0, 6.0, 2.5])
    state = flat(fresh, critics, targets, temperature=0.5)
    # The lesser target of each action: 4, 1, 2.
    future = DISCOUNT * (0.5 * 4.0 + 0.3 * 1.0 + 0.2 * 2.0 + 0.5 * ENTROPY)
    for terminal, wanted in (([True, True], [1.5, -1.0]), ([False, True], [1.5 + future, -1.0])):
        new, metrics = update(state, batch_of(one_hot([0, 1], ACTIONS), [1.5, -1.0], terminal), NOISE, NUMBER)
        errors = [np.array(values[:2]) - np.array(wanted) for values in critics]
        assert float(metrics["critic_loss"]) == pytest.approx(sum(np.mean(error**2) for error in errors), rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(np.mean([1.0, 2.0, 3.0, -1.0]))
        for error, gradient in zip(errors, first_gradient(new.critic_optimizer), strict=True):
            # Each of the two actions is taken in half of the steps, the third never.
            np.testing.assert_allclose(gradient[-1].bias, [*error, 0.0], atol=1e-5)


def test_the_actors_gradient_is_the_one_of_the_expected_soft_value(fresh):
    temperature, values = 0.5, np.array([1.0, 2.0, -0.5])
    other = values + np.array([1.0, 0.5, 0.25])  # never the lesser one
    state = flat(fresh, (values, other), temperature=temperature)
    # Terminal steps whose rewards are the first critic's values: it hardly moves before the actor looks at it.
    batch = batch_of(one_hot([0, 1, 2], ACTIONS), values, [True])
    new, metrics = update(state, batch, NOISE, NUMBER)
    assert float(metrics["entropy"]) == pytest.approx(ENTROPY, rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(-(PROBABILITY @ values + temperature * ENTROPY), abs=0.02)
    # d/dlogit_a of Σ π (α log π − Q) = π_a (c_a − Σ π c) with c = α log π − Q
    cost = temperature * np.log(PROBABILITY) - values
    expected = PROBABILITY * (cost - PROBABILITY @ cost)
    np.testing.assert_allclose(first_gradient(new.actor_optimizer)[-1].bias, expected, atol=0.02)


@pytest.mark.parametrize(
    ("probability", "direction"), [([0.98, 0.01, 0.01], 1.0), ([0.4, 0.3, 0.3], -1.0)], ids=["sure", "unsure"]
)
def test_the_temperature_rises_while_the_entropy_is_below_its_share_of_the_largest_and_falls_above(
    fresh, probability, direction
):
    state = flat(fresh, probability=np.array(probability))
    new, metrics = update(state, batch_of(one_hot([0], ACTIONS)), NOISE, NUMBER)
    entropy = -(np.array(probability) @ np.log(probability))
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    assert float(metrics["temperature"]) == pytest.approx(0.5)
    gap = entropy - 0.5 * np.log(ACTIONS)
    assert np.sign(-gap) == direction
    assert first_gradient(new.temperature_optimizer) == pytest.approx(gap, rel=1e-4)
    # Adam's first step is the learning rate, whatever the gradient's size.
    assert float(new.log_temperature - state.log_temperature) == pytest.approx(direction * RATE, rel=1e-2)


def test_target_critics_follow_the_updated_critics_by_the_target_rate(fresh):
    rng = np.random.default_rng(1)
    slow = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), fresh.critics)
    state = fresh._replace(target_critics=slow)
    new, _ = update(state, batch_of(one_hot([0, 1, 2], ACTIONS), [1.0, 2.0]), NOISE, NUMBER)
    assert changed(fresh.critics, new.critics)
    expected = jax.tree.map(lambda s, f: (1.0 - TARGET_RATE) * s + TARGET_RATE * np.asarray(f), slow, new.critics)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.target_critics, expected)


def test_it_begins_as_asked_for(fresh):
    jax.tree.map(np.testing.assert_array_equal, fresh.target_critics, fresh.critics)
    assert changed(*fresh.critics)
    assert float(np.exp(fresh.log_temperature)) == pytest.approx(0.8)


def test_it_draws_from_its_probabilities_and_an_update_draws_nothing(fresh):
    assert agent.acting is acting.CATEGORICAL
    assert agent.noise(jax.random.key(0), batch_of(one_hot([0], ACTIONS))).size == 0
    assert greedy(agent, flat(fresh), [0.3, -0.4]).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_entropy_settles_at_its_share_of_the_largest(share):
    """Values that differ by far pull the policy to one action; the temperature holds against them."""
    bandit = make_sac_discrete(dataclasses.replace(CONFIG, discrete_entropy=share, learning_rate=1e-2))
    learn = jit(bandit.update)
    batch = batch_of(one_hot([0, 1, 2], ACTIONS), [0.0, 1.0, 0.5], [True], obs=[1.0, 1.0])
    state = bandit.init(jax.random.key(0), discrete_spec(ACTIONS))
    for _ in range(1000):
        state, metrics = learn(state, batch, NOISE, NUMBER)
    assert float(metrics["entropy"]) == pytest.approx(share * np.log(ACTIONS), abs=0.03)
    assert greedy(bandit, state, [1.0, 1.0]).argmax() == 1


def test_a_few_hundred_updates_find_the_best_action_of_each_situation():
    situations = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
    rewards = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]], np.float32)
    which, action = np.divmod(np.arange(9), ACTIONS)
    batch = batch_of(one_hot(action, ACTIONS), rewards[which, action], [True], situations[which])
    state = agent.init(jax.random.key(1), discrete_spec(ACTIONS))
    for _ in range(600):
        state, _ = update(state, batch, NOISE, NUMBER)
    assert [int(greedy(agent, state, obs).argmax()) for obs in situations] == rewards.argmax(axis=1).tolist()

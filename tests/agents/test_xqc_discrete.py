"""XQC for discrete actions on numbers small enough to work out by hand, and on bandits it has to solve."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import (
    BATCH,
    OBS,
    batch_of,
    changed,
    discrete_spec,
    first_gradient,
    greedy,
    kernels_of,
    normed_constant,
    on_host,
    one_hot,
    projected_one_by_one,
)

from diaster.actors import acting
from diaster.agents.categorical import atoms_of
from diaster.agents.reward_scale import RewardScale
from diaster.agents.twins import averaged_outputs
from diaster.agents.xqc_discrete import make_xqc_discrete
from diaster.config import XqcConfig
from diaster.nn.normed import of_averages, of_batch

RATE, TARGET_RATE, DISCOUNT, TEMPERATURE, LIMIT, ACTIONS = 3e-3, 0.25, 0.9, 0.8, 2.0, 3
CONFIG = XqcConfig(
    hidden=8,
    actor_hidden=8,
    layers=1,
    learning_rate=RATE,
    annealing_updates=0,
    discount=DISCOUNT,
    target_rate=TARGET_RATE,
    initial_temperature=TEMPERATURE,
    discrete_entropy=0.5,
    policy_every=3,
    atoms=5,
    value_limit=LIMIT,
    reward_scale=1.0,
)
ATOMS = np.asarray(atoms_of(LIMIT, CONFIG.atoms))
PROBABILITY = np.array([0.5, 0.3, 0.2])
ENTROPY = float(-(PROBABILITY * np.log(PROBABILITY)).sum())
NOISE = np.zeros((0,), np.float32)
MOVES, IDLE = np.int32(3), np.int32(1)  # numbers of updates with and without a step of the actor

agent = make_xqc_discrete(CONFIG)
update = jit(agent.update)


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), discrete_spec(ACTIONS)))


def certain(*values: float):
    """The logits of distributions that are each all on one atom, one action after the other."""
    return np.concatenate([np.where(value == ATOMS, 50.0, 0.0) for value in values])


def flat(state, targets=((0.0,) * 3,) * 2, probability=PROBABILITY, temperature=0.5):
    """Critics that find all values equally likely, targets that are certain of each action's, and a fixed policy."""
    nets, uniform = state.critics.nets, np.zeros(ACTIONS * len(ATOMS))
    return state._replace(
        critics=state.critics._replace(nets=tuple(normed_constant(net, uniform) for net in nets)),
        target_critics=state.target_critics._replace(
            nets=tuple(normed_constant(net, certain(*values)) for net, values in zip(nets, targets, strict=True))
        ),
        slow=state.slow._replace(
            actor=normed_constant(state.slow.actor, np.log(probability) + 7.0),  # a softmax does not see the 7
            log_temperature=np.float32(np.log(temperature)),
        ),
    )


def targets_of(new, shares):
    """What each critic was fitted to for each action, from its gradient: share · (softmax − target)  # [A, N]

    softmax was uniform; `shares` of the batch take the actions.
    """
    gradients = [net.head.bias.reshape(ACTIONS, -1) for net in first_gradient(new.critic_optimizer)]
    return [1.0 / len(ATOMS) - own[: len(shares)] / np.array(shares)[:, None] for own in gradients]


def project(mass, values):
    """Mass at a few values moved to the atoms.  # [N]"""
    padding = (0, len(ATOMS) - len(mass))
    return projected_one_by_one(np.pad(mass, padding)[None], np.pad(values, padding)[None], ATOMS)[0]


# The target


def test_a_terminal_step_is_worth_its_reward_and_others_the_mixture_of_each_actions_lesser_target_as_well(fresh):
    # The lesser target of each action: −1, 1, 0; they are mixed by the probabilities, and not averaged.
    state = flat(fresh, ([1.0, 1.0, 0.0], [-1.0, 2.0, 1.0]), temperature=0.5)
    lesser, bonus = np.array([-1.0, 1.0, 0.0]), DISCOUNT * 0.5 * ENTROPY
    following = project(PROBABILITY, 0.25 + bonus + DISCOUNT * lesser)
    for terminal, of_first in (([True, True], project([1.0], [0.25])), ([False, True], following)):
        batch = batch_of(one_hot([0, 1], ACTIONS), [0.25, -0.5], terminal)
        new, metrics = update(state, batch, NOISE, IDLE)
        for of_actions in targets_of(new, [0.5, 0.5]):
            np.testing.assert_allclose(of_actions, [of_first, project([1.0], [-0.5])], atol=1e-5)
        # Against a uniform distribution the cross-entropy is log 5, whatever the target.
        assert float(metrics["critic_loss"]) == pytest.approx(2.0 * np.log(5.0), rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(0.0, abs=1e-6)
        assert float(metrics["clipped"]) == pytest.approx(0.0, abs=1e-9)


def test_critics_are_fitted_at_the_action_that_was_taken_alone(fresh):
    new, _ = update(flat(fresh), batch_of(one_hot([1], ACTIONS), [0.5], [True]), NOISE, IDLE)
    for net in first_gradient(new.critic_optimizer):
        gradient = net.head.bias.reshape(ACTIONS, -1)
        assert np.abs(gradient[[0, 2]]).max() < 1e-7
        np.testing.assert_allclose(0.2 - gradient[1], project([1.0], [0.5]), atol=1e-5)


def test_the_share_of_targets_beyond_the_atoms_is_told_and_they_go_to_the_outermost(fresh):
    batch = batch_of(one_hot([0], ACTIONS), [9.0, 0.0, -30.0, 0.0], [True])
    new, metrics = update(flat(fresh), batch, NOISE, IDLE)
    assert float(metrics["clipped"]) == pytest.approx(0.5)
    for of_actions in targets_of(new, [1.0]):
        np.testing.assert_allclose(of_actions, [[0.25, 0.0, 0.5, 0.0, 0.25]], atol=1e-5)


def test_the_target_of_each_row_mixes_the_lower_critics_of_that_row_with_the_moments_of_both_halves(fresh):
    other = jax.device_get(agent.init(jax.random.key(9), discrete_spec(ACTIONS)))
    state = flat(fresh)._replace(target_critics=other.target_critics, slow=fresh.slow)
    batch = batch_of(one_hot([0], ACTIONS), [0.3, -0.2, 1.1], [False, False, True])
    both = np.concatenate([batch.obs, batch.next_obs])
    outputs = np.stack([of_batch(net, both)[0][BATCH:] for net in other.target_critics.nets])
    mass = np.asarray(jax.nn.softmax(outputs.reshape(2, BATCH, ACTIONS, -1)))
    lower = (mass * ATOMS).sum(axis=-1).argmin(axis=0)  # [B, A]
    assert len({tuple(row) for row in lower}) > 1 and 0 < lower.sum() < lower.size  # sometimes one, sometimes the other
    chosen = np.where(lower[..., None] == 0, mass[0], mass[1])
    probability = np.asarray(jax.nn.softmax(of_averages(state.slow.actor, state.slow.seen, batch.next_obs)))
    entropy = -(probability * np.log(probability)).sum(axis=-1)
    mixture = (probability[..., None] * chosen).sum(axis=1)
    following = ATOMS + TEMPERATURE * entropy[:, None]
    values = batch.reward[:, None] + DISCOUNT * np.where(batch.terminal[:, None], 0.0, following)
    new, metrics = update(state, batch, NOISE, IDLE)
    for of_actions in targets_of(new, [1.0]):
        np.testing.assert_allclose(of_actions[0], projected_one_by_one(mixture, values, ATOMS).mean(axis=0), atol=1e-5)
    clipped = np.where(np.abs(values) > LIMIT, mixture, 0.0).sum(axis=-1).mean()
    assert float(metrics["clipped"]) == pytest.approx(float(clipped), abs=1e-5)


def test_what_follows_terminal_steps_changes_moments_and_no_target(fresh):
    batch = batch_of(one_hot([0, 1, 2], ACTIONS), [0.5, -1.0], [True])
    elsewhere = batch._replace(next_obs=batch.next_obs + 5.0)
    results = [update(flat(fresh), given, NOISE, IDLE)[0] for given in (batch, elsewhere)]
    gradients = [first_gradient(new.critic_optimizer) for new in results]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one.head.bias, other.head.bias, atol=1e-6)
    assert changed(*(new.critics.seen for new in results))


def test_rewards_are_divided_by_the_size_that_was_seen(fresh):
    assert agent.watch is None
    auto = make_xqc_discrete(dataclasses.replace(CONFIG, reward_scale="auto"))
    seen = RewardScale(np.float32(1.0), np.float32(16.0), np.float32(5.0))
    batch = batch_of(one_hot([0], ACTIONS), [3.0], [True])
    new, _ = jit(auto.update)(flat(fresh)._replace(reward_scale=seen), batch, NOISE, IDLE)
    for of_actions in targets_of(new, [1.0]):
        np.testing.assert_allclose(of_actions[0], project([1.0], [0.75]), atol=1e-5)
    watched = auto.watch(fresh, np.ones((16, 4), np.float32), np.zeros((16, 4), bool))
    assert float(watched.reward_scale.chunks) == 1.0


# What moves, and how far


def test_kernels_of_critics_and_actor_have_columns_of_norm_1_after_every_update(fresh):
    state, rng = fresh, np.random.default_rng(1)
    for number in range(7):
        batch = batch_of(one_hot([0, 1, 2], ACTIONS), rng.normal(size=BATCH), [False, False, True])
        new, _ = update(state, batch, NOISE, np.int32(number))
        assert changed(state.critics.nets, new.critics.nets) and changed(state.target_critics, new.target_critics)
        assert changed(state.slow, new.slow) == (number % CONFIG.policy_every == 0)
        for net in (*new.critics.nets, new.slow.actor):
            for kernel in kernels_of(net):
                np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)
        state = new


def test_critics_see_both_halves_of_a_batch_together_and_the_actor_its_observations(fresh):
    batch = batch_of(one_hot([0, 1], ACTIONS), [1.0], [False, True])
    batch = batch._replace(obs=batch.obs + 3.0, next_obs=2.0 * batch.next_obs - 5.0)  # halves that differ
    new, _ = update(fresh, batch, NOISE, MOVES)
    both = np.concatenate([batch.obs, batch.next_obs])
    for moments, seen in [*((own[0], both) for own in new.critics.seen), (new.slow.seen[0], batch.obs)]:
        np.testing.assert_allclose(moments.mean, 0.01 * seen.mean(axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moments.variance, 0.99 + 0.01 * seen.var(axis=0), rtol=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_an_update_with_a_plain_number_is_the_update_with_a_traced_one(fresh, number):
    assert agent.cycle == CONFIG.policy_every
    batch = batch_of(one_hot([0, 1, 2], ACTIONS), [1.0, -1.0], [False, True])
    plain = jit(agent.update, static_argnums=3)(fresh, batch, NOISE, number)
    traced = update(fresh, batch, NOISE, np.int32(number))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, traced)


# Actor and temperature


def test_the_actors_gradient_is_the_one_of_the_expected_soft_value(fresh):
    temperature, means = 0.5, np.array([1.0, 2.0, -1.0])
    others = np.array([2.0, 2.0, 0.0])  # never the lesser one
    state = flat(fresh, temperature=temperature)
    nets = tuple(
        normed_constant(net, certain(*values)) for net, values in zip(state.critics.nets, (means, others), strict=True)
    )
    state = state._replace(critics=state.critics._replace(nets=nets))
    batch = batch_of(one_hot([0, 1, 2], ACTIONS), means, [True])
    new, metrics = update(state, batch, NOISE, MOVES)
    # The critics are those after their own step.
    outputs = np.asarray(averaged_outputs(new.critics, batch.obs, "float32")).reshape(2, BATCH, ACTIONS, -1)
    values = (np.asarray(jax.nn.softmax(outputs)) * ATOMS).sum(axis=-1).min(axis=0).mean(axis=0)
    np.testing.assert_allclose(values, means, atol=0.05)
    assert float(metrics["entropy"]) == pytest.approx(ENTROPY, rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(-(PROBABILITY @ values + temperature * ENTROPY), abs=1e-4)
    # d/dlogit_a of Σ π (α log π − Q) = π_a (c_a − Σ π c) with c = α log π − Q
    cost = temperature * np.log(PROBABILITY) - values
    expected = PROBABILITY * (cost - PROBABILITY @ cost)
    np.testing.assert_allclose(first_gradient(new.slow.actor_optimizer).head.bias, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("probability", "direction"), [([0.98, 0.01, 0.01], 1.0), ([0.4, 0.3, 0.3], -1.0)], ids=["sure", "unsure"]
)
def test_the_temperature_rises_while_the_entropy_is_below_its_share_of_the_largest_and_falls_above(
    fresh, probability, direction
):
    state = flat(fresh, probability=np.array(probability))
    new, metrics = update(state, batch_of(one_hot([0], ACTIONS)), NOISE, MOVES)
    entropy = -(np.array(probability) @ np.log(probability))
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    gap = entropy - CONFIG.discrete_entropy * np.log(ACTIONS)
    assert np.sign(-gap) == direction
    assert float(first_gradient(new.slow.temperature_optimizer)) == pytest.approx(gap, rel=1e-4)
    # Adam's first step is the learning rate, whatever the gradient's size.
    moved = float(new.slow.log_temperature - state.slow.log_temperature)
    assert moved == pytest.approx(direction * RATE, rel=1e-2)


def test_the_policy_on_the_host_is_the_actor_with_its_averages_and_an_update_draws_nothing(fresh):
    assert agent.acting is acting.CATEGORICAL
    assert agent.noise(jax.random.key(0), batch_of(one_hot([0], ACTIONS))).size == 0
    state = fresh
    for number in range(4):
        batch = batch_of(one_hot([0, 1, 2], ACTIONS), [1.0])
        state, _ = update(state, batch._replace(obs=3.0 * batch.obs + 10.0), NOISE, np.int32(number))
    obs = np.random.default_rng(4).normal(10.0, 3.0, size=(20, OBS)).astype(np.float32)
    logits = of_averages(state.slow.actor, state.slow.seen, obs)
    np.testing.assert_allclose(acting.outputs_of(on_host(agent.policy(state)), obs), logits, atol=1e-5)
    found = np.stack([greedy(agent, state, one) for one in obs])
    np.testing.assert_array_equal(found.argmax(axis=-1), np.asarray(logits).argmax(axis=-1))


# What it learns

SITUATIONS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
REWARDS = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]], np.float32)


def bandit(share: float, n_updates: int):
    """The agent after some updates on three situations, its state, and the last metrics."""
    sizes = {"hidden": 16, "actor_hidden": 16, "layers": 2, "atoms": 41, "policy_every": 1}
    one = make_xqc_discrete(dataclasses.replace(CONFIG, **sizes, discrete_entropy=share, learning_rate=1e-2))
    learn, (which, action) = jit(one.update), np.divmod(np.arange(9), ACTIONS)
    batch = batch_of(one_hot(action, ACTIONS), REWARDS[which, action], [True], SITUATIONS[which])
    state = one.init(jax.random.key(1), discrete_spec(ACTIONS))
    for number in range(n_updates):
        state, metrics = learn(state, batch, NOISE, np.int32(number))
    return one, state, metrics


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_few_hundred_updates_find_the_best_action_of_each_situation_at_the_entropy_asked_for(share):
    one, state, metrics = bandit(share, 600)
    assert [int(greedy(one, state, obs).argmax()) for obs in SITUATIONS] == REWARDS.argmax(axis=1).tolist()
    assert float(metrics["entropy"]) == pytest.approx(share * np.log(ACTIONS), abs=0.05)

"""XQC on numbers small enough to work out by hand, and on a bandit it has to solve."""

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
    continuous_spec,
    first_gradient,
    greedy,
    kernels_of,
    normed_constant,
    projected_one_by_one,
)

from diaster.actors import acting
from diaster.agents.categorical import atoms_of
from diaster.agents.reward_scale import RewardScale, add_rewards, init_reward_scale
from diaster.agents.tanh_gaussian import tanh_gaussian
from diaster.agents.twins import averaged_outputs
from diaster.agents.xqc import annealed_adam, make_xqc
from diaster.config import XqcConfig
from diaster.nn.normed import Moments, of_averages, of_batch

RATE, TARGET_RATE, DISCOUNT, TEMPERATURE, LIMIT = 3e-3, 0.25, 0.9, 0.8, 2.0
CONFIG = XqcConfig(
    hidden=8,
    actor_hidden=8,
    layers=1,
    learning_rate=RATE,
    annealing_updates=0,
    discount=DISCOUNT,
    target_rate=TARGET_RATE,
    initial_temperature=TEMPERATURE,
    policy_every=3,
    atoms=5,
    value_limit=LIMIT,
    reward_scale=1.0,
)
ATOMS = np.asarray(atoms_of(LIMIT, CONFIG.atoms))
LOG_ROOT_TWO_PI = 0.5 * np.log(2.0 * np.pi)
MOVES, IDLE = np.int32(3), np.int32(1)  # numbers of updates with and without a step of the actor

agent = make_xqc(CONFIG)
update = jit(agent.update)


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), continuous_spec()))


def certain(value: float):
    """The logits of a distribution that is all on one atom."""
    return np.where(value == ATOMS, 50.0, 0.0)


def flat(state, targets=(0.0, 0.0), log_std=-1.0, temperature=0.5):
    """Critics that find all values equally likely, targets that are certain, and a policy with the mean 0."""
    nets = state.critics.nets
    return state._replace(
        critics=state.critics._replace(nets=tuple(normed_constant(net, [0.0] * len(ATOMS)) for net in nets)),
        target_critics=state.target_critics._replace(
            nets=tuple(normed_constant(net, certain(value)) for net, value in zip(nets, targets, strict=True))
        ),
        slow=state.slow._replace(
            actor=normed_constant(state.slow.actor, [0.0, log_std]), log_temperature=np.float32(np.log(temperature))
        ),
    )


def actions(*values: float):
    return np.resize(np.array(values, np.float32), (BATCH, 1))


def random_actions(seed: int = 3):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (BATCH, 1)).astype(np.float32)


def constant_noise(of_next_action: float = 0.0, of_action: float = 0.0):
    """Without noise the policy takes its mean, and log π = −log σ − ½ log 2π there."""
    return np.stack([np.full((BATCH, 1), value, np.float32) for value in (of_next_action, of_action)])


def mean_targets(new):
    """What each critic was fitted to, from its gradient: softmax − target, where softmax was uniform."""
    return [np.full(len(ATOMS), 1.0 / len(ATOMS)) - net.head.bias for net in first_gradient(new.critic_optimizer)]


def between(value: float):
    """One value on the atoms."""
    lower = int(np.clip(np.floor(value + LIMIT), 0, len(ATOMS) - 2))  # atoms are 1 apart
    share = np.clip(value - ATOMS[lower], 0.0, 1.0)
    mass = np.zeros(len(ATOMS))
    mass[lower], mass[lower + 1] = 1.0 - share, share
    return mass


def pairs_of(state, batch, noise):
    """(s, a) and (s′, a′) below one another, and log π(a′|s′)."""
    outputs = of_averages(state.slow.actor, state.slow.seen, batch.next_obs)
    next_action, log_prob = tanh_gaussian(outputs, noise[0])
    of_next = np.concatenate([batch.next_obs, next_action], axis=-1)
    return np.concatenate([np.concatenate([batch.obs, batch.action], axis=-1), of_next]), np.asarray(log_prob)


# The target


def test_a_terminal_step_is_worth_its_reward_and_others_the_lesser_targets_discounted_value_as_well(fresh):
    state = flat(fresh, targets=(1.0, -1.0), log_std=-1.0, temperature=0.5)
    log_prob = 1.0 - LOG_ROOT_TWO_PI
    future = DISCOUNT * (-1.0 - 0.5 * log_prob)
    for terminal, values in (([True, True], [0.75, -0.5]), ([False, True], [0.75 + future, -0.5])):
        new, metrics = update(state, batch_of(actions(0.5), [0.75, -0.5], terminal), constant_noise(), IDLE)
        expected = np.mean([between(value) for value in values], axis=0)
        for target in mean_targets(new):
            np.testing.assert_allclose(target, expected, atol=1e-5)
        # Against a uniform distribution the cross-entropy is log 5, whatever the target.
        assert float(metrics["critic_loss"]) == pytest.approx(2.0 * np.log(5.0), rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(0.0, abs=1e-6)
        assert float(metrics["clipped"]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("targets", [(-1.0, 2.0), (2.0, -1.0)])
def test_the_lower_of_the_two_target_critics_is_followed_whichever_it_is(fresh, targets):
    # A policy of entropy 0: only the critics' values count.
    state = flat(fresh, targets, log_std=-LOG_ROOT_TWO_PI)
    new, _ = update(state, batch_of(actions(0.5)), constant_noise(), IDLE)
    for target in mean_targets(new):
        np.testing.assert_allclose(target, between(-DISCOUNT), atol=1e-5)


def test_the_share_of_targets_beyond_the_atoms_is_told_and_they_go_to_the_outermost(fresh):
    state = flat(fresh)
    new, metrics = update(state, batch_of(actions(0.5), [9.0, 0.0, -30.0, 0.0], [True]), constant_noise(), IDLE)
    assert float(metrics["clipped"]) == pytest.approx(0.5)
    for target in mean_targets(new):
        np.testing.assert_allclose(target, [0.25, 0.0, 0.5, 0.0, 0.25], atol=1e-5)


def test_the_target_of_each_row_comes_from_the_lower_critic_in_that_row_with_the_moments_of_both_halves(fresh):
    other = jax.device_get(agent.init(jax.random.key(9), continuous_spec()))
    state = flat(fresh)._replace(target_critics=other.target_critics, slow=fresh.slow)
    batch = batch_of(random_actions(), [0.3, -0.2, 1.1], [False, False, True])
    noise = np.random.default_rng(2).normal(size=(2, BATCH, 1)).astype(np.float32)
    pairs, log_prob = pairs_of(state, batch, noise)
    mass = np.stack([jax.nn.softmax(of_batch(net, pairs)[0][BATCH:]) for net in other.target_critics.nets])
    lower = (mass * ATOMS).sum(axis=-1).argmin(axis=0)
    assert 0 < lower.sum() < BATCH  # sometimes one, sometimes the other
    following = ATOMS - TEMPERATURE * log_prob[:, None]
    values = batch.reward[:, None] + DISCOUNT * np.where(batch.terminal[:, None], 0.0, following)
    chosen = mass[lower, np.arange(BATCH)]
    expected = projected_one_by_one(chosen, values, ATOMS).mean(axis=0)
    new, metrics = update(state, batch, noise, IDLE)
    for target in mean_targets(new):
        np.testing.assert_allclose(target, expected, atol=1e-5)
    clipped = np.where(np.abs(values) > LIMIT, chosen, 0.0).sum(axis=-1).mean()
    assert float(metrics["clipped"]) == pytest.approx(float(clipped), abs=1e-5)


def test_the_critics_loss_is_the_cross_entropy_of_both_added_up(fresh):
    logits = [np.array([0.0, 1.0, -1.0, 2.0, 0.5]), np.array([1.0, 0.0, 0.0, -2.0, 0.0])]
    state = flat(fresh)
    nets = tuple(normed_constant(net, own) for net, own in zip(state.critics.nets, logits, strict=True))
    state = state._replace(critics=state.critics._replace(nets=nets))
    _, metrics = update(state, batch_of(actions(0.5), [0.75], [True]), constant_noise(), IDLE)
    log_mass = [own - np.log(np.exp(own).sum()) for own in logits]
    assert float(metrics["critic_loss"]) == pytest.approx(-sum(between(0.75) @ own for own in log_mass), rel=1e-5)
    means = [np.exp(own) @ ATOMS for own in log_mass]
    assert float(metrics["q_value"]) == pytest.approx(np.mean(means), rel=1e-5)


def test_what_follows_terminal_steps_changes_moments_and_no_target(fresh):
    batch = batch_of(random_actions(), [0.5, -1.0], [True])
    elsewhere = batch._replace(next_obs=batch.next_obs + 5.0)
    results = [update(flat(fresh), given, constant_noise(), IDLE)[0] for given in (batch, elsewhere)]
    for one, other in zip(*map(mean_targets, results), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert changed(*(new.critics.seen for new in results))


# Rewards


@pytest.fixture(scope="module")
def auto():
    return make_xqc(dataclasses.replace(CONFIG, reward_scale="auto"))


def test_rewards_are_divided_by_the_number_given_or_by_the_size_that_was_seen(fresh, auto):
    four = make_xqc(dataclasses.replace(CONFIG, reward_scale=4.0))
    batch, noise = batch_of(actions(0.5), [3.0, -2.0], [True]), constant_noise()
    seen = RewardScale(np.float32(1.0), np.float32(16.0), np.float32(5.0))
    for one in (four, auto):
        new, _ = jit(one.update)(flat(fresh)._replace(reward_scale=seen), batch, noise, IDLE)
        expected = np.mean([between(0.75), between(-0.5)], axis=0)
        for target in mean_targets(new):
            np.testing.assert_allclose(target, expected, atol=1e-5)


def test_it_watches_rewards_only_where_their_size_is_not_given(fresh, auto):
    assert agent.watch is None
    rng = np.random.default_rng(0)
    rewards, is_last = rng.normal(size=(16, 4)).astype(np.float32), rng.random((16, 4)) < 0.2
    watched = auto.watch(fresh, rewards, is_last)
    expected = fresh._replace(reward_scale=add_rewards(init_reward_scale(), rewards, is_last, DISCOUNT))
    jax.tree.map(np.testing.assert_array_equal, watched, expected)
    assert float(watched.reward_scale.chunks) == 1.0


# What moves, and how far


def test_kernels_of_critics_and_actor_have_columns_of_norm_1_after_every_update(fresh):
    state, rng = fresh, np.random.default_rng(1)
    for number in range(7):
        batch = batch_of(random_actions(number), rng.normal(size=BATCH), [False, False, True])
        noise = rng.normal(size=(2, BATCH, 1)).astype(np.float32)
        new, _ = update(state, batch, noise, np.int32(number))
        assert changed(state.critics.nets, new.critics.nets)
        for net in (*new.critics.nets, new.slow.actor):
            for kernel in kernels_of(net):
                np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)
        state = new


def test_critics_see_both_halves_of_a_batch_together_and_the_actor_its_observations(fresh):
    batch = batch_of(random_actions(), [1.0], [False, True])
    batch = batch._replace(obs=batch.obs + 3.0, next_obs=2.0 * batch.next_obs - 5.0)  # halves that differ
    noise = np.random.default_rng(2).normal(size=(2, BATCH, 1)).astype(np.float32)
    new, _ = update(fresh, batch, noise, MOVES)
    pairs, _ = pairs_of(fresh, batch, noise)
    for moments, seen in [*((own[0], pairs) for own in new.critics.seen), (new.slow.seen[0], batch.obs)]:
        np.testing.assert_allclose(moments.mean, 0.01 * seen.mean(axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moments.variance, 0.99 + 0.01 * seen.var(axis=0), rtol=1e-5)
    # The same of hidden layers.
    for net, own in zip(fresh.critics.nets, new.critics.seen, strict=True):
        for moments, of_pairs in zip(own, of_batch(net, pairs)[1], strict=True):
            expected = Moments(0.01 * of_pairs.mean, 0.99 + 0.01 * of_pairs.variance)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), moments, expected)


def test_critics_and_targets_move_in_every_update_and_actor_and_temperature_in_every_third(fresh):
    state, moved, losses = fresh, [], []
    for number in range(7):
        batch = batch_of(random_actions(number), [1.0, float(number)])
        new, metrics = update(state, batch, constant_noise(), np.int32(number))
        assert changed(state.critics, new.critics) and changed(state.target_critics, new.target_critics)
        parts = [changed(getattr(state.slow, name), getattr(new.slow, name)) for name in new.slow._fields]
        assert len(set(parts)) == 1  # all of them or none
        moved += [number] if parts[0] else []
        losses.append(float(metrics["actor_loss"]))
        state = new
    assert moved == [0, 3, 6]
    assert losses[0] == losses[1] == losses[2] != losses[3] == losses[4]  # the last one, until there is a newer one


@pytest.mark.parametrize("number", [0, 1])
def test_an_update_with_a_plain_number_is_the_update_with_a_traced_one(fresh, number):
    assert agent.cycle == CONFIG.policy_every
    batch, noise = batch_of(random_actions(), [1.0, -1.0], [False, True]), constant_noise(0.3, -0.2)
    plain = jit(agent.update, static_argnums=3)(fresh, batch, noise, number)
    traced = update(fresh, batch, noise, np.int32(number))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, traced)


def test_targets_and_what_they_have_seen_follow_the_updated_critics_by_the_target_rate(fresh):
    rng = np.random.default_rng(1)
    before = jax.tree.map(lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32), fresh.critics)
    state = fresh._replace(target_critics=before)
    new, _ = update(state, batch_of(random_actions(), [1.0, 2.0], [False, True]), constant_noise(), IDLE)
    expected = jax.tree.map(lambda s, f: (1.0 - TARGET_RATE) * s + TARGET_RATE * np.asarray(f), before, new.critics)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.target_critics, expected)


def test_targets_begin_as_copies_and_the_two_critics_differ(fresh):
    jax.tree.map(np.testing.assert_array_equal, fresh.target_critics, fresh.critics)
    assert changed(*fresh.critics.nets)
    assert float(np.exp(fresh.slow.log_temperature)) == pytest.approx(TEMPERATURE)


@pytest.mark.parametrize(("every", "n_steps"), [(1, 9), (3, 3)])
def test_the_step_size_falls_along_a_straight_line_and_stays_at_its_end(every, n_steps):
    config = dataclasses.replace(CONFIG, learning_rate=0.1, final_learning_rate=0.01, annealing_updates=9)
    adam, value = annealed_adam(config, every), np.zeros(())
    state, found = adam.init(value), []
    for _ in range(n_steps + 3):
        change, state = adam.update(np.ones(()), state)  # a gradient that stays: each change is the step size
        found.append(-float(change))
    expected = [0.1 - 0.09 * min(number / n_steps, 1.0) for number in range(n_steps + 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("given", [0, "auto"])  # auto only where an agent is loaded to act: a run has a number
def test_without_annealing_the_step_size_stays(given):
    adam = annealed_adam(dataclasses.replace(CONFIG, annealing_updates=given))
    state = adam.init(np.zeros(()))
    for _ in range(5):
        change, state = adam.update(np.ones(()), state)
        assert float(change) == pytest.approx(-RATE, rel=1e-4)


# Actor and temperature


@pytest.mark.parametrize(("log_std", "direction"), [(-5.0, 1.0), (-1.6, 1.0), (-1.3, -1.0), (0.5, -1.0)])
def test_the_temperature_rises_while_the_entropy_is_below_minus_a_half_per_dimension_and_falls_above(
    fresh, log_std, direction
):
    state = flat(fresh, log_std=log_std, temperature=0.5)
    new, metrics = update(state, batch_of(random_actions()), constant_noise(), MOVES)
    entropy = log_std + LOG_ROOT_TWO_PI
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    assert np.sign(-0.5 - entropy) == direction
    assert float(metrics["temperature"]) == pytest.approx(0.5)
    # Adam's first step is the learning rate, whatever the gradient's size.
    moved = float(new.slow.log_temperature - state.slow.log_temperature)
    assert moved == pytest.approx(direction * RATE, rel=1e-2)


def sloping(critics, slope: float, offset: float):
    """A critic whose mean rises or falls with the action: relu(1 ± a) tips a balance between the outermost atoms."""
    net, seen = critics.nets[0], critics.seen[0]
    kernel, weight = np.zeros_like(net.layers[0].kernel), np.zeros_like(net.head.weight)
    kernel[OBS, 0], kernel[OBS, 1] = 1.0, -1.0
    weight[0, -1], weight[1, 0] = slope, slope
    layer = net.layers[0]._replace(kernel=kernel, norm=net.layers[0].norm._replace(shift=np.ones_like(kernel[0])))
    bias = np.zeros_like(net.head.bias)
    bias[-1], bias[0] = offset, -offset
    head = net.head._replace(weight=weight, bias=bias)
    return net._replace(layers=(layer,), head=head), jax.tree.map(np.copy, seen)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_the_actor_climbs_the_lower_critic_as_it_is_with_its_averages(fresh, direction):
    # The lower one leads one way, and the higher one, more steeply, the other.
    nets, seen = zip(sloping(fresh.critics, direction, -3.0), sloping(fresh.critics, -2 * direction, 3.0), strict=True)
    state = flat(fresh, temperature=1e-6)
    state = state._replace(critics=state.critics._replace(nets=nets, seen=seen))
    batch = batch_of(random_actions(), [0.0], [True])
    new, metrics = update(state, batch, constant_noise(), MOVES)
    assert float(new.slow.actor.head.bias[0]) == pytest.approx(direction * RATE, rel=1e-2)
    # The actor's action is 0 everywhere; the critics are those after their own step.
    pairs = np.concatenate([batch.obs, np.zeros((BATCH, 1), np.float32)], axis=-1)
    means = (jax.nn.softmax(averaged_outputs(new.critics, pairs, "float32")) * ATOMS).sum(axis=-1)
    assert (np.asarray(means[0]) < np.asarray(means[1])).all()
    log_prob = 1.0 - LOG_ROOT_TWO_PI
    assert float(metrics["actor_loss"]) == pytest.approx(float(1e-6 * log_prob - means[0].mean()), rel=1e-4)


def test_the_next_action_takes_the_first_noise_and_the_actor_the_second(fresh):
    state = flat(fresh, log_std=-1.0, temperature=0.5)

    def log_prob(z):
        raw = np.exp(-1.0) * z
        return -0.5 * z**2 + 1.0 - LOG_ROOT_TWO_PI - np.log(1.0 - np.tanh(raw) ** 2)

    new, metrics = update(state, batch_of(random_actions()), constant_noise(0.7, -1.3), MOVES)
    for target in mean_targets(new):
        np.testing.assert_allclose(target, between(-DISCOUNT * 0.5 * log_prob(0.7)), atol=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(-log_prob(-1.3), rel=1e-4)


def test_the_policy_on_the_host_is_the_actor_with_its_averages(fresh):
    assert agent.acting is acting.TANH_GAUSSIAN
    assert agent.noise(jax.random.key(0), batch_of(random_actions())).shape == (2, BATCH, 1)
    state = fresh
    for number in range(4):
        batch = batch_of(random_actions(number), [1.0])
        state, _ = update(state, batch._replace(obs=3.0 * batch.obs + 10.0), constant_noise(), np.int32(number))
    obs = np.random.default_rng(4).normal(10.0, 3.0, size=(20, OBS)).astype(np.float32)
    expected = np.tanh(of_averages(state.slow.actor, state.slow.seen, obs)[:, :1])
    np.testing.assert_allclose(np.stack([greedy(agent, state, one) for one in obs]), expected, atol=1e-5)


def test_a_few_hundred_updates_find_the_best_action_of_two_situations():
    # With as many steps of the actor as of the critics, and a step size that falls, ten seeds end within 0.08.
    sizes = {"hidden": 16, "actor_hidden": 16, "layers": 2, "atoms": 41}
    schedule = {"policy_every": 1, "annealing_updates": 900, "final_learning_rate": 1e-4}
    one = make_xqc(dataclasses.replace(CONFIG, **sizes, **schedule, initial_temperature=0.01))
    learn, rng = jit(one.update), np.random.default_rng(0)
    best = {(1.0, 0.0): 0.5, (0.0, 1.0): -0.3}
    obs = np.resize(np.array(list(best), np.float32), (BATCH, OBS))
    wanted = np.resize(np.array(list(best.values()), np.float32), BATCH)
    state, losses = one.init(jax.random.key(1), continuous_spec()), []
    for number in range(900):
        action = rng.uniform(-1.0, 1.0, size=(BATCH, 1)).astype(np.float32)
        batch = batch_of(action, -((action[:, 0] - wanted) ** 2), [True], obs, obs)
        noise = rng.normal(size=(2, BATCH, 1)).astype(np.float32)
        state, metrics = learn(state, batch, noise, np.int32(number))
        losses.append(float(metrics["critic_loss"]))
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:5])
    for situation, action in best.items():
        assert greedy(one, state, situation)[0] == pytest.approx(action, abs=0.15)

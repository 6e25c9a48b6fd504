"""DDPG on numbers small enough to work out by hand, and on a bandit it has to solve."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import BATCH, OBS, batch_of, constant, continuous_spec, first_gradient, greedy, straight

from diaster.actors import acting
from diaster.agents.ddpg import make_ddpg
from diaster.config import DdpgConfig

RATE, TARGET_RATE, DISCOUNT = 3e-3, 0.25, 0.9
INPUTS = OBS + 1

agent = make_ddpg(
    DdpgConfig(hidden=16, learning_rate=RATE, discount=DISCOUNT, target_rate=TARGET_RATE, exploration_noise=0.3)
)
NOISE, NUMBER = np.zeros((0,), np.float32), np.int32(0)
update = jit(agent.update)


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), continuous_spec()))


def with_nets(state, critic=None, target_critic=None, actor=None, target_actor=None):
    return state._replace(
        actor=actor or constant(OBS, 0.0),
        critic=critic or constant(INPUTS, 0.0),
        target_actor=target_actor or constant(OBS, 0.0),
        target_critic=target_critic or constant(INPUTS, 0.0),
    )


def along_the_action(slope: float):
    """A critic that rises with the action in a straight line."""
    return straight([[0.0], [0.0], [slope]], [0.0])


def actions(*values: float):
    return np.resize(np.array(values, np.float32), (BATCH, 1))


def test_a_terminal_step_is_worth_its_reward_and_others_their_discounted_future_as_well(fresh):
    state = with_nets(fresh, constant(INPUTS, 1.0), constant(INPUTS, 3.0))
    for terminal, targets in (([True, True], [10.0, -1.0]), ([False, True], [10.0 + DISCOUNT * 3.0, -1.0])):
        new, metrics = update(state, batch_of(actions(0.5), [10.0, -1.0], terminal), NOISE, NUMBER)
        assert float(metrics["critic_loss"]) == pytest.approx(np.mean((1.0 - np.array(targets)) ** 2), rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(1.0)
        gradient = first_gradient(new.critic_optimizer)
        assert gradient[-1].bias[0] == pytest.approx(2.0 * (1.0 - np.mean(targets)), rel=1e-5)


def test_the_future_is_the_target_critics_value_of_the_target_actors_action(fresh):
    next_obs = [1.0, -2.0]
    target_actor = straight([[0.5], [0.1]], [0.2])  # 0.5 · 1 − 0.1 · 2 + 0.2 = 0.5
    target_critic = straight([[1.0], [0.25], [2.0]], [0.0])  # 1 − 0.5 + 2 tanh(0.5)
    # The learning nets would give quite another value.
    state = with_nets(fresh, constant(INPUTS, 0.0), target_critic, constant(OBS, -3.0), target_actor)
    _, metrics = update(state, batch_of(actions(0.0), next_obs=next_obs), NOISE, NUMBER)
    future = DISCOUNT * (1.0 - 0.5 + 2.0 * np.tanh(0.5))
    assert float(metrics["critic_loss"]) == pytest.approx(future**2, rel=1e-5)


@pytest.mark.parametrize("slope", [1.5, -0.5])
def test_the_actor_climbs_the_critic_in_every_update(fresh, slope):
    raw = 0.4
    state = with_nets(fresh, along_the_action(slope), actor=constant(OBS, raw))
    # A terminal step whose reward is its value: the critic stays as it is, to Adam's rounding.
    batch = batch_of(actions(0.5), [slope * 0.5], [True])
    for number in (0, 1):
        new, metrics = update(state, batch, NOISE, np.int32(number))
        assert float(metrics["actor_loss"]) == pytest.approx(-slope * np.tanh(raw), rel=1e-2)
        gradient = first_gradient(new.actor_optimizer)
        assert gradient[-1].bias[0] == pytest.approx(-slope * (1.0 - np.tanh(raw) ** 2), rel=1e-2)
        assert float(new.actor[-1].bias[0]) == pytest.approx(raw + np.sign(slope) * RATE, rel=1e-4)


def test_targets_follow_the_updated_nets_by_the_target_rate(fresh):
    rng = np.random.default_rng(1)

    def random_like(net):
        return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), net)

    before = fresh._replace(target_actor=random_like(fresh.actor), target_critic=random_like(fresh.critic))
    new, _ = update(before, batch_of(actions(0.3), [1.0]), NOISE, NUMBER)
    for slow, fast, after in (
        (before.target_actor, new.actor, new.target_actor),
        (before.target_critic, new.critic, new.target_critic),
    ):
        expected = jax.tree.map(lambda s, f: (1.0 - TARGET_RATE) * s + TARGET_RATE * np.asarray(f), slow, fast)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, expected)


def test_targets_begin_as_copies(fresh):
    jax.tree.map(np.testing.assert_array_equal, fresh.target_critic, fresh.critic)
    jax.tree.map(np.testing.assert_array_equal, fresh.target_actor, fresh.actor)


def test_it_explores_with_the_noise_asked_for_and_an_update_draws_nothing(fresh):
    assert agent.acting is acting.NOISY_TANH
    assert float(agent.policy(fresh).exploration) == pytest.approx(0.3)
    assert agent.noise(jax.random.key(0), batch_of(actions(0.0))).size == 0


def test_a_few_hundred_updates_find_the_best_action_of_two_situations():
    rng = np.random.default_rng(0)
    best = {(1.0, 0.0): 0.5, (0.0, 1.0): -0.3}
    obs = np.resize(np.array(list(best), np.float32), (BATCH, OBS))
    wanted = np.resize(np.array(list(best.values()), np.float32), BATCH)
    state = agent.init(jax.random.key(1), continuous_spec())
    for number in range(500):
        action = rng.uniform(-1.0, 1.0, size=(BATCH, 1)).astype(np.float32)
        batch = batch_of(action, -((action[:, 0] - wanted) ** 2), [True], obs)
        state, _ = update(state, batch, NOISE, np.int32(number))
    for situation, action in best.items():
        assert greedy(agent, state, situation)[0] == pytest.approx(action, abs=0.15)

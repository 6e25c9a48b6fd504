"""DQN on numbers small enough to work out by hand, and on a chain it has to find the end of."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import BATCH, OBS, batch_of, changed, constant, discrete_spec, first_gradient, greedy, one_hot

from diaster.actors import acting
from diaster.agents.dqn import exploration, learning_rate, make_dqn
from diaster.config import DqnConfig

RATE, TARGET_RATE, DISCOUNT, ACTIONS = 3e-3, 0.25, 0.9, 3
CONFIG = DqnConfig(
    hidden=16,
    learning_rate=RATE,
    discount=DISCOUNT,
    target_rate=TARGET_RATE,
    double=True,
    target_every=1,
    critic_loss="huber",
)
NOISE, NUMBER = np.zeros((0,), np.float32), np.int32(0)


class Subject:
    def __init__(self, **settings) -> None:
        self.agent = make_dqn(dataclasses.replace(CONFIG, **settings))
        self.update = jit(self.agent.update)

    def init(self, seed: int = 0):
        return jax.device_get(self.agent.init(jax.random.key(seed), discrete_spec(ACTIONS)))


double, plain, delayed = Subject(), Subject(double=False), Subject(target_every=3)


def with_values(net, target_net):
    """A state whose nets have the same values everywhere."""
    return double.init()._replace(net=constant(OBS, *net), target_net=constant(OBS, *target_net))


def huber(error):
    return np.where(np.abs(error) <= 1.0, 0.5 * error**2, np.abs(error) - 0.5)


def test_a_terminal_step_is_worth_its_reward_and_others_their_discounted_future_as_well():
    state = with_values([1.0, 2.0, 0.5], [5.0, 3.0, 4.0])
    action = one_hot([0, 1], ACTIONS)
    for terminal, targets in (([True, True], [1.5, -1.0]), ([False, True], [1.5 + DISCOUNT * 3.0, -1.0])):
        new, metrics = double.update(state, batch_of(action, [1.5, -1.0], terminal), NOISE, NUMBER)
        error = np.array([1.0, 2.0]) - np.array(targets)
        assert float(metrics["critic_loss"]) == pytest.approx(np.mean(huber(error)), rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(1.5)
        # Huber's slope is the error, at most 1; each of the two actions is taken in half of the steps, the third never.
        expected = [*(np.clip(error, -1.0, 1.0) / 2.0), 0.0]
        np.testing.assert_allclose(first_gradient(new.optimizer)[-1].bias, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("net", "future_of_double", "future_of_plain"),
    [([0.0, 9.0, 1.0], 3.0, 5.0), ([9.0, 0.0, 1.0], 5.0, 5.0)],
    ids=["where the largest values are of different actions", "where they are of one action"],
)
def test_double_takes_the_target_nets_value_of_the_learning_nets_choice(net, future_of_double, future_of_plain):
    state = with_values(net, [5.0, 3.0, 4.0])
    batch = batch_of(one_hot([2], ACTIONS))
    for subject, future in ((double, future_of_double), (plain, future_of_plain)):
        _, metrics = subject.update(state, batch, NOISE, NUMBER)
        assert float(metrics["critic_loss"]) == pytest.approx(huber(1.0 - DISCOUNT * future), rel=1e-5)


def test_the_target_net_follows_every_third_update_if_that_is_asked_for():
    state, moved = delayed.init(), []
    for number in range(7):
        batch = batch_of(one_hot([0, 1, 2], ACTIONS), [1.0, float(number)])
        new, _ = delayed.update(state, batch, NOISE, np.int32(number))
        assert changed(state.net, new.net)
        if changed(state.target_net, new.target_net):
            moved.append(number)
            mixed = jax.tree.map(
                lambda slow, fast: (1.0 - TARGET_RATE) * slow + TARGET_RATE * np.asarray(fast),
                state.target_net,
                new.net,
            )
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.target_net, mixed)
        state = new
    assert moved == [2, 5]


def test_the_target_net_begins_as_a_copy():
    state = double.init()
    jax.tree.map(np.testing.assert_array_equal, state.target_net, state.net)


@pytest.mark.parametrize(
    ("updates", "every", "made", "expected"),
    [
        (1, 1, 0, 1.0),
        (1, 1, 50, 0.6),  # halfway from 1 to 0.2
        (1, 1, 100, 0.2),
        (1, 1, 10**9, 0.2),
        (1, 2, 25, 0.6),  # every update stands for two steps
        (4, 1, 200, 0.6),  # four updates stand for one
        (0, 1, 0, 1.0),  # no updates, no steps to count
    ],
)
def test_random_actions_fall_in_a_straight_line_over_environment_steps(updates, every, made, expected):
    settings = {"exploration_final": 0.2, "exploration_steps": 100, "updates": updates, "every": every}
    config = dataclasses.replace(CONFIG, **settings)
    assert float(exploration(config, np.int32(made))) == pytest.approx(expected)
    state = make_dqn(config).init(jax.random.key(0), discrete_spec(ACTIONS))._replace(updates=np.int32(made))
    assert float(make_dqn(config).policy(state).exploration) == pytest.approx(expected)


def test_exploration_counts_a_seeds_own_updates_and_not_their_numbers():
    state = double.init()
    for number in (700, 701):
        state, metrics = double.update(state, batch_of(one_hot([0], ACTIONS)), NOISE, np.int32(number))
    assert int(state.updates) == 2
    steps = CONFIG.every / CONFIG.updates
    one_update = 1.0 - (1.0 - CONFIG.exploration_final) * steps / CONFIG.exploration_steps
    assert float(metrics["exploration"]) == pytest.approx(one_update)  # at the update, that is before it counts


def test_it_acts_greedily_but_for_its_exploration_and_an_update_draws_nothing():
    assert double.agent.acting is acting.EPSILON_GREEDY
    assert double.agent.noise(jax.random.key(0), batch_of(one_hot([0], ACTIONS))).size == 0
    assert greedy(double.agent, with_values([1.0, 3.0, 2.0], [9.0, 0.0, 0.0]), [0.3, -0.4]).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("subject", [double, plain], ids=["double", "plain"])
def test_a_few_hundred_updates_learn_to_wait_for_the_end_of_a_chain(subject):
    """In the first of two places 0 ends with 0.5 and 1 leads on; in the second 2 ends with 1. All else just stays."""
    first, second = [1.0, 0.0], [0.0, 1.0]
    steps = [
        (first, 0, 0.5, first, True), (first, 1, 0.0, second, False), (first, 2, 0.0, first, False),
        (second, 0, 0.0, second, False), (second, 1, 0.0, second, False), (second, 2, 1.0, second, True),
    ]  # fmt: skip
    obs, action, reward, next_obs, terminal = zip(*steps, strict=True)
    batch = batch_of(one_hot(action, ACTIONS), reward, terminal, obs, next_obs)
    state = subject.init(1)
    for number in range(500):
        state, _ = subject.update(state, batch, NOISE, np.int32(number))
    assert batch.obs.shape == (BATCH, OBS)
    values = np.stack([acting.mlp(state.net, np.array(place, np.float32)) for place in (first, second)])
    expected = [[0.5, 0.9, 0.81], [0.9, 0.9, 1.0]]  # by hand, with a discount of 0.9
    np.testing.assert_allclose(values, expected, atol=0.05)
    assert greedy(subject.agent, state, first).argmax() == 1
    assert greedy(subject.agent, state, second).argmax() == 2


def test_errors_count_squared_where_that_is_asked_for():
    state = with_values([1.0, 2.0, 0.5], [5.0, 3.0, 4.0])
    batch = batch_of(one_hot([0, 1], ACTIONS), [4.0, 1.5], [True, True])
    new, metrics = Subject(critic_loss="squared").update(state, batch, NOISE, NUMBER)
    assert float(metrics["critic_loss"]) == pytest.approx((3.0**2 + 0.5**2) / 2, rel=1e-5)
    np.testing.assert_allclose(first_gradient(new.optimizer)[-1].bias, [-3.0, 0.5, 0.0], atol=1e-6)


def test_the_step_size_falls_along_a_straight_line_to_a_hundredth_and_stays_there():
    config = dataclasses.replace(CONFIG, annealing_updates=10)
    sizes = [float(learning_rate(config)(number)) / RATE for number in range(14)]
    np.testing.assert_allclose(sizes, np.maximum(1 - 0.99 * np.arange(14) / 10, 0.01), rtol=1e-5)
    assert learning_rate(CONFIG) == RATE


def test_an_update_takes_the_step_size_of_its_time():
    falling = Subject(annealing_updates=10)
    batch = batch_of(one_hot([0, 1], ACTIONS), [1.0, -1.0], [True, True])
    first, _ = falling.update(falling.init(), batch, NOISE, NUMBER)
    late, _ = falling.update(with_count(falling.init(), 10), batch, NOISE, NUMBER)
    early, _ = double.update(with_count(double.init(), 10), batch, NOISE, NUMBER)
    moved = [np.abs(state.net[-1].bias - double.init().net[-1].bias).max() for state in (late, early)]
    assert moved[0] == pytest.approx(moved[1] / 100, rel=1e-2)
    assert np.abs(first.net[-1].bias - falling.init().net[-1].bias).max() == pytest.approx(RATE, rel=1e-2)


def with_count(state, count: int):
    """A state whose optimiser has made a number of updates, without a memory of them."""
    optimizer = jax.tree.map(lambda leaf: np.full_like(leaf, count) if leaf.ndim == 0 else leaf, state.optimizer)
    return state._replace(optimizer=optimizer)

"""TD3 on numbers small enough to work out by hand, and on a bandit it has to solve."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import jit
from small_agents import BATCH, OBS, batch_of, changed, constant, continuous_spec, first_gradient, greedy, straight

from diaster.actors import acting
from diaster.agents.td3 import make_td3, smoothed_action
from diaster.config import Td3Config

RATE, TARGET_RATE, DISCOUNT = 3e-3, 0.25, 0.9
CONFIG = Td3Config(
    hidden=16, learning_rate=RATE, discount=DISCOUNT, target_rate=TARGET_RATE, policy_every=3, exploration_noise=0.3
)
INPUTS = OBS + 1
IDLE, MOVES = np.int32(0), np.int32(2)  # numbers of updates without and with a step of the actor

agent = make_td3(CONFIG)
update = jit(agent.update)


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), continuous_spec()))


def with_nets(state, critics=None, target_critics=None, actor=None, target_actor=None):
    slow = state.slow._replace(
        actor=actor or constant(OBS, 0.0),
        target_actor=target_actor or constant(OBS, 0.0),
        target_critics=target_critics or (constant(INPUTS, 0.0), constant(INPUTS, 0.0)),
    )
    return state._replace(critics=critics or (constant(INPUTS, 0.0), constant(INPUTS, 0.0)), slow=slow)


def along_the_action(slope: float, offset: float = 0.0):
    """A critic that rises with the action in a straight line."""
    return straight([[0.0], [0.0], [slope]], [offset])


def actions(*values: float):
    return np.resize(np.array(values, np.float32), (BATCH, 1))


def no_noise():
    return np.zeros((BATCH, 1), np.float32)


def test_a_terminal_step_is_worth_its_reward_and_others_the_lesser_targets_discounted_value_as_well(fresh):
    critics = (constant(INPUTS, 1.0), constant(INPUTS, 2.0))
    state = with_nets(fresh, critics, (constant(INPUTS, 5.0), constant(INPUTS, 3.0)))
    for terminal, targets in (([True, True], [10.0, -1.0]), ([False, True], [10.0 + DISCOUNT * 3.0, -1.0])):
        new, metrics = update(state, batch_of(actions(0.5), [10.0, -1.0], terminal), no_noise(), IDLE)
        expected = sum(np.mean((value - np.array(targets)) ** 2) for value in (1.0, 2.0))
        assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(1.5)
        for value, gradient in zip((1.0, 2.0), first_gradient(new.critic_optimizer), strict=True):
            # The mean squared error of a constant: twice the mean error.
            assert gradient[-1].bias[0] == pytest.approx(2.0 * (value - np.mean(targets)), rel=1e-5)


@pytest.mark.parametrize(
    ("draw", "policy", "expected"),
    [
        (0.0, 0.3, 0.3),
        (1.5, 0.3, 0.6),  # 0.3 + 0.2 · 1.5
        (-1.5, 0.3, 0.0),
        (10.0, 0.3, 0.8),  # the noise is clipped at 0.5
        (-10.0, 0.3, -0.2),
        (2.0, 0.9, 1.0),  # the action is clipped at 1
        (-2.0, -0.9, -1.0),
    ],
)
def test_the_targets_action_has_clipped_noise_and_stays_inside_the_bounds(fresh, draw, policy, expected):
    target_actor = constant(OBS, float(np.arctanh(policy)))
    noise = np.full((BATCH, 1), draw, np.float32)
    smoothed = smoothed_action(CONFIG, target_actor, np.zeros((BATCH, OBS), np.float32), noise)
    np.testing.assert_allclose(smoothed, np.full((BATCH, 1), expected), atol=1e-6)
    # The same through the target: Q′(s, a) = 2a, both critics 0, no reward.
    state = with_nets(fresh, target_critics=(along_the_action(2.0),) * 2, target_actor=target_actor)
    _, metrics = update(state, batch_of(actions(0.0)), noise, IDLE)
    assert float(metrics["critic_loss"]) == pytest.approx(2.0 * (DISCOUNT * 2.0 * expected) ** 2, rel=1e-4, abs=1e-9)


def test_the_target_uses_the_target_actor_and_not_the_learning_one(fresh):
    state = with_nets(fresh, target_critics=(along_the_action(2.0),) * 2, actor=constant(OBS, 3.0))
    _, metrics = update(state, batch_of(actions(0.0)), no_noise(), IDLE)
    assert float(metrics["critic_loss"]) == 0.0


@pytest.mark.parametrize(("slope", "other"), [(1.5, -4.0), (-0.5, 2.0)])
def test_the_actor_climbs_the_first_critic(fresh, slope, other):
    raw = 0.4
    state = with_nets(fresh, (along_the_action(slope), along_the_action(other)), actor=constant(OBS, raw))
    # A terminal step whose reward is its value: the first critic stays as it is, to Adam's rounding.
    batch = batch_of(actions(0.5), [slope * 0.5], [True])
    new, metrics = update(state, batch, no_noise(), MOVES)
    assert float(metrics["actor_loss"]) == pytest.approx(-slope * np.tanh(raw), rel=1e-2)
    gradient = first_gradient(new.slow.actor_optimizer)
    assert gradient[-1].bias[0] == pytest.approx(-slope * (1.0 - np.tanh(raw) ** 2), rel=1e-2)
    assert float(new.slow.actor[-1].bias[0]) == pytest.approx(raw + np.sign(slope) * RATE, rel=1e-4)


def test_critics_learn_in_every_update_and_actor_and_targets_in_every_third(fresh):
    state, moved = fresh, []
    for number in range(7):
        batch = batch_of(actions(-0.5, 0.5), [1.0, float(number)])
        new, _ = update(state, batch, no_noise(), np.int32(number))
        assert changed(state.critics, new.critics)
        parts = [changed(getattr(state.slow, name), getattr(new.slow, name)) for name in new.slow._fields]
        assert len(set(parts)) == 1  # all of them or none
        if parts[0]:
            moved.append(number)
        state = new
    assert moved == [2, 5]


def test_the_actors_loss_is_logged_until_there_is_a_newer_one(fresh):
    state, losses = fresh, []
    for number in range(6):
        state, metrics = update(state, batch_of(actions(0.1), [1.0]), no_noise(), np.int32(number))
        losses.append(float(metrics["actor_loss"]))
    assert losses[2] == losses[3] == losses[4] != 0.0
    assert losses[5] != losses[4]


def test_targets_follow_the_updated_nets_by_the_target_rate(fresh):
    rng = np.random.default_rng(1)

    def random_like(net):
        return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), net)

    before = fresh.slow._replace(
        target_actor=random_like(fresh.slow.actor), target_critics=random_like(fresh.slow.target_critics)
    )
    new, _ = update(fresh._replace(slow=before), batch_of(actions(0.3), [1.0]), no_noise(), MOVES)
    for slow, fast, after in (
        (before.target_actor, new.slow.actor, new.slow.target_actor),
        (before.target_critics, new.critics, new.slow.target_critics),
    ):
        expected = jax.tree.map(lambda s, f: (1.0 - TARGET_RATE) * s + TARGET_RATE * np.asarray(f), slow, fast)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after, expected)


def test_targets_begin_as_copies_and_the_two_critics_differ(fresh):
    jax.tree.map(np.testing.assert_array_equal, fresh.slow.target_critics, fresh.critics)
    jax.tree.map(np.testing.assert_array_equal, fresh.slow.target_actor, fresh.slow.actor)
    assert changed(*fresh.critics)


def test_the_noise_is_standard_normal_one_number_for_each_of_an_action():
    noise = np.asarray(agent.noise(jax.random.key(0), batch_of(np.zeros((5000, 3), np.float32))))
    assert noise.shape == (5000, 3)
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1.0) < 0.05


def test_it_explores_with_the_noise_asked_for(fresh):
    assert agent.acting is acting.NOISY_TANH
    assert float(agent.policy(fresh).exploration) == pytest.approx(0.3)


def test_a_few_hundred_updates_find_the_best_action_of_two_situations():
    rng = np.random.default_rng(0)
    best = {(1.0, 0.0): 0.5, (0.0, 1.0): -0.3}
    obs = np.resize(np.array(list(best), np.float32), (BATCH, OBS))
    wanted = np.resize(np.array(list(best.values()), np.float32), BATCH)
    state = agent.init(jax.random.key(1), continuous_spec())
    for number in range(900):
        action = rng.uniform(-1.0, 1.0, size=(BATCH, 1)).astype(np.float32)
        batch = batch_of(action, -((action[:, 0] - wanted) ** 2), [True], obs)
        state, _ = update(state, batch, no_noise(), np.int32(number))
    for situation, action in best.items():
        assert greedy(agent, state, situation)[0] == pytest.approx(action, abs=0.15)

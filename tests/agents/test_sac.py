"""SAC on numbers small enough to work out by hand, and on a bandit it has to solve."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import jit

from diaster.actors import acting
from diaster.agents import Transition
from diaster.agents.sac import make_sac
from diaster.config import SacConfig
from diaster.types import EnvSpec

SPEC = EnvSpec("Made-up", 2, 1, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), 10)
RATE, TARGET_RATE, DISCOUNT, TEMPERATURE = 3e-3, 0.25, 0.9, 0.8
BATCH, HIDDEN = 32, 32
LOG_ROOT_TWO_PI = 0.5 * np.log(2.0 * np.pi)

agent = make_sac(
    SacConfig(
        hidden=HIDDEN,
        learning_rate=RATE,
        discount=DISCOUNT,
        target_rate=TARGET_RATE,
        initial_temperature=TEMPERATURE,
    )
)
numbered_update = jit(agent.update)  # one program for all tests: all batches have one shape


def update(state, batch, noise):
    return numbered_update(state, batch, noise, np.int32(0))


def constant(net, *bias: float):
    """A net that gives the same output whatever its input."""
    zeros = jax.tree.map(np.zeros_like, net)
    return (*zeros[:-1], zeros[-1]._replace(bias=np.array(bias, np.float32)))


@pytest.fixture(scope="module")
def fresh():
    return jax.device_get(agent.init(jax.random.key(0), SPEC))


def flat(state, critics=(0.0, 0.0), targets=(0.0, 0.0), log_std=-1.0, temperature=0.5):
    """A state whose nets are constants; the policy's mean is 0, where squashing has slope one."""
    return state._replace(
        actor=constant(state.actor, 0.0, log_std),
        critics=tuple(constant(net, value) for net, value in zip(state.critics, critics, strict=True)),
        target_critics=tuple(constant(net, value) for net, value in zip(state.critics, targets, strict=True)),
        log_temperature=np.float32(np.log(temperature)),
    )


def batch_of(rewards, terminal) -> Transition:
    """These steps over and over: means over the batch are means over them."""
    rng = np.random.default_rng(0)
    return Transition(
        obs=rng.normal(size=(BATCH, 2)).astype(np.float32),
        action=rng.uniform(-1.0, 1.0, size=(BATCH, 1)).astype(np.float32),
        reward=np.resize(np.array(rewards, np.float32), BATCH),
        next_obs=rng.normal(size=(BATCH, 2)).astype(np.float32),
        terminal=np.resize(np.array(terminal), BATCH),
    )


def constant_noise(of_next_action: float = 0.0, of_action: float = 0.0):
    """Without noise the policy takes its mean, and log π = −log σ − ½ log 2π there."""
    return np.stack([np.full((BATCH, 1), value, np.float32) for value in (of_next_action, of_action)])


def test_a_terminal_step_is_worth_its_reward_and_others_their_discounted_future_as_well(fresh):
    state = flat(fresh, critics=(1.0, 2.0), targets=(5.0, 3.0), log_std=-1.0, temperature=0.5)
    # The lesser target critic, 3, plus the entropy's share, −α log π, for a step that ends by a time limit too.
    log_prob = 1.0 - LOG_ROOT_TWO_PI
    future = DISCOUNT * (3.0 - 0.5 * log_prob)
    for terminal, targets in (([True, True], [10.0, -1.0]), ([False, True], [10.0 + future, -1.0])):
        _, metrics = update(state, batch_of([10.0, -1.0], terminal), constant_noise())
        expected = sum(np.mean((value - np.array(targets)) ** 2) for value in (1.0, 2.0))
        assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)
        assert float(metrics["q_value"]) == pytest.approx(1.5)


def test_the_next_action_takes_the_first_noise_and_the_actor_the_second(fresh):
    state = flat(fresh, log_std=-1.0, temperature=0.5)

    def log_prob(z):
        raw = np.exp(-1.0) * z
        return -0.5 * z**2 + 1.0 - LOG_ROOT_TWO_PI - np.log(1.0 - np.tanh(raw) ** 2)

    _, metrics = update(state, batch_of([0.0], [False]), constant_noise(0.7, -1.3))
    assert float(metrics["critic_loss"]) == pytest.approx(2 * (DISCOUNT * 0.5 * log_prob(0.7)) ** 2, rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(-log_prob(-1.3), rel=1e-5)


def test_the_noise_is_standard_normal_and_independent_for_the_two_actions():
    batch = batch_of([0.0], [False])._replace(action=np.zeros((5000, 1), np.float32))
    noise = np.asarray(agent.noise(jax.random.key(0), batch))
    assert noise.shape == (2, 5000, 1)
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1.0) < 0.05
    assert abs(np.corrcoef(noise[0, :, 0], noise[1, :, 0])[0, 1]) < 0.07


def test_target_critics_follow_the_updated_critics_by_the_target_rate(fresh):
    rng = np.random.default_rng(1)
    slow = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), fresh.critics)
    new, _ = update(fresh._replace(target_critics=slow), batch_of([1.0, 2.0], [False, True]), constant_noise())
    moved = zip(*map(jax.tree.leaves, (slow, fresh.critics, new.critics, new.target_critics)), strict=True)
    for before, old_critic, critic, target in moved:
        assert not np.array_equal(old_critic, critic)
        np.testing.assert_allclose(target, (1.0 - TARGET_RATE) * before + TARGET_RATE * critic, atol=1e-6)


def test_target_critics_begin_as_copies_and_the_two_critics_differ(fresh):
    jax.tree.map(np.testing.assert_array_equal, fresh.target_critics, fresh.critics)
    assert not np.array_equal(fresh.critics[0][0].weight, fresh.critics[1][0].weight)


@pytest.mark.parametrize(("log_std", "direction"), [(-5.0, 1.0), (0.5, -1.0)])
def test_the_temperature_rises_while_the_entropy_is_below_minus_one_per_dimension_and_falls_above(
    fresh, log_std, direction
):
    state = flat(fresh, log_std=log_std, temperature=0.5)
    new, metrics = update(state, batch_of([0.0], [False]), constant_noise())
    entropy = log_std + LOG_ROOT_TWO_PI
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert np.sign(-1.0 - entropy) == direction
    assert float(metrics["temperature"]) == pytest.approx(0.5)
    # Adam's first step is the learning rate, whatever the gradient's size.
    assert float(new.log_temperature - state.log_temperature) == pytest.approx(direction * RATE, rel=1e-2)


def test_the_initial_temperature_is_the_one_asked_for(fresh):
    assert float(np.exp(fresh.log_temperature)) == pytest.approx(TEMPERATURE)


def test_the_actor_moves_toward_actions_of_higher_value(fresh):
    def slope(value: float):
        """Critics that rise or fall with the action, in a straight line: half of the units for each sign."""
        first, second, last = jax.tree.map(np.zeros_like, fresh.critics[0])
        first.weight[2], second.weight[...] = np.repeat([1.0, -1.0], HIDDEN // 2), np.eye(HIDDEN)
        first.bias[...] = 1.0  # relu(1 ± a): no kink inside the bounds
        last.weight[:, 0] = np.repeat([value, -value], HIDDEN // 2)
        return (first, second, last)

    for value in (1.0, -1.0):
        state = flat(fresh, temperature=1e-6)._replace(critics=(slope(value), slope(value)))
        new, _ = update(state, batch_of([0.0], [True]), constant_noise())
        # Adam's first step is the learning rate; of the actor's constants only the mean matters for the value.
        assert float(new.actor[-1].bias[0]) == pytest.approx(value * RATE, rel=1e-2)


def test_a_few_hundred_updates_find_the_best_arm_of_a_bandit():
    assert agent.acting is acting.TANH_GAUSSIAN
    obs = np.ones((BATCH, 2), np.float32)
    for seed in range(3):
        rng, state, losses = np.random.default_rng(seed), agent.init(jax.random.key(seed), SPEC), []
        for _ in range(500):
            action = rng.uniform(-1.0, 1.0, size=(BATCH, 1)).astype(np.float32)
            batch = Transition(obs, action, -((action[:, 0] - 0.5) ** 2), obs, np.ones(BATCH, bool))
            state, metrics = update(state, batch, rng.normal(size=(2, BATCH, 1)).astype(np.float32))
            losses.append(metrics["critic_loss"])
        assert np.mean(losses[-20:]) < 0.1 * np.mean(losses[:5])
        layers = tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in agent.policy(state).layers)
        action = agent.acting.act(acting.HostParameters(layers, 0.0), obs[0], None)
        assert action.shape == (1,)
        assert action[0] == pytest.approx(0.5, abs=0.15)

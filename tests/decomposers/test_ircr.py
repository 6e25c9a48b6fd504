"""IRCR: relative credit, its bounds, and the elite that half of every batch is drawn from."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.agents import Acting, Agent
from diaster.config import IrcrConfig
from diaster.decomposers.ircr import make_ircr, relative
from diaster.learning.learner import Learner
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode

OBS, ACTIONS, HORIZON, CAPACITY = 2, 1, 6, 48
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
ELITE = 3

insert = jit(replay.insert)


def coded_episode(number: int, length: int, episode_return: float) -> Episode:
    """Observation and action carry the numbers of their episode and step."""
    code = 100.0 * number + np.arange(length + 1, dtype=np.float32)
    return Episode(np.stack([code, -code], axis=-1), 0.5 + code[:-1, None], episode_return, number % 2 == 0)


def random_episodes(seed: int, n: int, first: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    lengths, returns = rng.integers(1, HORIZON + 1, size=n), np.round(rng.normal(size=n) * 20.0, 3)
    return [coded_episode(first + k, int(lengths[k]), float(returns[k])) for k in range(n)]


def block_of(episodes: list[Episode]) -> replay.EpisodeBlock:
    return replay.make_block(episodes, CAPACITY, CAPACITY // 2, OBS, ACTIONS)


class Life:
    """A decomposer with its store, fed block by block."""

    def __init__(self, credit: str = "mean", elite_episodes: int | str = ELITE) -> None:
        self.ingest, self.reward, self.sample, self.state = compiled(credit, elite_episodes)
        self.store = empty_store()

    def take(self, episodes: list[Episode]) -> Life:
        block = block_of(episodes)
        self.store = insert(self.store, block)
        self.state = self.ingest(self.state, self.store, block)
        return self

    def rewards_of(self, episodes: list[Episode]) -> np.ndarray:
        """r̂ of the first step of each episode."""
        none = np.zeros(len(episodes), np.float32)
        steps = replay.Steps(
            obs=np.full((len(episodes), OBS), np.nan, np.float32),  # nothing but the episode counts
            action=np.full((len(episodes), ACTIONS), np.nan, np.float32),
            next_obs=np.full((len(episodes), OBS), np.nan, np.float32),
            terminal=none > 0,
            time=none.astype(np.int32),
            length=np.array([episode.length for episode in episodes], np.int32),
            episode_return=np.array([episode.episode_return for episode in episodes], np.float32),
        )
        return np.asarray(self.reward(self.state, steps))

    def batch(self, seed: int, n: int) -> replay.Steps:
        return jax.device_get(self.sample(self.state, self.store, jax.random.key(seed), n))


@cache
def compiled(credit: str, elite_episodes: int | str):
    decomposer = make_ircr(IrcrConfig(credit=credit, elite_episodes=elite_episodes), HORIZON)
    state = decomposer.init(jax.random.key(0), SPEC)
    return jit(decomposer.ingest), jit(decomposer.reward), jit(decomposer.sample, static_argnums=3), state


@cache
def empty_store():
    return replay.init_store(CAPACITY, OBS, ACTIONS)


def credits_of(episodes: list[Episode], credit: str) -> np.ndarray:
    return np.array([e.episode_return / (e.length if credit == "mean" else 1) for e in episodes])


def best(episodes: list[Episode], n: int = ELITE) -> list[Episode]:
    return sorted(episodes, key=lambda episode: -episode.episode_return)[:n]  # stable: of equals the older


def numbers(steps_obs) -> list[int]:
    return (np.asarray(steps_obs)[..., 0] // 100).astype(int).tolist()


# --- rewards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credit", ["mean", "return"])
def test_a_reward_is_the_credit_of_its_episode_between_the_least_and_the_largest(credit):
    episodes = random_episodes(0, 9)
    rewards = Life(credit).take(episodes[:4]).take(episodes[4:]).rewards_of(episodes)
    found = credits_of(episodes, credit)
    np.testing.assert_allclose(rewards, (found - found.min()) / (found.max() - found.min()), atol=1e-6)
    assert (rewards.min(), rewards.max()) == (0.0, 1.0)


@pytest.mark.parametrize("credit", ["mean", "return"])
def test_rewards_of_a_batch_lie_between_0_and_1_while_the_ring_turns(credit):
    life = Life(credit)
    for turn in range(6):
        life.take(random_episodes(turn, 6, first=6 * turn))
        batch = life.batch(turn, 64)
        rewards = np.asarray(life.reward(life.state, batch))
        assert ((rewards >= 0.0) & (rewards <= 1.0)).all()
    assert rewards.min() < 0.1 and rewards.max() == 1.0


def test_an_episode_that_is_not_kept_is_given_no_more_than_the_best_and_no_less_than_the_worst():
    life = Life().take(random_episodes(0, 6))
    better, worse = coded_episode(50, 2, 1e6), coded_episode(51, 2, -1e6)
    np.testing.assert_array_equal(life.rewards_of([better, worse]), [1.0, 0.0])


@pytest.mark.parametrize("value", [-7.0, 0.0, 3.0])
def test_where_all_credits_are_alike_every_reward_is_0(value):
    episodes = [coded_episode(number, 2, value) for number in range(4)]
    np.testing.assert_array_equal(Life().take(episodes).rewards_of(episodes), 0.0)
    np.testing.assert_array_equal(Life().take(episodes[:1]).rewards_of(episodes), 0.0)


def test_bounds_a_hair_apart_divide_by_nothing_that_a_device_takes_for_0():
    low = jnp.float32(0.0)
    for high in (1e-45, 1e-39, 1e-37):
        found = float(relative(jnp.float32(high), low, jnp.float32(high)))
        assert found in (0.0, 1.0)
    assert found == 1.0


def test_before_anything_was_seen_batches_and_rewards_are_finite():
    life = Life()
    for _ in range(2):
        batch = life.batch(0, 8)
        assert all(np.isfinite(leaf).all() for leaf in batch)
        assert np.isfinite(life.reward(life.state, batch)).all()
        life.take([])  # another seed has finished an episode, this one has not
        assert (float(life.state.low), float(life.state.high)) == (0.0, 0.0)


def test_rewards_have_no_units_to_be_brought_into():
    decomposer = make_ircr(IrcrConfig(), HORIZON)
    assert float(decomposer.scale(Life().take(random_episodes(0, 4)).state)) == 1.0
    assert decomposer.draw is None and decomposer.update is None and decomposer.label is None


# --- the elite ------------------------------------------------------------------------------------------------


def test_the_elite_are_the_best_of_all_episodes_whatever_blocks_they_came_in():
    episodes = random_episodes(1, 24)
    expected = [int(episode.obs[0, 0] // 100) for episode in best(episodes)]
    for size in (1, 5, 7):
        life = Life()
        for first in range(0, len(episodes), size):
            life.take(episodes[first : first + size])
        elite = jax.device_get(life.state.elite)
        assert numbers(elite.obs[:, 0]) == expected
        for place, episode in enumerate(best(episodes)):
            length = episode.length
            assert elite.length[place] == length
            assert elite.episode_return[place] == np.float32(episode.episode_return)
            assert elite.terminated[place] == episode.terminated
            np.testing.assert_array_equal(elite.obs[place, : length + 1], episode.obs)
            np.testing.assert_array_equal(elite.action[place, :length], episode.action)
            assert not elite.obs[place, length + 1 :].any() and not elite.action[place, length:].any()


def test_of_equal_returns_the_older_episodes_stay():
    life = Life()
    life.take([coded_episode(number, 2, 5.0) for number in (1, 2)])
    life.take([coded_episode(3, 2, 7.0), *(coded_episode(number, 2, 5.0) for number in (4, 5))])
    life.take([coded_episode(6, 2, 5.0)])
    assert numbers(life.state.elite.obs[:, 0]) == [3, 1, 2]


def test_an_elite_with_room_left_holds_every_episode_and_nothing_else():
    life = Life().take(random_episodes(2, 2, first=1))
    elite = jax.device_get(life.state.elite)
    assert (elite.length > 0).tolist() == [True, True, False]
    assert not elite.obs[2].any()
    assert set(numbers(life.batch(0, 40).obs)) == {1, 2}


@pytest.mark.parametrize(
    ("setting", "env", "places"), [("auto", "Hopper-v5", 10), ("auto", "Humanoid-v5", 50), (4, "Humanoid-v5", 4)]
)
def test_the_number_of_elite_episodes_is_the_setting_or_the_published_one(setting, env, places):
    decomposer = make_ircr(IrcrConfig(elite_episodes=setting), HORIZON)
    shape = jax.eval_shape(lambda key: decomposer.init(key, SPEC._replace(id=env)), jax.random.key(0))
    assert shape.elite.obs.shape == (places, HORIZON + 1, OBS)


# --- batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 9, 64])
def test_half_of_each_batch_comes_from_the_elite_and_the_rest_from_the_ring(n):
    life = Life()
    old, new = random_episodes(3, 6), random_episodes(4, 6, first=6)
    old = [episode._replace(episode_return=episode.episode_return + 1000.0) for episode in old]
    life.take(old)
    while int(life.store.oldest) < len(old):  # until the ring has let go of every old episode
        life.take(new)
    elite = {int(episode.obs[0, 0] // 100) for episode in best(old)}
    for seed in range(5):
        drawn = numbers(life.batch(seed, n).obs)
        assert len(drawn) == n
        assert set(drawn[: n // 2]) <= elite
        assert min(drawn[n // 2 :]) >= 6
    if n == 64:
        assert set(drawn[: n // 2]) == elite and len(set(drawn[n // 2 :])) > 2


def test_elite_episodes_and_their_rewards_survive_eviction_from_the_ring():
    champion = coded_episode(99, 4, 1000.0)
    life = Life(elite_episodes=1).take([champion])
    for turn in range(8):
        life.take(random_episodes(turn, 6, first=6 * turn))
    in_ring = numbers(life.store.obs)
    assert 99 not in in_ring and int(life.store.oldest) > 0
    batch = life.batch(0, 32)
    assert set(numbers(batch.obs[:16])) == {99}
    np.testing.assert_array_equal(life.reward(life.state, batch)[:16], 1.0)
    assert life.reward(life.state, batch)[16:].max() < 0.5  # the bounds still know the champion


def test_bounds_forget_what_neither_ring_nor_elite_holds():
    loser = coded_episode(99, 1, -1000.0)
    life = Life(elite_episodes=1).take([loser, *random_episodes(0, 4)])
    assert float(life.state.low) == -1000.0
    for turn in range(8):
        life.take(random_episodes(turn, 6))
    assert 99 not in numbers(life.store.obs)
    kept = [float(life.state.low), float(life.state.high)]
    assert kept[0] > -1000.0
    slots = life.store.length.shape[0]
    live = np.arange(int(life.store.oldest), int(life.store.newest)) % slots
    in_ring = np.asarray(life.store.episode_return)[live] / np.asarray(life.store.length)[live]
    elite = life.state.elite
    of_all = np.append(in_ring, float(elite.episode_return[0]) / int(elite.length[0]))
    np.testing.assert_allclose(kept, [of_all.min(), of_all.max()], rtol=1e-6)


def test_steps_drawn_from_the_elite_are_whole_and_each_is_equally_likely():
    episodes = [coded_episode(1, 1, 30.0), coded_episode(2, 6, 20.0), coded_episode(3, 3, 10.0)]
    batch = Life().take([*episodes, coded_episode(4, 6, 0.0)]).batch(1, 8000)
    batch = replay.Steps(*(leaf[:4000] for leaf in batch))
    counts = {}
    for place in range(4000):
        number, time = divmod(int(batch.obs[place, 0]), 100)
        counts[number, time] = counts.get((number, time), 0) + 1
    assert set(counts) == {(e, t) for e, length in ((1, 1), (2, 6), (3, 3)) for t in range(length)}
    assert all(abs(count - 400) < 100 for count in counts.values())  # five standard deviations
    code, lengths = batch.obs[:, 0], {1: 1, 2: 6, 3: 3}
    number = (code // 100).astype(int)
    np.testing.assert_array_equal(batch.time, code % 100)
    np.testing.assert_array_equal(batch.next_obs[:, 0], code + 1.0)
    np.testing.assert_array_equal(batch.next_obs[:, 1], -code - 1.0)
    np.testing.assert_array_equal(batch.action[:, 0], code + 0.5)
    np.testing.assert_array_equal(batch.length, [lengths[n] for n in number])
    np.testing.assert_array_equal(batch.episode_return, [40.0 - 10.0 * n for n in number])
    is_last = batch.time == batch.length - 1
    np.testing.assert_array_equal(batch.terminal, is_last & (number % 2 == 0))
    assert batch.terminal.any()


def watching_agent() -> Agent:
    """Learns nothing; reports how far from a half the share of old episodes in its batches is."""

    def update(state, batch, noise, number):
        share = (batch.obs[:, 0] < 600.0).mean()
        return state, {"off": jnp.abs(share - 0.5), "reward": batch.reward.max()}

    return Agent(
        init=lambda key, spec: jnp.zeros(()),
        noise=lambda key, batch: jnp.zeros(()),
        update=update,
        policy=lambda state: Acting((), state),
        acting=TANH_GAUSSIAN,
    )


def test_the_learner_gets_batches_of_which_half_are_elite_steps_that_the_ring_no_longer_holds():
    decomposer, device = make_ircr(IrcrConfig(elite_episodes=6), HORIZON), jax.devices("cpu")[0]
    learner = Learner(decomposer, watching_agent(), SPEC, range(2), CAPACITY, 16, device)
    best_six = [
        [episode._replace(episode_return=episode.episode_return + 500.0) for episode in random_episodes(seed, 6)]
        for seed in range(2)
    ]
    learner.store_episodes(best_six)
    for turn in range(8):
        learner.store_episodes([random_episodes(10 * seed + turn, 6, first=6) for seed in range(2)])
    assert (np.asarray(learner.store.obs)[..., 0] >= 600.0).all()
    metrics = learner.fit_agent(np.array([True, True]), 0, 20)
    np.testing.assert_array_equal(metrics["off"], 0.0)
    assert (np.asarray(metrics["reward"]) <= 1.0).all()

from collections.abc import Callable

import numpy as np
import pytest
import toy_envs

from diaster.acting import tanh_gaussian
from diaster.collect import Collector, evaluation_episodes
from diaster.envs import describe_env, make_env
from diaster.errors import DiasterError
from diaster.types import Episode, EvaluationEpisode, Stream, host_random, reset_seed


def collector_of(env_id: str = "Toy-v0", seed: int = 0, horizon: int = toy_envs.HORIZON) -> Collector:
    env = make_env(env_id, horizon)
    return Collector(env, describe_env(env, env_id, horizon), tanh_gaussian, seed)


def evaluation_of(
    env_id: str, layers: tuple, seed: int = 0, evaluation: int = 0, n: int = 2
) -> list[EvaluationEpisode]:
    env = make_env(env_id, toy_envs.HORIZON)
    spec = describe_env(env, env_id, toy_envs.HORIZON)
    return list(evaluation_episodes(env, spec, tanh_gaussian, layers, seed, evaluation, n))


def as_bytes(episodes: list[Episode]) -> list[tuple]:
    return [(e.obs.tobytes(), e.action.tobytes(), e.episode_return, e.terminated) for e in episodes]


@pytest.fixture
def layers(random_layers: Callable) -> tuple:
    return random_layers(3, 2)


# Whole episodes


def test_episodes_are_whole_with_one_observation_more_than_actions(layers: tuple) -> None:
    episodes = collector_of().collect(layers, 0, 3 * toy_envs.HORIZON)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.length == toy_envs.HORIZON
        assert episode.obs.shape == (toy_envs.HORIZON + 1, 3)
        assert episode.action.shape == (toy_envs.HORIZON, 2)
        assert (episode.obs.dtype, episode.action.dtype) == (np.float32, np.float32)


def test_an_episode_under_way_is_kept_for_the_next_chunk(layers: tuple) -> None:
    collector = collector_of()
    counts = [len(collector.collect(layers, chunk, 6)) for chunk in range(5)]
    assert counts == [0, 1, 0, 1, 1]  # episodes end at the steps 10, 20 and 30


def test_an_episode_starts_where_its_own_seed_puts_the_environment(layers: tuple) -> None:
    episodes = collector_of(seed=4).collect(layers, 0, 2 * toy_envs.HORIZON)
    env = make_env("Toy-v0", toy_envs.HORIZON)
    for number, episode in enumerate(episodes):
        start, _ = env.reset(seed=reset_seed(4, Stream.COLLECT_RESET, number))
        np.testing.assert_array_equal(episode.obs[0], start)


def test_the_return_is_the_sum_of_the_hidden_rewards(layers: tuple) -> None:
    for item in evaluation_of("Toy-v0", layers):
        assert item.true_reward is not None
        assert item.episode.episode_return == pytest.approx(float(item.true_reward.sum()), rel=1e-5)
        assert len(item.true_reward) == item.episode.length


@pytest.mark.parametrize("with_policy", [False, True])
def test_actions_lie_in_the_unit_box_whatever_the_environments_bounds(
    with_policy: bool, random_layers: Callable
) -> None:
    layers = random_layers(3, 6) if with_policy else None
    episodes = collector_of("ToyBounded-v0").collect(layers, 0, 2 * toy_envs.HORIZON)
    actions = np.concatenate([episode.action for episode in episodes])
    assert actions.shape == (2 * toy_envs.HORIZON, 6)
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions).max() > 0.5


def test_without_a_policy_actions_are_uniform_over_the_unit_box() -> None:
    episodes = collector_of().collect(None, 0, 1000)
    actions = np.concatenate([episode.action for episode in episodes])
    assert abs(actions.mean()) < 0.05
    assert actions.var() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(("env_id", "terminated"), [("Toy-v0", False), ("ToyTerminates-v0", True)])
def test_only_the_environment_terminates_an_episode_and_never_its_time_limit(
    env_id: str, terminated: bool, layers: tuple
) -> None:
    episodes = collector_of(env_id).collect(layers, 0, 3 * toy_envs.HORIZON)
    assert episodes
    assert {episode.terminated for episode in episodes} == {terminated}
    assert {episode.length for episode in episodes} == ({7} if terminated else {toy_envs.HORIZON})


# Randomness


def test_the_same_seed_and_chunk_give_the_same_episodes(layers: tuple) -> None:
    runs = []
    for _ in range(2):
        collector = collector_of(seed=3)
        runs.append(as_bytes([e for chunk in range(3) for e in collector.collect(layers, chunk, 20)]))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 6


def test_a_seeds_episodes_do_not_depend_on_what_other_seeds_do(layers: tuple) -> None:
    alone, beside, other = collector_of(seed=3), collector_of(seed=3), collector_of(seed=8)
    expected = [as_bytes(alone.collect(layers, chunk, 20)) for chunk in range(2)]
    found = []
    for chunk in range(2):
        other.collect(None, 17 * chunk + 5, 33)
        found.append(as_bytes(beside.collect(layers, chunk, 20)))
    assert found == expected


@pytest.mark.parametrize("with_policy", [False, True])
def test_other_seeds_and_other_chunks_have_other_noise(with_policy: bool, layers: tuple) -> None:
    policy = layers if with_policy else None
    seen = {
        collector_of(seed=seed).collect(policy, chunk, toy_envs.HORIZON)[0].action.tobytes()
        for seed in range(3)
        for chunk in range(3)
    }
    assert len(seen) == 9


def test_evaluation_starts_elsewhere_than_training_does() -> None:
    training = {reset_seed(seed, Stream.COLLECT_RESET, n) for seed in range(5) for n in range(200)}
    evaluation = {
        reset_seed(seed, Stream.EVALUATE_RESET, k, n) for seed in range(5) for k in range(20) for n in range(10)
    }
    assert len(training) == len(evaluation) == 1000
    assert not training & evaluation


def test_evaluation_episodes_are_deterministic_and_differ_among_each_other_and_among_evaluations(layers: tuple) -> None:
    first, again = evaluation_of("Toy-v0", layers), evaluation_of("Toy-v0", layers)
    later = evaluation_of("Toy-v0", layers, evaluation=1)
    assert as_bytes([i.episode for i in first]) == as_bytes([i.episode for i in again])
    starts = {item.episode.obs[0].tobytes() for item in first + later}
    assert len(starts) == 4


def test_evaluation_acts_without_noise(layers: tuple) -> None:
    episode = evaluation_of("Toy-v0", layers)[0].episode
    expected = np.stack([tanh_gaussian(layers, obs, None) for obs in episode.obs[:-1]])
    np.testing.assert_array_equal(episode.action, expected)


def test_named_streams_of_a_seed_are_distinct() -> None:
    draws = {host_random(0, stream, 0).integers(2**62) for stream in Stream}
    assert len(draws) == len(Stream)


# Hidden rewards


def test_an_environment_that_is_episodic_by_nature_has_no_true_reward(layers: tuple) -> None:
    items = evaluation_of("ToyEpisodic-v0", layers)
    assert [item.true_reward for item in items] == [None, None]
    assert all(item.episode.episode_return != 0.0 for item in items)


def test_an_episode_of_one_step_has_its_return_as_true_reward(layers: tuple) -> None:
    for item in evaluation_of("ToyOneStep-v0", layers):
        assert item.true_reward is not None
        assert item.true_reward.tolist() == [np.float32(item.episode.episode_return)]


# Environments that misbehave


@pytest.mark.parametrize(
    ("env_id", "what", "step"),
    [
        ("ToyNanStart-v0", r"nan in its observation \(entry 1\)", 0),
        ("ToyNan-v0", r"nan in its observation \(entry 1\)", 13),
        ("ToyInfinite-v0", r"-inf in its observation \(entry 2\)", 13),
        ("ToyNanReward-v0", "a reward of nan", 13),
        ("ToyInfiniteReward-v0", "a reward of inf", 13),
        ("ToyRewardShape-v0", "reward", 13),
        ("ToyShape-v0", r"an observation of shape \(2,\) where \(3,\) was announced", 13),
    ],
)
def test_a_bad_value_is_named_with_its_environment_and_the_very_step(env_id: str, what: str, step: int) -> None:
    with pytest.raises(DiasterError, match=what) as caught:
        collector_of(env_id, seed=6).collect(None, 0, 40)
    sentence = str(caught.value)
    assert f"'{env_id}'" in sentence
    assert f"seed 6's training step {step}" in sentence
    assert "\n" not in sentence


def test_a_bad_value_in_an_evaluation_is_said_to_be_there(layers: tuple) -> None:
    with pytest.raises(DiasterError, match=r"'ToyNan-v0' returned nan .* at seed 2's evaluation step 13;"):
        evaluation_of("ToyNan-v0", layers, seed=2)


def test_large_finite_observations_are_no_error(layers: tuple) -> None:
    env = make_env("Toy-v0", toy_envs.HORIZON)
    env.unwrapped.observe = lambda: np.full(3, 3e38, np.float32)  # their sum is no float32
    collector = Collector(env, describe_env(env, "Toy-v0", toy_envs.HORIZON), tanh_gaussian, 0)
    assert len(collector.collect(None, 0, toy_envs.HORIZON)) == 1

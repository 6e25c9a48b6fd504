from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import toy_envs

from diaster.actors.acting import CATEGORICAL, TANH_GAUSSIAN, HostParameters, HostPolicy
from diaster.actors.collector import Collector
from diaster.actors.evaluation import evaluation_episodes
from diaster.actors.rollout import Handling, Rollout
from diaster.envs.making import describe_env, make_env
from diaster.errors import DiasterError, EnvironmentFault
from diaster.types import Episode, EvaluationEpisode, Stream, host_random, reset_seed


def collector_of(
    env_id: str = "Toy-v0",
    seed: int = 0,
    policy: HostPolicy = TANH_GAUSSIAN,
    keep_hidden: bool = False,
    retries: int = 0,
) -> Collector:
    make = partial(make_env, env_id, toy_envs.HORIZON)
    spec = describe_env(make(), env_id, toy_envs.HORIZON)
    return Collector(make, spec, policy, seed, Handling(keep_hidden, retries))


def evaluation_of(
    env_id: str, parameters: HostParameters, seed: int = 0, evaluation: int = 0, n: int = 2, retries: int = 0
) -> list[EvaluationEpisode]:
    make = partial(make_env, env_id, toy_envs.HORIZON)
    rollout = Rollout(make, describe_env(make(), env_id, toy_envs.HORIZON), f"seed {seed}'s evaluation")
    return list(evaluation_episodes(rollout, TANH_GAUSSIAN, parameters, seed, evaluation, n, retries))


def as_bytes(episodes: list[Episode]) -> list[tuple]:
    return [(e.obs.tobytes(), e.action.tobytes(), e.episode_return, e.terminated) for e in episodes]


@pytest.fixture
def parameters(random_parameters: Callable) -> HostParameters:
    return random_parameters(3, 4)


# Whole episodes


def test_episodes_are_whole_with_one_observation_more_than_actions(parameters: HostParameters) -> None:
    episodes = collector_of().collect(parameters, 0, 3 * toy_envs.HORIZON)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.length == toy_envs.HORIZON
        assert episode.obs.shape == (toy_envs.HORIZON + 1, 3)
        assert episode.action.shape == (toy_envs.HORIZON, 2)
        assert (episode.obs.dtype, episode.action.dtype) == (np.float32, np.float32)


def test_an_episode_under_way_is_kept_for_the_next_chunk(parameters: HostParameters) -> None:
    collector = collector_of()
    counts = [len(collector.collect(parameters, chunk, 6)) for chunk in range(5)]
    assert counts == [0, 1, 0, 1, 1]  # episodes end at the steps 10, 20 and 30


def test_an_episode_starts_where_its_own_seed_puts_the_environment(parameters: HostParameters) -> None:
    episodes = collector_of(seed=4).collect(parameters, 0, 2 * toy_envs.HORIZON)
    env = make_env("Toy-v0", toy_envs.HORIZON)
    for number, episode in enumerate(episodes):
        start, _ = env.reset(seed=reset_seed(4, Stream.COLLECT_RESET, number))
        np.testing.assert_array_equal(episode.obs[0], start)


def test_the_return_is_the_sum_of_the_hidden_rewards(parameters: HostParameters) -> None:
    for item in evaluation_of("Toy-v0", parameters):
        assert item.true_reward is not None
        assert item.episode.episode_return == pytest.approx(float(item.true_reward.sum()), rel=1e-5)
        assert len(item.true_reward) == item.episode.length


@pytest.mark.parametrize("with_policy", [False, True])
def test_actions_lie_in_the_unit_box_whatever_the_environments_bounds(
    with_policy: bool, random_parameters: Callable
) -> None:
    parameters = random_parameters(3, 12) if with_policy else None
    episodes = collector_of("ToyBounded-v0").collect(parameters, 0, 2 * toy_envs.HORIZON)
    actions = np.concatenate([episode.action for episode in episodes])
    assert actions.shape == (2 * toy_envs.HORIZON, 6)
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions).max() > 0.5


def test_without_a_policy_actions_are_uniform_over_the_unit_box() -> None:
    episodes = collector_of().collect(None, 0, 1000)
    actions = np.concatenate([episode.action for episode in episodes])
    assert abs(actions.mean()) < 0.05
    assert actions.var() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("env_id", ["ToyDiscrete-v0", "ToyDiscreteFrom5-v0"])
@pytest.mark.parametrize("with_policy", [False, True])
def test_discrete_actions_are_stored_one_hot_whatever_the_environment_calls_them(
    env_id: str, with_policy: bool, random_parameters: Callable
) -> None:
    # The toy refuses an action that it has no name for.
    parameters = random_parameters(3, 3) if with_policy else None
    episodes = collector_of(env_id, policy=CATEGORICAL).collect(parameters, 0, 5 * toy_envs.HORIZON)
    actions = np.concatenate([episode.action for episode in episodes])
    assert (actions.shape, actions.dtype) == ((5 * toy_envs.HORIZON, 3), np.float32)
    assert set(np.unique(actions)) == {0.0, 1.0}
    np.testing.assert_array_equal(actions.sum(axis=-1), 1.0)
    assert actions.any(axis=0).sum() >= 2


@pytest.mark.parametrize("env_id", ["ToyDiscrete-v0", "ToyDiscreteFrom5-v0"])
def test_a_stored_discrete_action_is_the_one_that_was_taken(env_id: str) -> None:
    [episode] = collector_of(env_id, policy=CATEGORICAL).collect(None, 0, toy_envs.HORIZON)
    push = episode.action @ np.array([-1.0, 0.0, 1.0], np.float32)  # what the toy does with its three actions
    expected = 0.9 * episode.obs[:-1] + 0.3 * push[:, None] * np.array([1.0, 1.0, 0.0], np.float32)
    np.testing.assert_allclose(episode.obs[1:], expected, rtol=1e-5, atol=1e-6)
    assert len(set(push.tolist())) > 1


@pytest.mark.parametrize(("env_id", "terminated"), [("Toy-v0", False), ("ToyTerminates-v0", True)])
def test_only_the_environment_terminates_an_episode_and_never_its_time_limit(
    env_id: str, terminated: bool, parameters: HostParameters
) -> None:
    episodes = collector_of(env_id).collect(parameters, 0, 3 * toy_envs.HORIZON)
    assert episodes
    assert {episode.terminated for episode in episodes} == {terminated}
    assert {episode.length for episode in episodes} == ({7} if terminated else {toy_envs.HORIZON})


# Randomness


def test_the_same_seed_and_chunk_give_the_same_episodes(parameters: HostParameters) -> None:
    runs = []
    for _ in range(2):
        collector = collector_of(seed=3)
        runs.append(as_bytes([e for chunk in range(3) for e in collector.collect(parameters, chunk, 20)]))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 6


def test_a_seeds_episodes_do_not_depend_on_what_other_seeds_do(parameters: HostParameters) -> None:
    alone, together, other = collector_of(seed=3), collector_of(seed=3), collector_of(seed=8)
    expected = [as_bytes(alone.collect(parameters, chunk, 20)) for chunk in range(2)]
    found = []
    for chunk in range(2):
        other.collect(None, 17 * chunk + 5, 33)
        found.append(as_bytes(together.collect(parameters, chunk, 20)))
    assert found == expected


@pytest.mark.parametrize("with_policy", [False, True])
def test_other_seeds_and_other_chunks_have_other_noise(with_policy: bool, parameters: HostParameters) -> None:
    policy = parameters if with_policy else None
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


def test_evaluation_episodes_are_deterministic_and_differ_among_each_other_and_among_evaluations(
    parameters: HostParameters,
) -> None:
    first, again = evaluation_of("Toy-v0", parameters), evaluation_of("Toy-v0", parameters)
    later = evaluation_of("Toy-v0", parameters, evaluation=1)
    assert as_bytes([i.episode for i in first]) == as_bytes([i.episode for i in again])
    starts = {item.episode.obs[0].tobytes() for item in first + later}
    assert len(starts) == 4


def test_evaluation_acts_without_noise(parameters: HostParameters) -> None:
    episode = evaluation_of("Toy-v0", parameters)[0].episode
    expected = np.stack([TANH_GAUSSIAN.act(parameters, obs, None) for obs in episode.obs[:-1]])
    np.testing.assert_array_equal(episode.action, expected)


def test_named_streams_of_a_seed_are_distinct() -> None:
    draws = {host_random(0, stream, 0).integers(2**62) for stream in Stream}
    assert len(draws) == len(Stream)


# Hidden rewards


def test_a_collector_keeps_hidden_rewards_only_where_it_is_told_to(parameters: HostParameters) -> None:
    without, kept = (
        collector_of("ToyTerminates-v0", keep_hidden=keep_hidden).collect(parameters, 0, 30)
        for keep_hidden in (False, True)
    )
    assert as_bytes(without) == as_bytes(kept)
    assert [episode.hidden_reward for episode in without] == [None] * 4
    for episode in kept:
        assert episode.hidden_reward is not None
        assert (episode.hidden_reward.shape, episode.hidden_reward.dtype) == ((7,), np.float32)
        expected = 1.0 - np.square(episode.obs[1:] - 0.5).sum(axis=-1)  # the toy's own rule
        np.testing.assert_allclose(episode.hidden_reward, expected, rtol=1e-4, atol=1e-5)
        assert episode.episode_return == pytest.approx(float(episode.hidden_reward.sum()), rel=1e-5)


def test_the_hidden_rewards_of_an_episode_under_way_are_kept_for_the_next_chunk(parameters: HostParameters) -> None:
    collector = collector_of(keep_hidden=True)
    episodes = [episode for chunk in range(5) for episode in collector.collect(parameters, chunk, 6)]
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.hidden_reward is not None and len(episode.hidden_reward) == toy_envs.HORIZON
        assert episode.episode_return == pytest.approx(float(episode.hidden_reward.sum()), rel=1e-5)


def test_the_rewards_of_an_environment_that_is_episodic_by_nature_are_at_the_end(
    parameters: HostParameters,
) -> None:
    for item in evaluation_of("ToyEpisodic-v0", parameters):
        assert not item.true_reward[:-1].any()
        assert item.true_reward[-1] == np.float32(item.episode.episode_return) != 0.0


def test_an_episode_of_one_step_has_its_return_as_true_reward(parameters: HostParameters) -> None:
    for item in evaluation_of("ToyOneStep-v0", parameters):
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


def test_a_bad_value_in_an_evaluation_is_said_to_be_there(parameters: HostParameters) -> None:
    with pytest.raises(DiasterError, match=r"'ToyNan-v0' returned nan .* at seed 2's evaluation step 13;"):
        evaluation_of("ToyNan-v0", parameters, seed=2)


def test_large_finite_observations_are_no_error(parameters: HostParameters) -> None:
    env = make_env("Toy-v0", toy_envs.HORIZON)
    env.unwrapped.observe = lambda: np.full(3, 3e38, np.float32)  # their sum is no float32
    collector = Collector(lambda: env, describe_env(env, "Toy-v0", toy_envs.HORIZON), TANH_GAUSSIAN, 0)
    assert len(collector.collect(None, 0, toy_envs.HORIZON)) == 1


# Bringing an environment back


@pytest.mark.parametrize("steps", [10, 13, 29], ids=["none under way", "within", "before its last step"])
@pytest.mark.parametrize("keep_hidden", [False, True])
def test_a_collector_that_was_restored_goes_on_as_the_one_it_was_taken_from(
    parameters: HostParameters, steps: int, keep_hidden: bool
) -> None:
    one, other = (collector_of(seed=3, keep_hidden=keep_hidden) for _ in range(2))
    one.collect(parameters, 0, steps)
    assert other.restore(one.state())
    for chunk in (1, 2):
        mine, theirs = (collector.collect(parameters, chunk, 17) for collector in (one, other))
        assert as_bytes(mine) == as_bytes(theirs)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a.hidden_reward, b.hidden_reward)


def test_mujoco_is_brought_back_bit_by_bit(random_parameters: Callable) -> None:
    env_id, horizon = "Ant-v5", 50  # its rewards depend on positions that lag behind its state
    collectors = []
    for _ in range(2):
        make = partial(make_env, env_id, horizon)
        spec = describe_env(make(), env_id, horizon)
        collectors.append(Collector(make, spec, TANH_GAUSSIAN, 1, Handling(keep_hidden=True)))
    parameters = random_parameters(spec.obs_dim, 2 * spec.action_dim)
    collectors[0].collect(parameters, 0, 73)
    assert collectors[1].restore(collectors[0].state())
    mine, theirs = (collector.collect(parameters, 1, 60) for collector in collectors)
    assert len(mine) >= 1 and as_bytes(mine) == as_bytes(theirs)
    assert mine[0].hidden_reward.tobytes() == theirs[0].hidden_reward.tobytes()


def test_an_environment_that_takes_another_way_is_found_out_and_begins_its_next_episode(
    parameters: HostParameters,
) -> None:
    one, other = collector_of("ToyMoody-v0"), collector_of("ToyMoody-v0")
    one.collect(parameters, 0, 13)
    assert not other.restore(one.state())
    assert other.state().episodes == one.state().episodes
    assert len(other.state().obs) == 0
    assert len(other.collect(parameters, 1, 10)) == 1


@pytest.mark.parametrize("changed", ["obs", "action"])
def test_an_episode_that_was_altered_is_found_out(parameters: HostParameters, changed: str) -> None:
    one, other = collector_of(), collector_of()
    one.collect(parameters, 0, 15)
    state = one.state()
    getattr(state, changed)[2] += 0.5
    assert not other.restore(state)


def test_an_environment_that_raises_on_the_way_back_begins_its_next_episode(parameters: HostParameters) -> None:
    one = collector_of()
    one.collect(parameters, 0, 17)
    assert not collector_of("ToyNanStart-v0").restore(one.state())


def test_an_environment_that_failed_on_the_way_back_is_made_anew_and_no_fault_is_counted(
    parameters: HostParameters,
) -> None:
    one = collector_of()
    one.collect(parameters, 0, 17)
    made = iter(["ToyNanStart-v0", "Toy-v0"])
    spec = describe_env(make_env("Toy-v0", toy_envs.HORIZON), "Toy-v0", toy_envs.HORIZON)
    other = Collector(lambda: make_env(next(made), toy_envs.HORIZON), spec, TANH_GAUSSIAN, 0)
    assert not other.restore(one.state())
    assert len(other.collect(parameters, 1, 10)) == 1
    assert other.faults()[0] == 0


def test_sentences_name_the_step_of_the_run_also_after_it_was_resumed(parameters: HostParameters) -> None:
    one, other = (collector_of("ToyNan-v0") for _ in range(2))
    one.collect(parameters, 0, 12)
    assert other.restore(one.state(), 12)
    with pytest.raises(EnvironmentFault, match="training step 23;"):  # its 13th: two were taken again
        other.collect(parameters, 1, 20)


# Faults


@pytest.mark.parametrize("env_id", ["ToyNan-v0", "ToyNanReward-v0", "ToyRaises-v0", "ToyInfinite-v0"])
def test_a_fault_drops_its_episode_whole_and_the_next_one_begins_in_a_new_environment(
    parameters: HostParameters, env_id: str
) -> None:
    # Every environment ends one episode of 10 steps well and breaks at its 13th step.
    collector = collector_of(env_id, seed=2, retries=1)
    episodes = collector.collect(parameters, 0, 3 * 13 + 10)
    assert [episode.length for episode in episodes] == [10, 10, 10, 10]
    count, sentence = collector.faults()
    assert (count, f"'{env_id}'" in sentence) == (3, True)
    # Dropped episodes count, so that the seeds of resets differ from one to the next.
    fresh = collector_of(seed=2)
    for number, episode in zip((0, 2, 4, 6), episodes, strict=True):
        start = fresh._rollout.reset(reset_seed(2, Stream.COLLECT_RESET, number))
        np.testing.assert_array_equal(episode.obs[0], start)


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_faults_in_a_row_end_the_run_after_so_many(parameters: HostParameters, retries: int) -> None:
    collector = collector_of("ToyNanStart-v0", retries=retries)
    assert collector.collect(parameters, 0, retries) == []
    with pytest.raises(EnvironmentFault, match="nan in its observation"):
        collector.collect(parameters, 1, 1)
    assert collector.faults()[0] == retries + 1


def test_what_a_broken_interface_returns_is_no_fault_to_be_survived(parameters: HostParameters) -> None:
    with pytest.raises(DiasterError, match="observation of shape"):
        collector_of("ToyShape-v0", retries=100).collect(parameters, 0, 100)


def test_faults_are_counted_on_after_a_collector_was_restored(parameters: HostParameters) -> None:
    one, other = (collector_of("ToyNan-v0", retries=1) for _ in range(2))
    one.collect(parameters, 0, 30)
    assert one.faults()[0] == 2
    assert other.restore(one.state())
    assert other.faults()[0] == 2


def test_hidden_rewards_of_a_dropped_episode_are_dropped_with_it(parameters: HostParameters) -> None:
    collector = collector_of("ToyRaises-v0", keep_hidden=True, retries=1)
    for episode in collector.collect(parameters, 0, 60):
        assert episode.hidden_reward is not None and len(episode.hidden_reward) == episode.length
        assert episode.hidden_reward.sum() == pytest.approx(episode.episode_return, rel=1e-5)


def test_an_evaluation_goes_on_without_the_episodes_it_lost_but_not_without_all(parameters: HostParameters) -> None:
    assert len(evaluation_of("ToyNan-v0", parameters, n=4, retries=2)) == 2
    with pytest.raises(EnvironmentFault):
        evaluation_of("ToyNan-v0", parameters, n=4, retries=1)
    with pytest.raises(EnvironmentFault):
        evaluation_of("ToyNanStart-v0", parameters, n=2, retries=100)


@pytest.mark.parametrize(("n", "retries", "kept"), [(1, 1, 1), (2, 3, 1)])
def test_an_evaluation_that_lost_all_of_its_episodes_tries_another(
    parameters: HostParameters, n: int, retries: int, kept: int
) -> None:
    made = iter(["ToyNanStart-v0"] * n + ["Toy-v0"])
    spec = describe_env(make_env("Toy-v0", toy_envs.HORIZON), "Toy-v0", toy_envs.HORIZON)
    rollout = Rollout(lambda: make_env(next(made), toy_envs.HORIZON), spec, "seed 0's evaluation")
    assert len(list(evaluation_episodes(rollout, TANH_GAUSSIAN, parameters, 0, 0, n, retries))) == kept


def test_a_collector_keeps_nothing_of_the_state_it_was_restored_from(parameters: HostParameters) -> None:
    one, other = collector_of(), collector_of()
    one.collect(parameters, 0, 6)
    state = one.state()
    assert other.restore(state)
    for array in (state.obs, state.action):
        array[...] = 77.0  # the memory of a message is written to again
    assert as_bytes(other.collect(parameters, 1, 10)) == as_bytes(one.collect(parameters, 1, 10))

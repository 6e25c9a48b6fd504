"""Collecting and evaluating in vectors: whole episodes of every lane, and no step across a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toy_envs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_vectors import ACTION, EPISODE, LANE, MODES, START, TIME, DictVector, TellingVector

from diaster.actors.acting import EPSILON_GREEDY, TANH_GAUSSIAN
from diaster.actors.rollout import ORDINARY, Handling
from diaster.actors.vectors import VectorCollector, VectorEvaluation
from diaster.envs.isolation import describe
from diaster.envs.source import EnvSource
from diaster.errors import DiasterError, EnvironmentFault
from diaster.types import Episode, EvaluationEpisode, Feedback

HORIZON = 4  # of the longest lane


def collector_of(
    make: Any, handling: Handling = ORDINARY, seed: int = 0, policy: Any = TANH_GAUSSIAN
) -> VectorCollector:
    source = EnvSource("telling", make)
    spec, _ = describe(source, HORIZON, False, 1.0)
    return VectorCollector(source, spec, policy, seed, handling)


def check_whole(episode: Episode) -> int:
    """An episode of one lane from its first step to its last; the lane."""
    lane = int(episode.obs[0, LANE])
    assert (episode.obs[:, LANE] == lane).all()
    assert (episode.obs[:, EPISODE] == episode.obs[0, EPISODE]).all()
    assert (episode.obs[:, START] == episode.obs[0, START]).all()
    assert episode.obs[:, TIME].tolist() == list(range(3 + lane))
    np.testing.assert_allclose(episode.obs[1:, ACTION], episode.action[:, 0], atol=1e-6)  # each led to what follows it
    assert episode.episode_return == sum(100.0 * lane + time for time in range(1, 3 + lane))
    assert episode.terminated == (lane % 2 == 1)
    return lane


@pytest.mark.parametrize("mode", MODES)
def test_every_episode_is_whole_and_of_one_lane_however_the_vector_resets(mode: AutoresetMode) -> None:
    collector = collector_of(lambda: TellingVector(mode=mode))
    episodes = [episode for chunk in range(5) for episode in collector.collect(None, chunk, 30)]
    of_lane: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for episode in episodes:
        of_lane[check_whole(episode)].append(int(episode.obs[0, EPISODE]))
    # 50 steps of the vector; where a step resets a lane, it is none of an episode.
    lengths = [2, 3, 4] if mode is not AutoresetMode.NEXT_STEP else [3, 4, 5]
    finished = [(50 + (mode is AutoresetMode.NEXT_STEP)) // length for length in lengths]
    assert [len(numbers) for numbers in of_lane.values()] == finished
    assert all(numbers == list(range(len(numbers))) for numbers in of_lane.values())


def test_a_vector_takes_whole_steps_and_the_rest_of_a_chunk_in_the_next_one() -> None:
    made: list[TellingVector] = []

    def make() -> TellingVector:
        made.append(TellingVector())
        return made[-1]

    collector = collector_of(make)
    taken = []
    for chunk in range(4):
        collector.collect(None, chunk, 10)
        taken.append(made[-1].steps)
    assert taken == [3, 6, 10, 13]


def test_the_policy_acts_on_what_it_is_shown(random_parameters: Any) -> None:
    parameters = random_parameters(5, 2, 0)
    collector = collector_of(lambda: TellingVector(mode=AutoresetMode.SAME_STEP))
    for episode in collector.collect(parameters, 3, 60):
        check_whole(episode)
    evaluation = evaluation_of(lambda: TellingVector(mode=AutoresetMode.SAME_STEP))
    for item in evaluation.try_episodes(parameters, 0, range(3)):
        assert isinstance(item, EvaluationEpisode)
        expected = [TANH_GAUSSIAN.act(parameters, obs, None) for obs in item.episode.obs[:-1]]
        np.testing.assert_allclose(item.episode.action, expected, atol=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    def starts(seed: int) -> list[float]:
        collector = collector_of(TellingVector, seed=seed)
        return [float(episode.obs[0, START]) for chunk in (0, 1) for episode in collector.collect(None, chunk, 30)]

    assert starts(1) == starts(1)
    assert not set(starts(1)) & set(starts(2))


def test_a_vector_of_gymnasium_collects_what_its_environments_do_by_themselves() -> None:
    """Its first episodes are those of single environments with the seeds that Gymnasium gives them."""

    def make() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: toy_envs.Toy(terminate_at=3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)

    source = EnvSource("sync", make)
    spec, _ = describe(source, 3, False, 1.0)
    episodes = VectorCollector(source, spec, TANH_GAUSSIAN, 0, Handling(keep_hidden=True)).collect(None, 0, 6)
    assert len(episodes) == 2
    for episode in episodes:
        place = episode.obs[0]
        for action, after, reward in zip(episode.action, episode.obs[1:], episode.hidden_reward, strict=True):
            place = 0.9 * place + 0.3 * np.array([*action, 0.0], np.float32)
            np.testing.assert_allclose(after, place, rtol=1e-5)
            assert reward == pytest.approx(1.0 - np.square(place - 0.5).sum(), rel=1e-4)
        assert episode.episode_return == pytest.approx(float(np.sum(episode.hidden_reward)), rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_dict_observations_and_discrete_actions_come_in_lanes_too(mode: AutoresetMode) -> None:
    collector = collector_of(lambda: DictVector(mode), policy=EPSILON_GREEDY)
    episodes = collector.collect(None, 0, 60)
    assert len(episodes) > 10
    for episode in episodes:
        np.testing.assert_array_equal(episode.obs[:, 5:], 2 * episode.obs[:, :5])
        assert episode.obs[1:, ACTION].tolist() == [float(action[1]) - 0.5 for action in episode.action]
        check_whole(episode._replace(obs=episode.obs[:, :5], action=episode.obs[1:, ACTION, None]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [2, "environment"])
def test_feedback_in_pieces_reaches_each_lane(mode: AutoresetMode, every: int | str) -> None:
    collector = collector_of(lambda: TellingVector(mode=mode), Handling(feedback=Feedback(every)))
    episodes = collector.collect(None, 0, 60)
    assert len(episodes) > 10
    for episode in episodes:
        lane, length, spans = int(episode.obs[0, LANE]), episode.length, episode.spans
        assert spans is not None and spans.end.tolist() == [*range(2, length, 2), length]
        paid = [100.0 * lane + time for time in range(1, length + 1)]
        sums = [sum(paid[max(0, end - 2 + end % 2) : end]) for end in spans.end]
        told = [7.0 * end if end % 2 == 0 else np.nan for end in spans.end]
        np.testing.assert_array_equal(spans.number, sums if every == 2 else told)


# Faults


def test_a_fault_drops_the_episodes_of_all_lanes_and_a_new_vector_begins() -> None:
    faults = iter([-1, 5, -1])  # the first one is looked at, the second one breaks
    collector = collector_of(lambda: TellingVector(fault_at=next(faults)), Handling(retries=1))
    episodes = collector.collect(None, 0, 60)
    count, sentence = collector.faults()
    assert count == 1
    assert sentence.startswith("the environment 'telling' raised RuntimeError: the vector broke at seed 0's training")
    assert [check_whole(episode) for episode in episodes[:2]] == [0, 1]  # before it
    assert len(episodes) > 5


def test_more_faults_in_a_row_than_are_survived_end_it() -> None:
    collector = collector_of(lambda: TellingVector(fault_at=1), Handling(retries=2))
    with pytest.raises(EnvironmentFault, match="the vector broke"):
        collector.collect(None, 0, 60)
    assert collector.faults()[0] == 3


def test_an_episode_that_is_longer_than_the_horizon_is_named() -> None:
    source = EnvSource("telling", TellingVector)
    spec, _ = describe(source, 3, False, 1.0)
    with pytest.raises(DiasterError, match=r"'telling' has an episode of more than 3 steps.*--horizon"):
        VectorCollector(source, spec, TANH_GAUSSIAN, 0, Handling()).collect(None, 0, 60)


# States


def test_a_restored_collector_goes_on_in_a_new_vector_and_says_that_it_is_another_one() -> None:
    before = collector_of(TellingVector)
    before.collect(None, 0, 40)
    after = collector_of(TellingVector)
    assert not after.restore(before.state(), 40)
    episodes = after.collect(None, 1, 41)
    assert {check_whole(episode) for episode in episodes} == {0, 1, 2}
    assert before.state().episodes == 1 and after.state().episodes == 2
    fresh = collector_of(TellingVector)
    assert fresh.restore(collector_of(TellingVector).state(), 0)


# Evaluation


def evaluation_of(make: Any, handling: Handling = ORDINARY) -> VectorEvaluation:
    source = EnvSource("telling", make)
    spec, _ = describe(source, HORIZON, False, 1.0)
    return VectorEvaluation(source, spec, TANH_GAUSSIAN, 0, handling)


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_runs_as_many_episodes_as_it_is_asked_for(mode: AutoresetMode, random_parameters: Any) -> None:
    evaluation = evaluation_of(lambda: TellingVector(mode=mode))
    parameters = random_parameters(5, 2, 0)
    seen = [evaluation.try_episodes(parameters, number, range(5)) for number in (0, 1, 0)]
    for outcomes in seen:
        episodes = [item.episode for item in outcomes if isinstance(item, EvaluationEpisode)]
        assert sorted(map(check_whole, episodes)) == [0, 0, 1, 1, 2]  # a round of three and one of two
        for item in outcomes:
            assert isinstance(item, EvaluationEpisode) and item.true_reward is not None
            assert item.true_reward.sum() == item.episode.episode_return
    bits = [[item.episode.obs.tobytes() for item in outcomes] for outcomes in seen]
    assert bits[0] == bits[2] != bits[1]


def test_a_fault_costs_the_episodes_that_run_with_it_and_counts_once(random_parameters: Any) -> None:
    faults = iter([-1, 2, -1])
    evaluation = evaluation_of(lambda: TellingVector(fault_at=next(faults)), Handling(retries=1))
    outcomes = evaluation.try_episodes(random_parameters(5, 2, 0), 0, range(6))
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["EvaluationEpisode", "EnvironmentFault", *["EvaluationEpisode"] * 3]

"""What episodes carry of their feedback: spans with their numbers, and what is known of rewards."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from toy_specs import spec_of, toy_source

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.actors.collector import Collector
from diaster.actors.placement import Placement, make_collectors, make_evaluators
from diaster.actors.rollout import Handling, Rollout
from diaster.envs.making import describe_env, make_env
from diaster.errors import DiasterError, EnvironmentFault
from diaster.types import Episode, EvaluationEpisode, Feedback, Stream, reset_seed

EVERY_THREE, MARKED = Feedback(3), Feedback("environment", has_known=True)


def collector_of(env_id: str, feedback: Feedback, seed: int = 0, keep_hidden: bool = True) -> Collector:
    make = partial(make_env, env_id, toy_envs.HORIZON, feedback)
    spec = describe_env(make(), env_id, toy_envs.HORIZON)
    return Collector(make, spec, TANH_GAUSSIAN, seed, Handling(keep_hidden, feedback=feedback))


def spans_of(episode: Episode) -> list[tuple[int, float]]:
    assert episode.spans is not None
    return list(zip(episode.spans.end.tolist(), episode.spans.number.tolist(), strict=True))


def test_a_number_for_every_three_steps_is_the_sum_of_their_hidden_rewards() -> None:
    [episode, _] = collector_of("Toy-v0", EVERY_THREE).collect(None, 0, 20)
    hidden = episode.hidden_reward
    assert hidden is not None and episode.spans is not None
    assert episode.spans.end.tolist() == [3, 6, 9, 10]
    np.testing.assert_allclose(episode.spans.number, [part.sum() for part in np.split(hidden, [3, 6, 9])], rtol=1e-5)
    assert episode.episode_return == pytest.approx(hidden.sum(), rel=1e-5)
    [short, *_] = collector_of("ToyTerminates-v0", EVERY_THREE).collect(None, 0, 20)
    assert [end for end, _ in spans_of(short)] == [3, 6, 7] and short.terminated


def test_a_number_for_at_least_as_many_steps_as_an_episode_has_is_its_return() -> None:
    for every in (10, 99):
        [one] = collector_of("Toy-v0", Feedback(every)).collect(None, 0, 10)
        [other] = collector_of("Toy-v0", Feedback()).collect(None, 0, 10)
        assert spans_of(one) == [(10, other.episode_return)] and one.episode_return == other.episode_return
        assert other.spans is None and other.known_reward is None


def told(env: gym.Env[Any, Any], episode: Episode) -> list[dict[str, Any]]:
    """What the environment itself says when the episode's actions are taken again."""
    return [env.step(action)[4] for action in episode.action]


def test_marks_of_an_environment_are_where_it_made_them_and_the_rest_has_no_number() -> None:
    seen: set[str] = set()
    for seed in range(30):
        collector = collector_of("ToyMarks-v0", MARKED, seed)
        [episode] = collector.collect(None, 0, 10)
        env = gym.make("ToyMarks-v0").unwrapped
        env.reset(seed=reset_seed(seed, Stream.COLLECT_RESET, 0))
        said = told(env, episode)
        marks = {t: info["feedback"] for t, info in enumerate(said, 1) if "feedback" in info}
        expected = [(t, math.nan if mark is None else mark) for t, mark in marks.items()]
        if 10 not in marks:
            expected.append((10, math.nan))
            seen.add("steps after the last mark")
        np.testing.assert_allclose(spans_of(episode), expected, rtol=1e-4, atol=1e-4)
        assert episode.known_reward is not None and episode.hidden_reward is not None
        np.testing.assert_array_equal(episode.known_reward, [info["known_reward"] for info in said])
        assert episode.episode_return == pytest.approx(episode.hidden_reward.sum(), rel=1e-4)
        seen |= {"a mark without a number" if mark is None else "a mark" for mark in marks.values()}
    assert seen == {"steps after the last mark", "a mark without a number", "a mark"}


def test_what_is_known_is_taken_off_the_numbers() -> None:
    [episode] = collector_of("ToyMarks-v0", Feedback(4, has_known=True)).collect(None, 0, 10)
    assert episode.known_reward is not None and episode.spans is not None
    left = episode.to_decompose
    np.testing.assert_array_equal(left.end, [4, 8, 10])
    known = [part.sum() for part in np.split(episode.known_reward, [4, 8])]
    assert known == [0.5, 0.5, 0.25]  # a quarter at every odd step
    np.testing.assert_allclose(left.number, episode.spans.number - known)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("env_id", "feedback"), [("Toy-v0", EVERY_THREE), ("ToyMarks-v0", MARKED)])
def test_feedback_is_the_same_in_workers_and_in_processes_of_its_own(
    workers: int, env_id: str, feedback: Feedback, random_parameters: Any
) -> None:
    spec = spec_of(env_id)
    place = Placement(toy_source(env_id), spec, TANH_GAUSSIAN, (0, 7), 0, Handling(feedback=feedback))
    others = [place._replace(workers=workers)]
    if workers == 1:
        others.append(place._replace(handling=Handling(isolate=True, feedback=feedback)))
    parameters = [random_parameters(3, 4, seed) for seed in (0, 7)]
    found = []
    for one in (place, *others):
        collectors, evaluators = make_collectors(one), make_evaluators(one, 2)
        try:
            evaluators.start(parameters, 0, 2)
            found.append((collectors.collect([None, parameters[1]], 0, 25), evaluators.finish()))
        finally:
            collectors.close()
            evaluators.close()
    for other in found[1:]:
        assert as_bytes(other) == as_bytes(found[0])
    [first, *_] = found[0][1][0]
    assert first.episode.spans is not None and len(first.episode.spans.end) > 1


def as_bytes(tree: Any) -> Any:
    """Everything in it, arrays bit by bit."""
    if isinstance(tree, np.ndarray):
        return tree.dtype, tree.shape, tree.tobytes()
    return [as_bytes(item) for item in tree] if isinstance(tree, list | tuple) else tree


@pytest.mark.parametrize("feedback", [EVERY_THREE, MARKED])
@pytest.mark.parametrize("steps", [14, 16, 19])
def test_an_episode_that_was_cut_off_within_a_span_goes_on_with_the_spans_it_had(
    feedback: Feedback, steps: int
) -> None:
    one, other = (collector_of("ToyMarks-v0", feedback, 4) for _ in range(2))
    one.collect(None, 0, steps)
    assert other.restore(one.state())
    mine, theirs = (collector.collect(None, 1, 17) for collector in (one, other))
    assert as_bytes(mine) == as_bytes(theirs) and len(mine) == 2


def test_evaluation_episodes_have_their_feedback_too(random_parameters: Any) -> None:
    handling = Handling(feedback=Feedback(5))
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, (0,), 0, handling)
    evaluators = make_evaluators(place, 1)
    evaluators.start([random_parameters(3, 4)], 0, 1)
    [[found]] = evaluators.finish()
    evaluators.close()
    assert isinstance(found, EvaluationEpisode) and found.true_reward is not None
    expected = [found.true_reward[:5].sum(), found.true_reward[5:].sum()]
    np.testing.assert_allclose([number for _, number in spans_of(found.episode)], expected, rtol=1e-5)


# What environments say wrongly


def step_of(info: dict[str, Any], feedback: Feedback) -> Episode | None:
    env: Any = toy_envs.SayingToy(info)
    env = gym.wrappers.TimeLimit(env, 1)
    rollout = Rollout(lambda: env, describe_env(env, "Saying-v0", 1), "a test's", feedback)
    rollout.reset(0)
    return rollout.step(np.zeros(2, np.float32))[1]


def test_marks_may_be_numbers_of_any_kind_or_none() -> None:
    for value in (2, 2.0, np.float32(2.0), np.array([2.0]), True + 1):
        episode = step_of({"feedback": value}, Feedback("environment"))
        assert episode is not None and spans_of(episode) == [(1, 2.0)]
    for nothing in (None, math.nan, np.float32(np.nan)):
        episode = step_of({"feedback": nothing}, Feedback("environment"))
        assert episode is not None and math.isnan(spans_of(episode)[0][1])


@pytest.mark.parametrize("wrong", ["good", [1.0, 2.0], {}, np.zeros(3)])
def test_a_mark_that_is_no_number_is_a_sentence(wrong: Any) -> None:
    with pytest.raises(DiasterError, match=r"gave an info\['feedback'\] of the kind .*, not a number, at") as caught:
        step_of({"feedback": wrong}, Feedback("environment"))
    assert not isinstance(caught.value, EnvironmentFault)


@pytest.mark.parametrize("large", [math.inf, -math.inf, 1e19])
def test_a_mark_or_known_reward_that_learning_cannot_hold_is_a_fault(large: float) -> None:
    with pytest.raises(EnvironmentFault, match=r"gave an info\['feedback'\] of .*at most 1e\+18"):
        step_of({"feedback": large}, Feedback("environment"))
    with pytest.raises(EnvironmentFault, match=r"gave an info\['known_reward'\] of"):
        step_of({"known_reward": large}, Feedback(has_known=True))


@pytest.mark.parametrize("info", [{}, {"known_reward": None}, {"known_reward": math.nan}])
def test_a_known_reward_that_is_promised_and_missing_is_a_sentence(info: dict[str, Any]) -> None:
    with pytest.raises(DiasterError, match=r"gave no info\['known_reward'\], which known_rewards promises"):
        step_of(info, Feedback(has_known=True))


def test_what_nobody_asked_for_is_not_looked_at() -> None:
    episode = step_of({"feedback": "good", "known_reward": "better"}, Feedback())
    assert episode is not None and episode.spans is None and episode.known_reward is None

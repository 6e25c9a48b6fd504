"""Rewards that come every k steps, and what a run's environment shows of them."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs

import diaster
from diaster.envs.delayed import FEEDBACK, TRUE_REWARD, DelayedReward
from diaster.envs.making import make_env
from diaster.errors import DiasterError
from diaster.types import Feedback


def play(env: gym.Env[Any, Any], n_steps: int = toy_envs.HORIZON) -> list[tuple[float, dict[str, Any]]]:
    env.reset(seed=5)
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (n_steps, 2)).astype(np.float32)
    steps = [env.step(action) for action in actions]
    return [(float(step[1]), step[4]) for step in steps]


PLAIN = [reward for reward, _ in play(gym.make("Toy-v0"))]


def sums(every: int) -> list[float]:
    """Of every k of the plain rewards, at the last of them; zero elsewhere."""
    shown, since = [], 0.0
    for n, reward in enumerate(PLAIN, 1):
        since += reward
        is_end = n % every == 0 or n == len(PLAIN)
        shown.append(since if is_end else 0.0)
        since = 0.0 if is_end else since
    return shown


@pytest.mark.parametrize("every", [1, 3, 5, 10, 99])
def test_the_reward_is_zero_until_the_kth_step_and_then_exactly_the_sum_since_the_last(every: int) -> None:
    steps = play(DelayedReward(gym.make("Toy-v0"), every=every))
    assert [reward for reward, _ in steps] == sums(every)
    assert [info[TRUE_REWARD] for _, info in steps] == PLAIN
    marks = {n: info[FEEDBACK] for n, (_, info) in enumerate(steps, 1) if FEEDBACK in info}
    assert marks == {n: total for n, total in enumerate(sums(every), 1) if n % every == 0 or n == 10}


def test_an_episode_that_ends_early_pays_what_it_still_owes() -> None:
    steps = play(DelayedReward(gym.make("ToyTerminates-v0"), every=3), 7)
    assert [n for n, (_, info) in enumerate(steps, 1) if FEEDBACK in info] == [3, 6, 7]
    assert sum(reward for reward, _ in steps) == pytest.approx(sum(PLAIN[:7]))


def test_steps_are_counted_anew_in_each_episode_even_after_one_that_was_left_early() -> None:
    env = DelayedReward(gym.make("Toy-v0"), every=3)
    play(env, 5)
    assert [reward for reward, _ in play(env)] == sums(3)


def test_without_a_number_of_steps_nothing_is_marked() -> None:
    assert not any(FEEDBACK in info for _, info in play(DelayedReward(gym.make("Toy-v0"))))


def test_marks_of_the_environments_own_are_left_alone_unless_others_take_their_place() -> None:
    plain = [FEEDBACK in info for _, info in play(gym.make("ToyMarks-v0"))]
    assert any(plain)
    assert [FEEDBACK in info for _, info in play(DelayedReward(gym.make("ToyMarks-v0")))] == plain
    replaced = play(DelayedReward(gym.make("ToyMarks-v0"), every=5))
    assert [n for n, (_, info) in enumerate(replaced, 1) if FEEDBACK in info] == [5, 10]


def test_delayed_rewards_can_be_delayed_further_and_the_true_ones_stay_known() -> None:
    inner = DelayedReward(gym.make("Toy-v0"), every=2)
    steps = play(DelayedReward(inner, every=4))
    assert [reward for reward, _ in steps] == pytest.approx(sums(4))
    assert [info[TRUE_REWARD] for _, info in steps] == PLAIN


def test_a_reward_that_is_no_number_is_passed_on_at_once_and_is_no_mark() -> None:
    env = DelayedReward(gym.make("ToyNanReward-v0"), every=5)
    play(env, 10)
    steps = play(env, 10)  # the thirteenth step is the third of this episode
    assert np.isnan(steps[2][0]) and FEEDBACK not in steps[2][1]
    assert np.isfinite([reward for n, (reward, _) in enumerate(steps) if n != 2]).all()


@pytest.mark.parametrize("every", [0, -1, 2.5, "3", True])
def test_what_is_no_number_of_steps_is_a_sentence(every: Any) -> None:
    with pytest.raises(DiasterError, match="whole number of steps, 1 or more"):
        DelayedReward(gym.make("Toy-v0"), every=every)


def test_it_is_a_wrapper_for_everyone_which_gymnasium_can_make_again_from_its_description() -> None:
    assert diaster.DelayedReward is DelayedReward
    env = DelayedReward(gym.make("Toy-v0"), every=4)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert isinstance(again, DelayedReward) and again.every == 4
    assert [reward for reward, _ in play(again)] == sums(4)


# As a run makes it


@pytest.mark.parametrize(("feedback", "expected"), [(Feedback(), 10), (Feedback(3), 3), (Feedback("environment"), 10)])
def test_an_environment_of_a_run_shows_its_rewards_as_the_settings_say(feedback: Feedback, expected: int) -> None:
    steps = play(make_env("Toy-v0", toy_envs.HORIZON, feedback))
    assert [reward for reward, _ in steps] == sums(expected)
    assert [info[TRUE_REWARD] for _, info in steps] == PLAIN


def test_an_environment_that_was_registered_with_delayed_rewards_is_what_it_is() -> None:
    spec = copy.copy(gym.spec("Toy-v0"))
    home = "diaster.envs.delayed:DelayedReward"
    spec.additional_wrappers = (gym.envs.registration.WrapperSpec("DelayedReward", home, {"every": 2}),)
    for feedback, expected in ((Feedback(), 10), (Feedback(2), 2), (Feedback(4), 4)):
        steps = play(make_env(spec, toy_envs.HORIZON, feedback))
        assert [reward for reward, _ in steps] == pytest.approx(sums(expected))
        assert [info[TRUE_REWARD] for _, info in steps] == PLAIN
    marked = play(make_env(spec, toy_envs.HORIZON, Feedback("environment")))
    assert [info.get(FEEDBACK, 0.0) for _, info in marked] == sums(2)

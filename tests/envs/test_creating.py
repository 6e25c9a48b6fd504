"""Environments as their makers give them: their longest episode, their time limit, and why one cannot be made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs

from diaster.config import PAPER_TASKS
from diaster.envs import creating
from diaster.envs.creating import created, find_horizon, time_limit
from diaster.envs.making import make_env
from diaster.envs.source import EnvSource, find_source
from diaster.errors import DiasterError

LIMITED = EnvSource("limited", lambda: gym.make("Toy-v0"))
ENDLESS = EnvSource("endless", toy_envs.Toy)


def length(env: gym.Env) -> tuple[int, bool]:
    """How long an episode is, and whether a time limit ends it."""
    env.reset(seed=0)
    for number in range(1, 100):
        *_, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        if terminated or truncated:
            return number, bool(truncated)
    raise AssertionError("no end")


@pytest.mark.parametrize("env_id", sorted(PAPER_TASKS))
def test_the_papers_tasks_have_a_horizon_of_1000(env_id: str) -> None:
    assert find_horizon(env_id, "auto") == 1000


def test_other_environments_keep_their_own_horizon() -> None:
    assert find_horizon("Toy-v0", "auto") == toy_envs.HORIZON
    assert find_horizon("Reacher-v5", "auto") == 50


@pytest.mark.parametrize("env_id", ["Toy-v0", "Hopper-v5", "ToyEndless-v0"])
def test_a_horizon_that_is_given_goes_before_every_other(env_id: str) -> None:
    assert find_horizon(env_id, 17) == 17


def test_an_environment_without_a_limit_asks_for_a_horizon() -> None:
    with pytest.raises(DiasterError, match=r"'ToyEndless-v0' has no time limit.*--horizon"):
        find_horizon("ToyEndless-v0", "auto")


def test_what_a_function_makes_has_the_time_limit_it_comes_with() -> None:
    assert find_horizon(LIMITED, "auto") == toy_envs.HORIZON
    assert find_horizon(LIMITED, 4) == 4
    with pytest.raises(DiasterError, match=r"'endless' has no time limit.*horizon=1000"):
        find_horizon(ENDLESS, "auto")


@pytest.mark.parametrize(("source", "horizon", "steps"), [(LIMITED, 4, 4), (LIMITED, 30, 10), (ENDLESS, 7, 7)])
def test_what_a_function_makes_ends_at_the_horizon_or_by_its_own_limit(
    source: EnvSource, horizon: int, steps: int
) -> None:
    assert length(make_env(source, horizon)) == (steps, True)


def test_the_smallest_of_several_time_limits_is_the_limit() -> None:
    env = gym.wrappers.TimeLimit(gym.wrappers.TimeLimit(toy_envs.Toy(), 6), 8)
    assert time_limit(env) == 6
    assert time_limit(toy_envs.Toy()) is None


def test_arguments_go_to_what_makes_the_environment() -> None:
    for source in (find_source("ToyWide-v0", {"width": 5}), EnvSource("wide", toy_envs.make_wide, {"width": 5})):
        assert make_env(source, 10).observation_space.shape == (5,)


def test_an_argument_that_is_not_known_is_a_sentence_with_its_name() -> None:
    for source in (find_source("ToyWide-v0", {"colour": 5}), EnvSource("wide", toy_envs.make_wide, {"colour": 5})):
        with pytest.raises(DiasterError, match=r"cannot be made: TypeError:.*colour"):
            created(source)


def test_a_render_mode_goes_to_functions_that_take_one() -> None:
    def make(render_mode: str | None = None) -> gym.Env:
        return toy_envs.RunnerToy(render_mode)

    def make_any(**kwargs: Any) -> gym.Env:
        return toy_envs.RunnerToy(**kwargs)

    sources = (
        EnvSource("a", make),
        EnvSource("b", make_any),
        EnvSource("c", toy_envs.RunnerToy),
        EnvSource("d", toy_envs.Toy),
    )
    modes = [make_env(source, 10, render_mode="rgb_array").render_mode for source in sources]
    assert modes == ["rgb_array", "rgb_array", "rgb_array", None]


@pytest.mark.parametrize("made", [None, 3, "ToyWide-v0", object()])
def test_what_is_no_environment_is_refused(made: Any) -> None:
    with pytest.raises(DiasterError, match=r"'odd' returned .*no environment of Gymnasium"):
        make_env(EnvSource("odd", lambda: made), 10)


def test_a_function_that_returns_one_environment_over_and_over_is_refused() -> None:
    env = toy_envs.Toy()
    source = EnvSource("one", lambda: gym.wrappers.TimeLimit(env, 10))
    make_env(source, 10)
    with pytest.raises(DiasterError, match=r"'one' returned the same environment twice.*lambda: MyEnv"):
        make_env(source, 10)


def test_a_robot_that_this_mujoco_cannot_have_is_a_sentence_with_the_version_that_can() -> None:
    pytest.importorskip("gymnasium_robotics")
    if not creating._mujoco_compares_otherwise():
        pytest.skip("this version of MuJoCo has it")
    for source in (find_source("FetchReach-v4"), EnvSource("mine", lambda: gym.make("FetchReach-v4"))):
        with pytest.raises(DiasterError, match=rf"'{source.name}' cannot be made: .*mujoco<3\.12"):
            make_env(source, 50)


def test_an_assertion_of_another_environment_is_told_as_it_is() -> None:
    def fail() -> gym.Env:
        raise AssertionError("no more than three")

    with pytest.raises(DiasterError, match=r"'mine' cannot be made: AssertionError: no more than three\.$"):
        created(EnvSource("mine", fail))

"""Vectors taken apart into lanes, and a vector as a single environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_vectors import EPISODE, LANE, MODES, TIME, DictVector, TellingVector

from diaster.envs.creating import created, find_horizon, time_limit
from diaster.envs.delayed import TRUE_REWARD
from diaster.envs.making import describe_env, make_env
from diaster.envs.source import EnvSource
from diaster.envs.vector import FirstOf, Lanes, vector_limit
from diaster.errors import DiasterError


def lanes_of(vector: Any, horizon: int = 10) -> Lanes:
    return Lanes(vector, "telling", horizon)


def act(lanes: Lanes, value: float = 0.5) -> None:
    lanes.step([np.full(1, value, np.float32)] * len(lanes.each))


@pytest.mark.parametrize("mode", MODES)
def test_a_lane_gives_out_its_last_observation_and_then_the_first_of_the_next_episode(mode: AutoresetMode) -> None:
    lanes = lanes_of(TellingVector(mode=mode))
    lanes.reset(7)
    lane = lanes.each[1]  # three steps
    assert lane.reset()[0][[LANE, EPISODE, TIME]].tolist() == [1, 0, 0]
    for time in (1, 2, 3):
        assert not lanes.prepare()[1]
        act(lanes)
        obs, reward, terminated, truncated, _ = lane.step(None)
        assert obs[[LANE, EPISODE, TIME]].tolist() == [1, 0, time]
        assert (reward, terminated, truncated) == (100 + time, time == 3, False)
    is_idle = bool(lanes.prepare()[1])
    assert is_idle == (mode is AutoresetMode.NEXT_STEP)
    if is_idle:
        act(lanes)
        assert not lanes.prepare()[1]
    assert lane.reset()[0][[LANE, EPISODE, TIME]].tolist() == [1, 1, 0]
    act(lanes)
    assert lane.step(None)[0][[LANE, EPISODE, TIME]].tolist() == [1, 1, 1]


def test_a_step_that_resets_ends_nothing_whatever_it_says() -> None:
    vector = TellingVector()
    vector.stale = True
    lanes = lanes_of(vector)
    lanes.reset(0)
    for _ in range(3):  # two steps, and one that resets
        act(lanes)
    assert not lanes.prepare()[0]


def test_all_lanes_begin_anew_when_the_vector_is_reset() -> None:
    lanes = lanes_of(TellingVector())
    for _ in range(2):
        lanes.reset(7)
        starts = [lane.reset()[0].copy() for lane in lanes.each]
        act(lanes)
        act(lanes)
    assert [start[TIME] for start in starts] == [0, 0, 0]
    assert lanes.each[0].step(None)[1] == 2.0


@pytest.mark.parametrize("mode", [None, "now and then", 3])
def test_a_vector_that_does_not_say_how_it_resets_is_refused(mode: Any) -> None:
    vector = TellingVector()
    vector.metadata = {} if mode is None else {"autoreset_mode": mode}
    with pytest.raises(DiasterError, match=r"'telling' does not say how it begins episodes.*AutoresetMode"):
        lanes_of(vector)


def test_the_way_of_resetting_may_be_given_as_a_text() -> None:
    vector = TellingVector()
    vector.metadata = {"autoreset_mode": "NextStep"}
    assert lanes_of(vector).each


def test_what_a_vector_raises_is_raised_where_a_lane_is_asked() -> None:
    lanes = lanes_of(TellingVector(fault_at=1))
    lanes.reset(0)
    act(lanes)
    lanes.each[0].step(None)
    act(lanes)
    for lane in lanes.each:
        with pytest.raises(RuntimeError, match="the vector broke"):
            lane.step(None)
    lanes.reset(0)  # forgets it
    lanes.each[0].reset()


def test_an_episode_beyond_the_horizon_is_refused() -> None:
    lanes = lanes_of(TellingVector(), horizon=2)
    lanes.reset(0)
    for _ in range(2):
        act(lanes)
        lanes.each[2].step(None)
    act(lanes)
    with pytest.raises(DiasterError, match="an episode of more than 2 steps"):
        lanes.each[2].step(None)


# A vector as a single environment


@pytest.mark.parametrize("mode", MODES)
def test_the_first_of_a_vector_is_an_environment_that_can_be_looked_at(mode: AutoresetMode) -> None:
    env = make_env(EnvSource("telling", lambda: TellingVector(mode=mode)), 4)
    for _ in range(2):
        obs, _ = env.reset(seed=3)
        assert obs[[LANE, TIME]].tolist() == [0, 0]
        seen = [(float(step[0][TIME]), *step[1:]) for step in (env.step(np.zeros(1, np.float32)) for _ in range(2))]
        assert [time for time, *_ in seen] == [1, 2]
        assert [step[1] for step in seen] == [0.0, 3.0]  # both rewards, at its end
        assert [step[4][TRUE_REWARD] for step in seen] == [1.0, 2.0]
        assert [step[3] for step in seen] == [False, True]
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again, obs)


def test_what_a_vector_tells_of_its_first_lane_comes_along() -> None:
    env = make_env(EnvSource("telling", TellingVector), 4)
    env.reset(seed=0)
    assert env.step(np.zeros(1, np.float32))[4]["x_position"] == 0.5


def test_the_picture_of_a_vector_is_that_of_its_first_lane() -> None:
    env = make_env(EnvSource("telling", TellingVector), 4)
    env.reset(seed=0)
    env.step(np.zeros(1, np.float32))
    assert env.render_mode == "rgb_array"
    picture: Any = env.render()
    assert picture.shape == (30, 40, 3) and (picture == 1).all()


def test_a_vector_is_described_by_one_of_its_lanes_and_their_number() -> None:
    spec = describe_env(make_env(EnvSource("telling", DictVector), 4), "telling", 4)
    assert (spec.lanes, spec.obs_dim, spec.action_dim, spec.discrete, spec.first_action) == (3, 10, 2, True, 1)
    assert describe_env(make_env("Toy-v0", 10), "Toy-v0", 10).lanes == 0


def test_the_limit_of_a_vector_is_that_of_its_environments() -> None:
    five = gym.make_vec("Toy-v0", num_envs=2, max_episode_steps=5)
    own = gym.make_vec("ToyVector-v0", num_envs=2, vectorization_mode="vector_entry_point", max_episode_steps=6)
    plain = SyncVectorEnv([toy_envs.Toy] * 2)
    assert [vector_limit(vector) for vector in (five, own, plain)] == [5, 6, None]
    assert vector_limit(gym.make_vec("Toy-v0", num_envs=2)) == toy_envs.HORIZON
    assert time_limit(FirstOf(five, "x")) == 5


def test_a_horizon_that_a_vector_would_have_to_cut_is_refused() -> None:
    source = EnvSource("toys", lambda: gym.make_vec("Toy-v0", num_envs=2))
    assert find_horizon(source, "auto") == toy_envs.HORIZON
    with pytest.raises(DiasterError, match=r"'toys' is a vector.*after 10 steps.*max_episode_steps=4"):
        created(source, 4)


def test_a_function_that_returns_one_vector_over_and_over_is_refused() -> None:
    vector = TellingVector()
    source = EnvSource("one", lambda: vector)
    created(source)
    with pytest.raises(DiasterError, match="'one' returned the same environment twice"):
        created(source)

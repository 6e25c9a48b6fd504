"""The learnt reward as an environment's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from small_runs import EVERY_METHOD

import diaster
from diaster import DecomposedReward, DiasterError, Run

Trained = Callable[..., Run]


@pytest.fixture
def run(trained: Trained) -> Run:
    return trained(seeds=[4, 9], method=EVERY_METHOD["rd"]["method"], agent="ddpg")  # looks at what a step led to


def walk(env: gym.Env[Any, Any], n: int) -> list[tuple[Any, Any, float, Any, dict[str, Any]]]:
    """Some steps at random: the observation before, the action, the reward, the observation after, the info."""
    env.action_space.seed(0)
    obs, _ = env.reset(seed=7)
    found = []
    for _ in range(n):
        before, action = np.copy(obs), env.action_space.sample()
        obs, reward, *_, info = env.step(action)
        found.append((before, action, float(reward), np.copy(obs), info))
    return found


@pytest.mark.parametrize("seed", [None, 9])
def test_it_pays_the_step_reward_of_the_run_and_tells_the_environments_own(run: Run, seed: int | None) -> None:
    paid = walk(DecomposedReward(gym.make("Toy-v0"), run, seed), 6)
    plain = walk(gym.make("Toy-v0"), 6)
    for (obs, action, reward, after, info), (_, _, true, same, _) in zip(paid, plain, strict=True):
        np.testing.assert_array_equal(after, same)
        assert reward == float(run.step_reward(obs, action, after, seed=seed))
        assert info["true_reward"] == true
    assert len({reward for _, _, reward, _, _ in paid}) > 3


def test_seeds_pay_different_rewards(run: Run) -> None:
    first, second = (walk(DecomposedReward(gym.make("Toy-v0"), run, seed), 3) for seed in (4, 9))
    assert [step[2] for step in first] != [step[2] for step in second]


def test_an_environment_that_writes_into_its_last_observation_is_paid_for_what_it_showed(run: Run) -> None:
    class InPlace(gym.ObservationWrapper[Any, Any, Any]):
        shown = np.zeros(3, np.float32)

        def observation(self, obs: Any) -> Any:
            self.shown[:] = obs
            return self.shown

    ordinary, in_place = (
        walk(DecomposedReward(env, run), 4) for env in (gym.make("Toy-v0"), InPlace(gym.make("Toy-v0")))
    )
    assert [step[2] for step in ordinary] == [step[2] for step in in_place]


def test_it_is_an_environment_like_any_other(run: Run) -> None:
    check_env(DecomposedReward(gym.make("Toy-v0"), run).unwrapped, skip_render_check=True)
    env = DecomposedReward(gym.make("Toy-v0"), run)
    assert env.observation_space == gym.make("Toy-v0").observation_space
    assert gym.wrappers.RecordEpisodeStatistics(env).reset(seed=0)[0].shape == (3,)


def test_a_reward_that_is_hidden_already_is_told_from_inside(run: Run) -> None:
    env = DecomposedReward(run.make_env(), run)
    true = [step[2] for step in walk(gym.make("Toy-v0"), 4)]
    assert [step[4]["true_reward"] for step in walk(env, 4)] == pytest.approx(true)


def test_dict_observations_and_discrete_actions_are_understood(trained: Trained) -> None:
    for env, agent in (("ToyDict-v0", "ddpg"), ("ToyDiscreteFrom5-v0", "dqn")):
        run = trained(env=env, agent=agent)
        wrapped = DecomposedReward(gym.make(env), run)
        obs, _ = wrapped.reset(seed=0)
        action = wrapped.action_space.sample()
        _, reward, *_ = wrapped.step(action)
        assert reward == float(run.step_reward(obs, action))


def test_what_the_run_knew_of_the_rewards_is_paid_too(trained: Trained) -> None:
    run = trained(env="ToyMarks-v0", method=EVERY_METHOD["rd"]["method"], agent="ddpg", known_rewards=True)
    steps = walk(DecomposedReward(gym.make("ToyMarks-v0"), run), 4)
    assert {info["known_reward"] for *_, info in steps} == {0.0, 0.25}
    for obs, action, reward, after, info in steps:
        assert reward == pytest.approx(float(run.step_reward(obs, action, after)) + info["known_reward"])
    silent = DecomposedReward(gym.make("Toy-v0"), run)
    silent.reset(seed=0)
    with pytest.raises(DiasterError, match=r"gave no info\['known_reward'\]"):
        silent.step(silent.action_space.sample())


@pytest.mark.parametrize("method", ["rudder", "uniform"])
def test_methods_whose_rewards_depend_on_more_than_the_step_are_refused_at_once(trained: Trained, method: str) -> None:
    run = trained(**{**EVERY_METHOD[method], "env": "Toy-v0", "agent": "ddpg"})
    with pytest.raises(DiasterError, match=rf"rewards of this run \({method}\) depend on more than a single step"):
        DecomposedReward(gym.make("Toy-v0"), run)


def test_another_environment_and_a_seed_that_was_not_trained_are_refused(run: Run) -> None:
    for other in ("ToyDict-v0", "ToyDiscrete-v0", "Pendulum-v1"):
        with pytest.raises(DiasterError, match="give an environment like it"):
            DecomposedReward(gym.make(other), run)
    with pytest.raises(DiasterError, match="no seed 5"):
        DecomposedReward(gym.make("Toy-v0"), run, seed=5)


def test_it_is_part_of_the_package() -> None:
    assert diaster.DecomposedReward is DecomposedReward

"""A run that is read back: observations in any form the environment has, and files that do not belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy

import diaster
from diaster.rundir.records import DECOMPOSER, POLICY
from diaster.types import Episode, EvaluationEpisode

TINY: dict[str, Any] = {
    "steps": 60,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 20,
    "warmup_steps": 40,
    "method": {"name": "diaster", "hidden": 4, "segments_per_episode": 2},
    "agent": {"name": "ddpg", "hidden": 4, "batch_size": 8},
    "evaluation": {"every": 60, "episodes": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> diaster.Run:
    return diaster.train("ToyDict-v0", out=tmp_path_factory.mktemp("runs") / "run", seeds=[3, 8], **TINY)


def test_the_public_names_are_functions_however_often_they_are_asked_for(run: diaster.Run) -> None:
    import diaster.training.train  # the module must not take the function's place

    assert callable(diaster.train) and callable(diaster.load)


def test_a_dict_observation_acts_like_its_flat_form(run: diaster.Run) -> None:
    raw, _ = gym.make("ToyDict-v0").reset(seed=0)
    flat = gym.spaces.flatten(gym.make("ToyDict-v0").observation_space, raw)
    policy = run.policy(seed=8)
    np.testing.assert_array_equal(policy(raw), policy(flat))


def test_an_observation_of_another_shape_is_refused(run: diaster.Run) -> None:
    for wrong in (np.zeros(5), {"place": np.zeros(3)}, 1.0):
        with pytest.raises(diaster.DiasterError, match="ToyDict-v0"):
            run.policy()(wrong)


def test_a_seed_that_was_not_trained_is_refused_with_those_that_were(run: diaster.Run) -> None:
    with pytest.raises(diaster.DiasterError, match=r"no seed 5; it has 3, 8"):
        run.policy(seed=5)


def test_the_actor_is_the_policy_in_the_terms_of_the_nets(run: diaster.Run) -> None:
    obs = np.full(run.spec.obs_dim, 0.3, np.float32)
    np.testing.assert_array_equal(run.spec.to_env(run.actor(seed=8)(obs)), run.policy(seed=8)(obs))


def test_step_rewards_of_whole_episodes_are_those_of_their_steps(run: diaster.Run) -> None:
    obs = np.linspace(-1.0, 1.0, 4 * run.spec.obs_dim, dtype=np.float32).reshape(4, -1)
    action = np.zeros((3, run.spec.action_dim), np.float32)
    [found] = run.step_rewards([EvaluationEpisode(Episode(obs, action, 1.0, True), None)], seed=8)
    np.testing.assert_allclose(found, run.step_reward(obs[:-1], run.spec.to_env(action), seed=8), rtol=1e-4)


def test_seeds_have_policies_of_their_own(run: diaster.Run) -> None:
    obs = np.zeros(run.spec.obs_dim)
    assert not np.array_equal(run.policy(seed=3)(obs), run.policy(seed=8)(obs))


@pytest.mark.parametrize("file", [POLICY, DECOMPOSER])
def test_nets_of_another_run_are_refused(run: diaster.Run, tmp_path: Path, file: str) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    tensors = {name: tensor[..., :1].copy() for name, tensor in safetensors.numpy.load_file(copy / file).items()}
    (copy / file).write_bytes(safetensors.numpy.save(tensors))
    with pytest.raises(diaster.DiasterError, match=f"{file}' does not belong"):
        diaster.load(copy).evaluate(episodes=1)


def test_a_step_reward_needs_no_more_than_the_step_where_the_method_says_so(run: diaster.Run) -> None:
    raw, _ = gym.make("ToyDict-v0").reset(seed=0)
    action = np.zeros(2)
    alone, led_to = run.step_reward(raw, action, seed=8), run.step_reward(raw, action, next_obs=raw, seed=8)
    assert alone.shape == () and alone == led_to
    assert alone != run.step_reward(raw, action, seed=3)


WITHOUT_A_STEP_REWARD = {
    "difference": {"method": {**TINY["method"], "reward_source": "difference"}},
    "uniform": {"method": "uniform"},
}


@pytest.mark.parametrize("name", WITHOUT_A_STEP_REWARD)
def test_step_rewards_that_depend_on_more_than_the_step_are_refused(tmp_path: Path, name: str) -> None:
    run = diaster.train("Toy-v0", out=tmp_path / "run", **{**TINY, **WITHOUT_A_STEP_REWARD[name]})
    with pytest.raises(diaster.DiasterError, match=rf"rewards of this run \({run.config.method.name}\) depend on more"):
        run.step_reward(np.zeros(3), np.zeros(2))


def test_a_step_reward_that_looks_ahead_asks_for_the_next_observation(tmp_path: Path) -> None:
    settings = {**TINY, "method": {"name": "rrd", "hidden": 4, "subset": 4}}
    run = diaster.train("Toy-v0", out=tmp_path / "run", **settings)
    obs, action = np.zeros((5, 3)), np.zeros((5, 2))
    with pytest.raises(diaster.DiasterError, match=r"'rrd' looks at what a step led to; give next_obs"):
        run.step_reward(obs, action)
    here, there = run.step_reward(obs, action, obs), run.step_reward(obs, action, obs + 1.0)
    assert here.shape == (5,) and np.isfinite(here).all()
    assert not np.allclose(here, there)
    np.testing.assert_allclose(run.step_reward(obs[0], action[0], obs[0]), here[0], rtol=1e-5)


def test_a_run_with_discrete_actions_speaks_the_environments_numbers(tmp_path: Path) -> None:
    run = diaster.train(
        "ToyDiscreteFrom5-v0", out=tmp_path / "run", **{**TINY, "agent": {"name": "dqn", "hidden": 4, "batch_size": 8}}
    )
    loaded = diaster.load(run.path)
    action = loaded.policy()(np.zeros(3))
    assert int(action) in (5, 6, 7)
    assert gym.make("ToyDiscreteFrom5-v0").action_space.contains(action)
    assert loaded.policy()(np.zeros((4, 3))).tolist() == [int(action)] * 4
    rewards = loaded.step_reward(np.zeros((3, 3)), np.array([5, 6, 7]))
    assert rewards.shape == (3,) and len(set(rewards.tolist())) == 3
    assert loaded.step_reward(np.zeros(3), 6) == pytest.approx(rewards[1], rel=1e-5)
    for nameless in (4, 8, [5, 8]):
        with pytest.raises(diaster.DiasterError, match="has the actions 5 to 7"):
            loaded.step_reward(np.zeros(3), nameless)
    statistics, _ = loaded.evaluate(episodes=2)[0]
    assert np.isfinite(statistics.return_mean)


def test_an_evaluation_after_the_run_survives_the_faults_that_the_run_would(tmp_path: Path) -> None:
    run = diaster.train("ToyCrashes-v0", out=tmp_path / "run", isolate_envs=True, **TINY)  # at its 13th step
    with pytest.warns(UserWarning, match="seed 0 lost 1 of 3 episodes to faults of its environment"):
        statistics, _ = run.evaluate(episodes=3)[0]
    assert statistics.length_mean == 10

"""A run that is read back: observations in any form the environment has, and files that do not belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy

import diaster
from diaster.records import DECOMPOSER, POLICY

TINY: dict[str, Any] = {
    "steps": 60,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 20,
    "warmup_steps": 40,
    "decomposer": {"hidden": 4, "segments_per_episode": 2},
    "learner": {"hidden": 4, "batch_size": 8},
    "evaluation": {"every": 60, "episodes": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> diaster.Run:
    return diaster.train("ToyDict-v0", out=tmp_path_factory.mktemp("runs") / "run", seeds=[3, 8], **TINY)


def test_the_public_names_are_functions_however_often_they_are_asked_for(run: diaster.Run) -> None:
    import diaster.training  # the module must not take the function's place

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


def test_step_rewards_without_a_step_reward_net_are_refused(tmp_path: Path) -> None:
    settings = {**TINY, "decomposer": {**TINY["decomposer"], "reward_source": "difference"}}
    run = diaster.train("Toy-v0", out=tmp_path / "run", **settings)
    with pytest.raises(diaster.DiasterError, match="reward_source=difference"):
        run.step_reward(np.zeros(3), np.zeros(2))

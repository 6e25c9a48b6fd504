"""Runs in environments that show images: what is shown reaches the nets, is learnt from, and comes back after a cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from small_runs import CHUNKS, EVERY_METHOD, QUICK, XQC, Copying, learnt_bytes, small

import diaster
from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.run import Run
from diaster.rundir.recordings import read_rollouts
from diaster.rundir.records import DECOMPOSER, POLICY, read_tensors
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training

Trained = Callable[..., Run]
TINY = {"side": 8, "frames": 2}


def train(out: Path, env: Any = "ToyDot-v0", **settings: Any) -> Run:
    return diaster.train(env, out=out, **small(image=TINY, **settings))


def mean_return(run: Run) -> float:
    return float(np.mean([run.evaluate(20, seed)[seed][0].return_mean for seed in run.seeds]))


def test_a_policy_is_learnt_from_images_and_one_number_per_episode(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "image": {"side": 8, "frames": 1},
        "agent": {"name": "sac", "hidden": 32, "batch_size": 32},
        "method": {
            "name": "rrd",
            "hidden": 32,
            "subset": 8,
            "updates": 1,
        },
        "chunk_steps": 100,
        "evaluation": {"every": 500, "episodes": 5},
    }
    before = diaster.train("ToyLongDot-v0", out=tmp_path / "before", **small(**settings, steps=120))
    after = diaster.train("ToyLongDot-v0", out=tmp_path / "after", **small(**settings, steps=1500))
    assert mean_return(after) > mean_return(before) + 8.0
    assert after.progress["reward_correlation"][-1] > 0.5
    assert after.progress["feature_loss"][-1] < after.progress["feature_loss"][0]


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "ddpg", "method": EVERY_METHOD["rudder"]["method"]},
        {"agent": XQC, "method": EVERY_METHOD["rd"]["method"]},
        {"agent": "dqn", "method": "episodic", "env": "ToyDotDiscrete-v0"},
        {"agent": "sac", "method": "dense", "env": "ToyDotDiscrete-v0"},
    ],
    ids=["ddpg, rudder", "xqc, rd", "dqn, episodic", "sac, dense"],
)
def test_agents_and_methods_work_on_images_as_on_vectors(settings: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path / "run", **settings)
    assert run.done and np.isfinite(run.progress["feature_loss"][-1])
    assert np.isfinite(run.progress["return_mean"]).all()


def test_a_run_on_images_that_was_cut_off_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings = {**CHUNKS, "keep_checkpoint": 0, "replay": {"capacity": 170}}
    config = build_config(**small(env="ToyDot-v0", image=TINY, **QUICK, **settings))
    whole = run_training(config, tmp_path / "run", Copying(tmp_path / "run", 132))
    [cut] = [path for path in tmp_path.iterdir() if path.name != "run"]
    resumed = resume_training(cut, Silent())
    assert learnt_bytes(resumed) == learnt_bytes(whole)


def test_images_reach_other_processes_as_they_are(tmp_path: Path, trained: Trained) -> None:
    here = trained(env="ToyDot-v0", image=TINY, agent="ddpg", method="uniform")
    there = train(tmp_path / "there", agent="ddpg", method="uniform", workers=1, isolate_envs=True)
    assert learnt_bytes(here) == learnt_bytes(there)


def test_environments_of_a_vector_may_show_images(tmp_path: Path) -> None:
    def make() -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.make_vec("ToyDot-v0", num_envs=2)

    run = train(tmp_path / "run", make, agent="ddpg", method="uniform", horizon=toy_envs.HORIZON)
    assert run.done and run.spec.image == (8, 2)


def test_the_policy_takes_what_the_environment_of_the_run_shows_and_nothing_else(trained: Trained) -> None:
    run = trained(env="ToyDot-v0", image=TINY, agent="ddpg", method="uniform")
    policy, env = run.policy(), run.make_env()
    first, _ = env.reset(seed=0)
    action = policy(first)
    assert env.action_space.contains(action)
    for _ in range(8):
        second, *_ = env.step(np.ones(2, np.float32))
    assert not np.array_equal(action, policy(second))
    np.testing.assert_allclose(policy(np.stack([first, second])), [action, policy(second)], atol=1e-6)
    with pytest.raises(DiasterError, match=r"shape \(12, 16, 3\) was given; .* take observations from .*run.make_env"):
        policy(np.zeros((12, 16, 3), np.uint8))


def test_a_recording_leaves_images_out(trained: Trained, tmp_path: Path) -> None:
    from diaster.media.recording import record_rollouts

    source = trained(env="ToyDot-v0", image=TINY, agent="ddpg", method="uniform")
    shutil.copytree(source.path, tmp_path / "run")
    run = diaster.load(tmp_path / "run", trust=True)
    record_rollouts(run, 2)
    found = read_rollouts(run.path)
    assert found.obs.shape == (found.length.sum(), 0) and np.isfinite(found.step_reward).all()


def test_decomposer_and_policy_share_one_encoder(trained: Trained) -> None:
    run = trained(env="ToyDot-v0", image=TINY, agent="ddpg", method="uniform")
    of_policy, of_decomposer = read_tensors(run.path / POLICY), read_tensors(run.path / DECOMPOSER)
    shared = {name.removeprefix("encoder."): value for name, value in of_policy.items() if name.startswith("encoder.")}
    theirs = {name.removeprefix("encoder.net."): value for name, value in of_decomposer.items() if "encoder" in name}
    assert shared.keys() == theirs.keys() and len(shared) >= 4
    assert all(np.array_equal(shared[name], theirs[name]) for name in shared)

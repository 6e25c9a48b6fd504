"""Switching the method changes the rewards and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diaster
from diaster.config import AGENTS, METHODS
from diaster.learning.learner import Learner
from diaster.run import Run
from diaster.rundir.records import POLICY, read_tensors
from diaster.types import Episode

STEPS, WARMUP, LENGTH = 120, 40, 2
SMALL: dict[str, Any] = {
    "steps": STEPS,
    "horizon": LENGTH,  # short rows compile fast
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 40,
    "warmup_steps": WARMUP,
    "seeds": [4, 9],
    "agent": {"hidden": 4, "actor_hidden": 4, "layers": 2, "atoms": 11, "batch_size": 8},  # layers take longest
    "evaluation": {"every": STEPS, "episodes": 2},
}
# Nothing is fitted: what that would compile takes most of the time.
SMALL_NETS = {"hidden": 4, "batch_episodes": 2, "segment_length": 2, "subset": 2, "updates": 1, "every": 10**6}


def train(method: str, out: Path, env: str = "ToyPlain-v0", **more: Any) -> Run:
    known = {field.name for field in dataclasses.fields(METHODS[method].settings)}
    settings = {name: value for name, value in SMALL_NETS.items() if name in known}
    if method == "dense" and not more:
        settings["return_scale"] = 1.0  # the toys that it is compared with have none
    return diaster.train(env, method={"name": method, **settings, **more}, out=out, **SMALL)


# --- the same rewards give the same policy ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("dense", tmp_path_factory.mktemp("dense") / "run")


def train_with(factory: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a toy method, under the name of one that fits nothing either."""
    monkeypatch.setitem(METHODS, "uniform", METHODS["uniform"]._replace(factory=f"toy_methods:{factory}"))
    return train("uniform", out)


def test_a_method_that_gives_the_true_rewards_trains_the_policy_of_dense_to_the_byte(
    dense: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_with("make_true_rewards", tmp_path / "run", monkeypatch)
    assert (run.path / POLICY).read_bytes() == (dense.path / POLICY).read_bytes()
    np.testing.assert_array_equal(run.progress["return_mean"], dense.progress["return_mean"])
    for one in (run, dense):
        np.testing.assert_allclose(one.progress["reward_correlation"], 1.0)


def test_rewards_a_thousandth_larger_train_another_policy(
    dense: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_with("make_rewards_a_thousandth_larger", tmp_path / "run", monkeypatch)
    assert (run.path / POLICY).read_bytes() != (dense.path / POLICY).read_bytes()


def test_methods_that_share_a_rule_of_scale_and_give_the_same_rewards_train_the_same_policy_to_the_byte(
    tmp_path: Path,
) -> None:
    # In episodes of one step an even share of the return is the hidden reward. One is made from the return of the
    # step's episode, the other is stored as the step's label; both are divided by the scale of the moment.
    policies = []
    for scale_steps in (0, 60):
        settings = {"env": "ToyOneStep-v0", "return_scale": "auto", "scale_steps": scale_steps}
        even, hidden = (
            train(method, tmp_path / f"{method}-{scale_steps}", **settings) for method in ("uniform", "dense")
        )
        assert (even.path / POLICY).read_bytes() == (hidden.path / POLICY).read_bytes()
        for name in ("critic_loss", "q_value", "return_mean"):
            assert np.isfinite(even.progress[name]).all()
            np.testing.assert_array_equal(even.progress[name], hidden.progress[name])
        policies.append((even.path / POLICY).read_bytes())
    assert policies[0] != policies[1]  # the scale did move meanwhile


# --- what every method shares ----------------------------------------------------------------------------------


def train_and_count(method: str, out: Path) -> tuple[Run, list[list[Episode]], list[float]]:
    """A run in which nothing is learnt: the run, all its episodes and the policy updates of each seed."""
    collected: list[list[Episode]] = [[] for _ in SMALL["seeds"]]
    store_episodes = Learner.store_episodes

    def watched(self: Learner, episodes: Any) -> None:
        for of_seed, new in zip(collected, episodes, strict=True):
            of_seed.extend(new)
        store_episodes(self, episodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "store_episodes", watched)
        patch.setitem(AGENTS, "xqc", AGENTS["xqc"]._replace(continuous="toy_methods:make_counting_agent"))
        run = train(method, out)
    return run, collected, read_tensors(run.path / POLICY)["exploration"].tolist()


@pytest.fixture(scope="module")
def episodes_of_dense(tmp_path_factory: pytest.TempPathFactory) -> list[list[Episode]]:
    _, episodes, updates = train_and_count("dense", tmp_path_factory.mktemp("counted") / "run")
    assert updates == [STEPS - WARMUP] * 2
    return episodes


def test_dense_by_name_is_handed_the_hidden_rewards(episodes_of_dense: list[list[Episode]]) -> None:
    for of_seed in episodes_of_dense:
        assert len(of_seed) == STEPS // LENGTH
        for episode in of_seed:
            np.testing.assert_array_equal(episode.hidden_reward, episode.obs[1:, 0])


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"dense"}))
def test_every_method_collects_the_same_episodes_makes_as_many_policy_updates_and_sees_no_hidden_reward(
    method: str, episodes_of_dense: list[list[Episode]], tmp_path: Path
) -> None:
    run, episodes, updates = train_and_count(method, tmp_path / "run")
    assert updates == [STEPS - WARMUP] * 2
    assert np.isfinite(run.progress["q_value"]).all()
    # The warm-up is random, and the policy afterwards the same, whatever was drawn in between.
    for own, of_dense in zip(episodes, episodes_of_dense, strict=True):
        assert len(own) == len(of_dense) > WARMUP // LENGTH
        for one, other in zip(own, of_dense, strict=True):
            np.testing.assert_array_equal(one.action, other.action)
            np.testing.assert_array_equal(one.obs, other.obs)
            assert one.episode_return == other.episode_return
            assert one.hidden_reward is None

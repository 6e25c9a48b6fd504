"""The controls: shares of the return that nobody decomposed, and the hidden rewards under lock and key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import diaster
from diaster.agents.sac import make_sac
from diaster.config import METHODS, DenseConfig, EpisodicConfig, SacConfig, UniformConfig, build_config, validate
from diaster.decomposers.controls import make_dense, make_episodic, make_uniform
from diaster.errors import DiasterError
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode, EvaluationEpisode

HORIZON = 4
SPEC = EnvSpec("Made-up", 2, 1, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
LENGTHS, RETURNS = (4, 1, 3), (8.0, -5.0, 0.0)
TINY_RUN: dict[str, Any] = {
    "steps": 60,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 20,
    "warmup_steps": 20,
    "agent": {"name": "ddpg", "hidden": 4, "batch_size": 4},
    "evaluation": {"every": 60, "episodes": 2},
}


def episode_of(length: int, episode_return: float, hidden_reward: np.ndarray | None = None) -> Episode:
    obs = np.arange(2 * (length + 1), dtype=np.float32).reshape(-1, 2)
    return Episode(obs, np.zeros((length, 1), np.float32), episode_return, True, hidden_reward)


def seen(decomposer):
    """The state after some episodes, and every step of theirs."""
    episodes = [episode_of(length, total) for length, total in zip(LENGTHS, RETURNS, strict=True)]
    block = replay.make_block(episodes, 16, 8, 2, 1)
    store = replay.insert(replay.init_store(32, 2, 1), block)
    state = decomposer.ingest(decomposer.init(jax.random.key(0), SPEC), store, block)
    return state, replay.gather_numbered(store, np.arange(sum(LENGTHS)))


AUTO = 5.0 * np.sqrt((4 * (8.0 / 4) ** 2 + 1 * 5.0**2 + 0.0) / 8)


@pytest.mark.parametrize(("setting", "scale"), [("auto", AUTO), (4.0, 4.0)])
def test_uniform_gives_every_step_the_same_share_of_its_return(setting, scale):
    decomposer = make_uniform(UniformConfig(return_scale=setting), HORIZON)
    state, steps = seen(decomposer)
    assert float(decomposer.scale(state)) == pytest.approx(scale, rel=1e-6)
    expected = np.array([2.0] * 4 + [-5.0] + [0.0] * 3) / scale
    np.testing.assert_allclose(decomposer.reward(state, steps), expected, rtol=1e-6)


@pytest.mark.parametrize(("setting", "scale"), [("auto", AUTO), (4.0, 4.0)])
def test_episodic_gives_the_last_step_the_whole_return_and_nothing_before(setting, scale):
    decomposer = make_episodic(EpisodicConfig(return_scale=setting), HORIZON)
    state, steps = seen(decomposer)
    assert float(decomposer.scale(state)) == pytest.approx(scale, rel=1e-6)
    expected = np.array([0.0, 0.0, 0.0, 8.0, -5.0, 0.0, 0.0, 0.0]) / scale
    np.testing.assert_allclose(decomposer.reward(state, steps), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "config"),
    [(make_uniform, UniformConfig()), (make_episodic, EpisodicConfig())],
    ids=["uniform", "episodic"],
)
def test_rewards_of_an_episode_sum_to_its_return_in_the_environments_units(make, config):
    decomposer = make(config, HORIZON)
    state, _ = seen(decomposer)
    model = RewardModel(decomposer, HORIZON)
    episodes = [EvaluationEpisode(episode_of(3, 7.0), None), EvaluationEpisode(episode_of(1, -2.0), None)]
    sums = [reward.sum() for reward in model.of_episodes(state, episodes)]
    np.testing.assert_allclose(sums, [7.0, -2.0], rtol=1e-6)
    assert not model.has_step_reward and decomposer.draw is None and decomposer.update is None


# --- the upper reference --------------------------------------------------------------------------------------


def dense_learner(return_scale: float | str) -> Learner:
    decomposer = make_dense(DenseConfig(return_scale=return_scale), HORIZON)
    agent = make_sac(SacConfig(hidden=4, batch_size=4))
    return Learner(decomposer, agent, SPEC, range(2), 20, 4, jax.devices("cpu")[0])


@pytest.mark.parametrize("return_scale", [4.0, "auto"])
def test_dense_stores_hidden_rewards_scaled_by_a_number_or_as_they_are_also_after_the_ring_has_wrapped(return_scale):
    random, learner = np.random.default_rng(0), dense_learner(return_scale)
    divided_by = np.float32(1.0 if return_scale == "auto" else return_scale)
    for _ in range(8):
        hidden = [[random.normal(size=length).astype(np.float32) for length in (3, 1)] for _ in range(2)]
        learner.store_episodes([[episode_of(len(r), float(r.sum()), r) for r in of_seed] for of_seed in hidden])
        for seed in range(2):
            end = int(learner.store.next_step[seed])
            labels = np.asarray(learner.labels.values)[seed][np.arange(end - 4, end) % 20]
            np.testing.assert_array_equal(labels, np.concatenate(hidden[seed]) / divided_by)
    assert end > 20


@pytest.mark.parametrize(("setting", "scale"), [("auto", AUTO), (4.0, 4.0)])
def test_the_scale_of_dense_is_that_of_every_method(setting, scale):
    decomposer = make_dense(DenseConfig(return_scale=setting), HORIZON)
    assert float(decomposer.scale(seen(decomposer)[0])) == pytest.approx(scale, rel=1e-6)


def test_dense_has_no_reward_to_give_to_steps_and_shows_the_hidden_ones_of_episodes():
    decomposer = make_dense(DenseConfig(return_scale=4.0), HORIZON)
    assert decomposer.is_hidden_reward and decomposer.label is None
    with pytest.raises(NotImplementedError, match="hidden"):
        decomposer.reward(decomposer.init(jax.random.key(0), SPEC), None)
    model, hidden = RewardModel(decomposer, HORIZON), np.array([1.0, 2.0, 4.0], np.float32)
    assert not model.has_step_reward
    state = decomposer.init(jax.random.key(0), SPEC)
    (rewards,) = model.of_episodes(state, [EvaluationEpisode(episode_of(3, 7.0), hidden)])
    np.testing.assert_array_equal(rewards, hidden)


def collected(monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    """What the learner is handed from now on."""
    handed: list[Episode] = []
    store_episodes = Learner.store_episodes

    def watched(self: Learner, episodes: Any) -> None:
        handed.extend(episode for of_seed in episodes for episode in of_seed)
        store_episodes(self, episodes)

    monkeypatch.setattr(Learner, "store_episodes", watched)
    return handed


def test_a_decomposer_that_wants_the_hidden_rewards_under_another_name_never_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disguised = METHODS["uniform"]._replace(factory="toy_methods:make_dense_in_disguise")
    monkeypatch.setitem(METHODS, "uniform", disguised)
    handed = collected(monkeypatch)
    with pytest.raises(AssertionError, match="upper reference"):
        diaster.train("ToyPlain-v0", method="uniform", out=tmp_path / "run", **TINY_RUN)
    assert handed and all(episode.hidden_reward is None for episode in handed)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_dense_are_refused_under_the_name_of_another_method():
    disguised = dataclasses.replace(build_config(env="ToyPlain-v0"), method=DenseConfig(name="uniform"))
    with pytest.raises(DiasterError, match="settings of another one"):
        validate(disguised)

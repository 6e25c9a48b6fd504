"""The algorithms of Stable-Baselines3 and SBX with our buffer and callback. `make sb3-test` runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_envs
from all_settings import refusal

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed; make sb3-test installs it")
pytest.importorskip("sbx", reason="SBX is not installed; make sb3-test installs it")

import gymnasium as gym
import sbx
import stable_baselines3 as sb3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from diaster.sb3 import DecomposedReplayBuffer, FitDecomposer

BATCH = 8
POINT = {"env": "ToyTerminates-v0", "policy_kwargs": {"net_arch": [8]}}
KEYS = {"env": "ToyDiscrete-v0", "policy_kwargs": {"net_arch": [8]}}
LEARNERS = {
    "SAC of SB3": (sb3.SAC, POINT),
    "TD3 of SB3": (sb3.TD3, POINT),
    "DDPG of SB3": (sb3.DDPG, POINT),
    "DQN of SB3": (sb3.DQN, {**KEYS, "train_freq": 1}),
    "SAC of SBX": (sbx.SAC, POINT),
    "TD3 of SBX": (sbx.TD3, POINT),
    "TQC of SBX": (sbx.TQC, POINT),
    "CrossQ of SBX": (sbx.CrossQ, POINT),
    "DQN of SBX": (sbx.DQN, {**KEYS, "train_freq": 1}),
}
Batches = list[tuple[Any, int]]


def model_of(kind: type[BaseAlgorithm], buffer: dict[str, Any], **settings: Any) -> BaseAlgorithm:
    settings["policy_kwargs"] = {**settings["policy_kwargs"]}  # SB3 writes into it
    if isinstance(settings["env"], str):  # SB3 would ask it for pictures
        settings["env"] = gym.make(settings["env"])
    usual = {"learning_starts": 10, "batch_size": BATCH, "buffer_size": 500, "seed": 0, "device": "cpu"}
    return kind(
        "MlpPolicy",
        replay_buffer_class=DecomposedReplayBuffer,
        replay_buffer_kwargs={"decomposer_device": "cpu", **buffer},
        **{**usual, **settings},
    )


def small_sac(buffer: dict[str, Any], **settings: Any) -> BaseAlgorithm:
    return model_of(sb3.SAC, buffer, **{**POINT, **settings})


def watched(model: BaseAlgorithm, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Every batch that the learner gets from now on, and the decomposer's updates by then."""
    batches: Batches = []
    sample = DecomposedReplayBuffer.sample

    def look(self: DecomposedReplayBuffer, batch_size: int, env: Any = None) -> Any:
        batch = sample(self, batch_size, env)
        batches.append((batch, self.replay.updates))
        return batch

    monkeypatch.setattr(DecomposedReplayBuffer, "sample", look)
    return batches


def parameters(model: BaseAlgorithm) -> list[np.ndarray]:
    import jax

    if isinstance(model.policy, sb3.common.policies.BasePolicy) and model.get_parameters().get("policy"):
        return [value.numpy().copy() for value in model.get_parameters()["policy"].values()]
    state = model.policy.actor_state if hasattr(model.policy, "actor_state") else model.policy.qf_state
    return [np.array(leaf) for leaf in jax.tree.leaves(state.params)]


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_learns_from_the_decomposers_rewards_as_they_are_then(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, settings = LEARNERS[name]
    model = model_of(kind, {"method": method}, **settings)
    batches, before = watched(model, monkeypatch), parameters(model)
    model.learn(60, callback=FitDecomposer(every=5))
    # One batch for each step from the end of the second episode on.
    first = 2 * (toy_envs.HORIZON if "DQN" in name else 7)
    assert len(batches) == 60 - first + 1
    for batch, updates in batches:
        expected = 1000.0 + batch.observations[:, 0].numpy() + 10.0 * updates
        np.testing.assert_allclose(batch.rewards[:, 0], expected, rtol=1e-5)
    assert sorted({updates for _, updates in batches}) == list(range(first, 61, 5))
    assert any(not np.array_equal(a, b) for a, b in zip(before, parameters(model), strict=True))


@pytest.mark.parametrize("kind", [sb3.SAC, sbx.SAC])
def test_the_real_method_gives_the_rewards_that_reach_the_learner(
    kind: type[BaseAlgorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden": 4, "batch_episodes": 2, "segments_per_episode": 2, "segment_length": 2}
    model = model_of(kind, {"method": {"name": "diaster", **small, "updates": 1, "every": 2}}, **POINT)
    sample, seen = DecomposedReplayBuffer.sample, []

    def compare(self: DecomposedReplayBuffer, batch_size: int, env: Any = None) -> Any:
        batch = sample(self, batch_size, env)
        # The toy's actions are from −1 to 1, as SB3 scales them.
        expected = self.replay.rewards(batch.observations.numpy(), batch.actions.numpy()) / self.replay.scale
        np.testing.assert_allclose(batch.rewards[:, 0], expected, rtol=1e-3, atol=1e-5)
        seen.append(expected.mean())
        return batch

    monkeypatch.setattr(DecomposedReplayBuffer, "sample", compare)
    model.learn(40, callback=FitDecomposer(every=10))
    assert len(seen) == 40 - 13 and model.replay_buffer.replay.updates == 17


def test_actions_come_to_the_learner_as_sb3_has_scaled_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_sac({"method": method}, env=gym.wrappers.FlattenObservation(gym.make("ToyBounded-v0")))
    batches = watched(model, monkeypatch)
    seen = []
    store = type(model)._store_transition
    monkeypatch.setattr(
        type(model), "_store_transition", lambda self, buffer, action, *rest: (
            seen.append(action.copy()), store(self, buffer, action, *rest)
        )[1],
    )  # fmt: skip
    model.learn(40, callback=FitDecomposer(every=5))
    stored = {action.reshape(-1).astype(np.float32).tobytes() for action in seen}
    assert batches and all(row.tobytes() in stored for batch, _ in batches for row in batch.actions.numpy())


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("kind", [sb3.SAC, sbx.SAC])
def test_several_environments_and_returns_over_some_steps(
    kind: type[BaseAlgorithm], n_envs: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_vec_env(partial(gym.make, "ToyTerminates-v0"), n_envs)
    settings = {**POINT, "env": env, "train_freq": 4, "gradient_steps": -1}
    model = model_of(kind, {"method": method, "n_steps": 3, "gamma": 0.9}, **settings, gamma=0.9)
    batches = watched(model, monkeypatch)
    model.learn(120, callback=FitDecomposer(every=5))
    assert batches
    for batch, updates in batches:
        n = np.round(np.log(batch.discounts[:, 0].numpy()) / np.log(0.9))
        least = np.array([(1000.0 - 10.0 + 10.0 * updates) * sum(0.9**k for k in range(int(steps))) for steps in n])
        assert (batch.rewards[:, 0].numpy() > least).all() and {*n} <= {1.0, 2.0, 3.0}
    assert model.replay_buffer.replay.episodes == n_envs * (120 // n_envs // 7)


def test_normalised_observations_reach_the_learner_and_the_stored_ones_are_plain(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = VecNormalize(make_vec_env(partial(gym.make, "ToyTerminates-v0"), 2), norm_reward=False)
    model = small_sac({"method": method}, env=env)
    batches = watched(model, monkeypatch)
    model.learn(80, callback=FitDecomposer(every=5))
    batch = model.replay_buffer.sample(200)
    plain = batch.observations.numpy()
    assert abs(plain).max() < 10.0 and batches
    np.testing.assert_allclose(
        batch.rewards[:, 0], 1000.0 + plain[:, 0] + 10.0 * model.replay_buffer.replay.updates, rtol=1e-5
    )
    normal = model.replay_buffer.sample(200, env).observations.numpy()
    assert np.isin(
        np.round(normal, 3), np.round(env.normalize_obs(model.replay_buffer.sample(5000).observations.numpy()), 3)
    ).all()


# Waiting


def test_learning_waits_for_two_episodes_and_acts_at_random_until_then(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_sac({"method": method}, learning_starts=0)
    batches, asked = watched(model, monkeypatch), []
    predict = type(model).predict
    monkeypatch.setattr(
        type(model), "predict", lambda self, *a, **k: (asked.append(self.num_timesteps), predict(self, *a, **k))[1]
    )
    model.learn(30, callback=FitDecomposer())
    assert asked == [0, *range(14, 30)]  # SB3 itself begins with the policy where learning_starts is 0
    assert len(batches) == 30 - 13 and model.learning_starts == 0


def test_learning_starts_is_kept_to(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_sac({"method": method}, learning_starts=25)
    batches = watched(model, monkeypatch)
    model.learn(40, callback=FitDecomposer(every=5))
    assert len(batches) == 40 - 25 and model.learning_starts == 25
    assert batches[0][1] == 26  # the updates of the warm-up, at its end


def test_whole_episodes_can_be_a_rollout(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_sac({"method": method}, learning_starts=0, train_freq=(1, "episode"), gradient_steps=-1)
    batches = watched(model, monkeypatch)
    model.learn(35, callback=FitDecomposer())
    assert len(batches) == 35 - 7


# Saving and going on


@pytest.mark.parametrize("kind", [sb3.SAC, sbx.SAC])
def test_a_model_and_its_buffer_are_saved_and_go_on(kind: type[BaseAlgorithm], method: str, tmp_path: Path) -> None:
    model = model_of(kind, {"method": method}, **POINT)
    model.learn(40, callback=FitDecomposer(every=5))
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = kind.load(tmp_path / "model", env=gym.make("ToyTerminates-v0"), device="cpu")
    assert loaded.replay_buffer.size() == 0
    loaded.load_replay_buffer(tmp_path / "buffer")
    mine, theirs = (one.replay_buffer.sample(16) for one in (model, loaded))
    for a, b in zip(mine[:5], theirs[:5], strict=True):
        np.testing.assert_array_equal(a, b)
    before = loaded.replay_buffer.replay.updates
    loaded.learn(20, callback=FitDecomposer(every=5), reset_num_timesteps=False)
    assert loaded.num_timesteps == 60 and loaded.replay_buffer.replay.updates >= before + 15
    # The environment was reset: the unfinished episode is not there, two whole ones are.
    assert loaded.replay_buffer.replay.episodes == model.replay_buffer.replay.episodes + 2


def test_a_loaded_model_without_its_buffer_waits_for_new_episodes(method: str, tmp_path: Path) -> None:
    model = small_sac({"method": method})
    model.learn(20, callback=FitDecomposer(every=5))
    model.save(tmp_path / "model")
    loaded = sb3.SAC.load(tmp_path / "model", env=gym.make("ToyTerminates-v0"), device="cpu")
    loaded.learn(20, callback=FitDecomposer(every=5), reset_num_timesteps=False)
    assert loaded.replay_buffer.replay.episodes == 2 and loaded._n_updates == model._n_updates + 20 - 13


def test_a_checkpoint_while_learning_waits_loads_and_learns(method: str, tmp_path: Path) -> None:
    model = small_sac({"method": method}, learning_starts=0)
    model.learn(13, callback=[FitDecomposer(), CheckpointCallback(5, str(tmp_path))])
    loaded = sb3.SAC.load(tmp_path / "rl_model_10_steps", env=gym.make("ToyTerminates-v0"), device="cpu")
    loaded.learn(60, callback=FitDecomposer())
    assert loaded._n_updates > 0


# What is logged


def test_the_decomposers_metrics_are_logged(method: str, tmp_path: Path) -> None:
    model = small_sac({"method": method})
    model.set_logger(sb3.common.logger.configure(str(tmp_path), ["csv"]))
    model.learn(60, callback=FitDecomposer(every=5), log_interval=1)
    model.logger.close()
    # SB3 writes the row of an episode before the callback that comes after it.
    header, *rows = (tmp_path / "progress.csv").read_text(encoding="utf-8").splitlines()
    assert {"decomposer/episodes", "decomposer/updates", "decomposer/return_scale", "decomposer/fit_r2"} <= set(
        header.split(",")
    )
    last = dict(zip(header.split(","), rows[-1].split(","), strict=True))
    assert float(last["decomposer/return_scale"]) == 2.0 and float(last["decomposer/episodes"]) == 7


# Wrong use


@pytest.mark.parametrize("kind", [sb3.PPO, sbx.PPO])
def test_an_algorithm_without_a_replay_is_refused(kind: type[BaseAlgorithm]) -> None:
    model = kind("MlpPolicy", gym.make("ToyTerminates-v0"), n_steps=8, batch_size=8, device="cpu")
    assert "PPO learns from what its policy has just done" in refusal(lambda: model.learn(8, callback=FitDecomposer()))


def test_another_replay_buffer_is_refused() -> None:
    model = sb3.SAC("MlpPolicy", gym.make("ToyTerminates-v0"), buffer_size=100, device="cpu")
    sentence = refusal(lambda: model.learn(8, callback=FitDecomposer()))
    assert sentence.endswith("give SAC replay_buffer_class=DecomposedReplayBuffer.") and "a ReplayBuffer" in sentence


def test_no_callback_is_refused_before_anything_is_learnt(method: str) -> None:
    model = small_sac({"method": method})
    assert "give learn callback=FitDecomposer()" in refusal(lambda: model.learn(40))
    model = small_sac({"method": method, "horizon": toy_envs.HORIZON})
    assert "give learn callback=FitDecomposer()" in refusal(lambda: model.learn(40))
    assert model._n_updates == 0


def test_observations_in_parts_are_refused_and_flattened_ones_are_learnt_from(method: str) -> None:
    env = gym.make("ToyDict-v0")
    policy = {"policy_kwargs": {"net_arch": [8]}}
    assert "FlattenObservation" in refusal(
        lambda: sb3.SAC("MultiInputPolicy", env, replay_buffer_class=DecomposedReplayBuffer, **policy)
    )
    model = small_sac({"method": method}, env=gym.wrappers.FlattenObservation(env))
    model.learn(40, callback=FitDecomposer(every=5))
    assert model._n_updates > 0


@pytest.mark.parametrize("kind", [sb3.SAC, sbx.SAC])
@pytest.mark.filterwarnings("ignore:`n_steps=3` is ignored")  # SB3's own, which SBX does not give
def test_steps_of_a_return_that_do_not_reach_the_buffer_are_refused(kind: type[BaseAlgorithm], method: str) -> None:
    model = model_of(kind, {"method": method}, **POINT, n_steps=3, gamma=0.9)
    assert "give replay_buffer_kwargs=dict(n_steps=3, gamma=0.9)" in refusal(
        lambda: model.learn(40, callback=FitDecomposer())
    )
    model = model_of(kind, {"method": method, "n_steps": 3}, **POINT, gamma=0.9)
    assert "discounts by gamma=0.99 and SAC by 0.9" in refusal(lambda: model.learn(40, callback=FitDecomposer()))


def test_an_environment_without_a_time_limit_needs_a_horizon(method: str) -> None:
    model = small_sac({"method": method}, env="ToyEndless-v0")
    assert "dict(horizon=1000)" in refusal(lambda: model.learn(40, callback=FitDecomposer()))
    model = small_sac({"method": method, "horizon": 20}, env="ToyEndless-v0")
    assert "more than horizon=20 steps" in refusal(lambda: model.learn(40, callback=FitDecomposer()))


def test_a_callback_that_was_not_made_is_refused(method: str) -> None:
    model = small_sac({"method": method})
    assert "callback=FitDecomposer()" in refusal(lambda: model.learn(40, callback=FitDecomposer))


@pytest.mark.parametrize("every", [0, 10_001])
def test_updates_are_made_at_reasonable_intervals(every: int) -> None:
    assert f"every={every} was given; it has to be from 1 to 10000 steps" in refusal(lambda: FitDecomposer(every))

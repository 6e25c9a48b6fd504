"""The replay buffer by itself: episodes from steps, batches as SB3 wants them. `make sb3-test` runs it."""

from __future__ import annotations

import io
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from all_settings import refusal
from gymnasium import spaces

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed; make sb3-test installs it")

import gymnasium as gym
import torch
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from diaster.sb3 import DecomposedReplayBuffer

HORIZON = 6
OBS = spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTIONS = spaces.Box(-5.0, 7.0, (2,), np.float32)
Feed = list[tuple[Any, ...]]


def buffer_of(method: Any, n_envs: int = 1, size: int = 500, **arguments: Any) -> DecomposedReplayBuffer:
    usual = {"horizon": HORIZON, "seed": 0, "decomposer_device": "cpu"}
    space = arguments.pop("actions", ACTIONS)
    return DecomposedReplayBuffer(
        size, OBS, space, device="cpu", n_envs=n_envs, method=method, **{**usual, **arguments}
    )


def stream(n_steps: int, n_envs: int = 1, seed: int = 0, discrete: bool = False) -> Feed:
    """What SB3 hands over, step by step: environments whose episodes end by chance, half of them by a time limit."""
    random = np.random.default_rng(seed)
    obs, time, calls = random.normal(size=(n_envs, 3)), np.zeros(n_envs, int), []
    for _ in range(n_steps):
        next_obs, time = random.normal(size=(n_envs, 3)), time + 1
        action = random.integers(3, size=n_envs) if discrete else random.uniform(-1, 1, (n_envs, 2))
        done = (random.uniform(size=n_envs) < 0.3) | (time == HORIZON)
        infos = [{"TimeLimit.truncated": bool(is_done and random.uniform() < 0.5)} for is_done in done]
        calls.append((obs, next_obs, action.astype(np.float32), random.normal(size=n_envs), done, infos))
        obs = np.where(done[:, None], random.normal(size=(n_envs, 3)), next_obs)
        time = np.where(done, 0, time)
    return calls


def fill(buffer: DecomposedReplayBuffer, calls: Feed) -> DecomposedReplayBuffer:
    for call in calls:
        buffer.add(*call)
    return buffer


def fitted(method: Any, calls: Feed, **arguments: Any) -> DecomposedReplayBuffer:
    buffer = fill(buffer_of(method, len(calls[0][4]), **arguments), calls)
    buffer.replay.fit(3)
    return buffer


def finished_steps(calls: Feed) -> dict[bytes, dict[str, Any]]:
    """The steps of finished episodes, by their observation, and the returns of these episodes."""
    known: dict[bytes, dict[str, Any]] = {}
    for env in range(len(calls[0][4])):
        episode: list[dict[str, Any]] = []
        for obs, next_obs, action, reward, done, infos in calls:
            is_timeout = infos[env]["TimeLimit.truncated"]
            episode.append(
                {"obs": obs[env], "next_obs": next_obs[env], "action": action[env], "reward": reward[env]}
                | {"done": bool(done[env]), "terminal": bool(done[env] and not is_timeout), "time": len(episode)}
            )
            if done[env]:
                known |= {np.float32(step["obs"]).tobytes(): step | {"episode": episode} for step in episode}
                episode = []
    return known


# What a batch is


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_batch_has_steps_of_finished_episodes_with_the_decomposers_rewards(method: str, n_envs: int) -> None:
    calls = stream(60, n_envs)
    buffer, known = fitted(method, calls), finished_steps(calls)
    assert buffer.size() == len(known) < 60 * n_envs
    batch = buffer.sample(300)
    assert [tuple(part.shape) for part in batch[:5]] == [(300, 3), (300, 2), (300, 3), (300, 1), (300, 1)]
    assert {part.dtype for part in batch[:5]} == {torch.float32} and batch.discounts is None
    for i in range(300):
        step = known[batch.observations[i].numpy().tobytes()]
        np.testing.assert_array_equal(batch.next_observations[i], np.float32(step["next_obs"]))
        np.testing.assert_array_equal(batch.actions[i], step["action"])
        assert batch.dones[i] == step["terminal"]
        assert batch.rewards[i] == pytest.approx(1000.0 + step["obs"][0] + 30.0, abs=1e-3)
    buffer.replay.fit(1)
    later = buffer.sample(50)
    np.testing.assert_allclose(later.rewards[:, 0], 1040.0 + later.observations[:, 0], atol=1e-3)


def test_the_rewards_handed_over_are_summed_to_the_return(method: str) -> None:
    calls = stream(60, 2)
    buffer = fill(buffer_of("uniform", 2), calls)
    known = finished_steps(calls)
    batch = buffer.sample(200)
    for obs, reward in zip(batch.observations.numpy(), batch.rewards[:, 0].numpy(), strict=True):
        episode = known[obs.tobytes()]["episode"]
        total = sum(step["reward"] for step in episode)
        assert reward * buffer.replay.scale == pytest.approx(total / len(episode), rel=1e-3, abs=1e-4)


def test_time_limits_terminate_where_the_user_wants_that(method: str) -> None:
    calls = stream(60)
    buffer, known = fitted(method, calls, handle_timeout_termination=False), finished_steps(calls)
    batch = buffer.sample(200)
    for obs, done in zip(batch.observations.numpy(), batch.dones[:, 0], strict=True):
        assert done == known[obs.tobytes()]["done"]


def test_discrete_actions_are_numbers(method: str) -> None:
    calls = stream(60, 2, discrete=True)
    buffer, known = fitted(method, calls, actions=spaces.Discrete(3)), finished_steps(calls)
    batch = buffer.sample(100)
    assert batch.actions.shape == (100, 1) and batch.actions.dtype == torch.int64
    for obs, action in zip(batch.observations.numpy(), batch.actions[:, 0], strict=True):
        assert action == known[obs.tobytes()]["action"]


@pytest.mark.parametrize("n_steps", [2, 3, 9])
def test_returns_over_some_steps_are_those_of_sb3s_own_buffer_on_the_same_rewards(method: str, n_steps: int) -> None:
    calls = stream(80)
    last = max(i for i, call in enumerate(calls) if call[4][0])
    buffer = fitted(method, calls[: last + 1], n_steps=n_steps, gamma=0.9)
    theirs = NStepReplayBuffer(last + 1, OBS, ACTIONS, device="cpu", n_steps=n_steps, gamma=0.9)
    for obs, next_obs, action, _, done, infos in calls[: last + 1]:
        theirs.add(obs, next_obs, action, 1030.0 + obs[:, 0], done, infos)
    whole = theirs._get_samples(np.arange(last + 1))
    place = {np.float32(obs).tobytes(): i for i, obs in enumerate(whole.observations.numpy())}
    batch = buffer.sample(400)
    places = [place[obs.tobytes()] for obs in batch.observations.numpy()]
    assert set(places) == set(range(last + 1))
    np.testing.assert_array_equal(batch.next_observations, whole.next_observations.numpy()[places].astype(np.float32))
    np.testing.assert_array_equal(batch.dones, whole.dones[places])
    np.testing.assert_allclose(batch.rewards, whole.rewards[places], rtol=1e-5)
    np.testing.assert_allclose(batch.discounts, whole.discounts[places], rtol=1e-6)
    assert batch.discounts.shape == (400, 1)


@pytest.mark.parametrize("n_steps", [1, 2])
@pytest.mark.parametrize("norm_reward", [True, False])
def test_what_normalises_observations_and_rewards_does_so_with_the_decomposers(
    method: str, norm_reward: bool, n_steps: int
) -> None:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), norm_reward=norm_reward, clip_reward=1e9)
    env.obs_rms.mean, env.obs_rms.var = np.arange(3.0), np.array([1.0, 4.0, 9.0])
    env.ret_rms.var = np.float64(25.0)
    calls = stream(60)
    plain, normal = (fitted(method, calls, n_steps=n_steps, gamma=0.5) for _ in range(2))
    before, batch = plain.sample(50), normal.sample(50, env)
    for one, other in ((batch.observations, before.observations), (batch.next_observations, before.next_observations)):
        np.testing.assert_allclose(one, env.normalize_obs(other.numpy()), rtol=1e-5)
    # In the environment's units, the rewards are twice as large.
    factor = 2.0 / 5.0 if norm_reward else 1.0
    np.testing.assert_allclose(batch.rewards, factor * before.rewards, rtol=1e-4)


# Its size, and what it forgets


def test_it_counts_steps_that_can_be_drawn(method: str) -> None:
    buffer = buffer_of("uniform", size=20)
    assert (buffer.size(), buffer.full) == (0, False)
    sizes = []
    for call in stream(80):
        buffer.add(*call)
        sizes.append(buffer.size())
        assert buffer.size() == buffer.pos == len(buffer.replay)
    assert buffer.full and max(sizes) < 20 and sizes[0] == 0


def test_steps_are_stored_once_and_not_in_sb3s_arrays_too(method: str) -> None:
    buffer = fill(buffer_of("uniform"), stream(60))
    assert not {"observations", "next_observations", "rewards"} & set(vars(buffer))


def test_an_episode_that_a_reset_has_cut_off_is_left_out(method: str) -> None:
    calls = stream(200)
    ends = [i for i, call in enumerate(calls) if call[4][0]]
    middle = next(i for i, (a, b) in enumerate(pairwise(ends)) if b - a > 2)
    cut = ends[middle] + 1  # within the episode that follows
    buffer = fill(buffer_of("uniform"), [*calls[: cut + 1], *calls[ends[middle + 1] + 1 :]])
    known = finished_steps([*calls[: ends[middle] + 1], *calls[ends[middle + 1] + 1 :]])
    assert buffer.size() == len(known)
    assert all(obs.tobytes() in known for obs in buffer.sample(300).observations.numpy())


def test_reset_forgets_everything(method: str) -> None:
    buffer = fitted(method, stream(60))
    buffer.reset()
    assert (buffer.size(), buffer.full, buffer.replay.updates) == (0, False, 0)


@pytest.mark.parametrize("settings", ["counting", {"name": "rudder", "hidden": 4, "batch_episodes": 2}])
def test_a_pickled_buffer_goes_on_exactly(method: str, settings: Any) -> None:
    calls = stream(120, 2)
    buffer = fitted(method if settings == "counting" else settings, calls[:65], n_steps=2)
    buffer.sample(7)
    other = pickle.load(io.BytesIO(pickle.dumps(buffer)))
    for one in (buffer, other):
        fill(one, calls[65:])  # the episodes that were not finished come to their ends
        assert one.fit_due(1)
    assert buffer.size() == other.size() and buffer.replay.episodes == other.replay.episodes
    assert buffer.replay.updates == other.replay.updates
    for mine, wanted in zip(other.sample(40), buffer.sample(40), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_the_seed_comes_from_numpys_generator_unless_it_is_given(method: str) -> None:
    def draws(**arguments: Any) -> np.ndarray:
        np.random.seed(arguments.pop("numpy"))
        return fitted(method, stream(60), **arguments).sample(20).observations.numpy()

    np.testing.assert_array_equal(draws(numpy=3, seed=None), draws(numpy=3, seed=None))
    assert not np.array_equal(draws(numpy=3, seed=None), draws(numpy=4, seed=None))
    np.testing.assert_array_equal(draws(numpy=3, seed=1), draws(numpy=4, seed=1))


# Fitting


def test_updates_are_made_together_once_they_are_due(method: str) -> None:
    buffer, made = buffer_of(method, 2), []
    for call in stream(60, 2):
        buffer.add(*call)
        before = buffer.replay.updates
        assert buffer.fit_due(20) == (buffer.replay.updates > before)
        if buffer.replay.updates > before:
            made.append(buffer.replay.updates)
    # One for each of 120 steps: the first ones as soon as there are two episodes, then 20 at a time.
    assert 0 < made[0] < 20 and set(np.diff(made)) == {20} and made[-1] > 100


def test_a_method_that_fits_nothing_needs_no_updates() -> None:
    buffer = fill(buffer_of("uniform"), stream(60))
    assert not buffer.fit_due(1) and buffer.sample(3).rewards.shape == (3, 1)


def test_a_fit_that_nobody_goes_on_with_is_a_warning_once(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.sb3.buffer.MOST_STEPS_BEHIND", 30)
    calls = stream(60)
    buffer = fitted(method, calls[:20])
    buffer.sample(3)
    fill(buffer, calls[20:])
    with pytest.warns(UserWarning, match="57 updates behind its schedule"):
        buffer.sample(3)
    buffer.sample(3)


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"actions": spaces.MultiDiscrete([2, 2])}, "actions of the kind MultiDiscrete"),
        ({"optimize_memory_usage": True}, "every observation is stored once anyway"),
        ({"n_steps": 0}, "n_steps=0 and gamma=0.99"),
        ({"n_steps": "3"}, "n_steps='3' and gamma=0.99"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"method": "rrdd"}, "Did you mean 'rrd'?"),
        ({"horizon": "long"}, "horizon='long' was given"),
        ({"horizon": 400}, "capacity=500 is too small for episodes of 400 steps"),
    ],
)
def test_a_buffer_that_cannot_be_made_is_refused_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(lambda: buffer_of(**{"method": "uniform", **arguments}))


def test_observations_in_parts_are_refused_with_the_wrapper_that_helps() -> None:
    parts = spaces.Dict({"a": OBS})
    assert "FlattenObservation, and use MlpPolicy" in refusal(lambda: DecomposedReplayBuffer(100, parts, ACTIONS))


def test_batches_that_cannot_be_had_are_refused_with_the_callback_that_helps(method: str) -> None:
    buffer, calls = buffer_of(method), stream(60)
    assert "after 0 finished episodes" in refusal(lambda: buffer.sample(3))
    assert "callback=FitDecomposer()" in refusal(lambda: buffer.sample(3))
    fill(buffer, calls)
    assert "has not been fitted; give learn callback=FitDecomposer()" in refusal(lambda: buffer.sample(3))
    unprepared = buffer_of(method, horizon="auto")
    for call in (lambda: unprepared.add(*calls[0]), lambda: unprepared.sample(3), lambda: unprepared.fit_due(1)):
        assert "callback=FitDecomposer(), which finds out" in refusal(call)
    assert unprepared.size() == 0


def test_an_episode_longer_than_the_horizon_is_a_sentence(method: str) -> None:
    calls = [(*call[:4], np.array([False]), [{}]) for call in stream(20)]
    chained = [(calls[i][0], calls[i + 1][0], *calls[i][2:]) for i in range(19)]
    assert "more than horizon=6 steps" in refusal(lambda: fill(buffer_of(method), chained))

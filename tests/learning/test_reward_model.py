"""r̂ of steps and of whole episodes, in the environment's units."""

from __future__ import annotations

import tracemalloc
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diaster.config import DenseConfig, DiasterConfig, EpisodicConfig
from diaster.decomposers import Decomposer, diaster
from diaster.decomposers.controls import make_dense, make_episodic
from diaster.learning.reward_model import GROUP, RewardModel
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode, EvaluationEpisode

OBS, ACTIONS, HORIZON = 2, 1, 16
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
SHORT = HORIZON // 8  # groups of episodes up to this length take the smaller of the two shapes

LENGTHS = {
    "one step": [1],
    "short ones": [1, SHORT, SHORT],
    "just not short": [1, SHORT + 1],
    "the horizon": [HORIZON],
    "all sorts": [HORIZON, 1, 5, SHORT, 9],
    "exactly one group": [3] * GROUP,
    "more than one group, one of them short": [HORIZON, 2, 3, 4, 5, 6, 7, 8, 1, SHORT, 1],
    "more than two groups": [*range(1, HORIZON + 1), 1, 2, 3],
    "none": [],
}


def episodes_of(lengths: list[int], seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [
        Episode(
            rng.normal(2.0, 3.0, size=(length + 1, OBS)).astype(np.float32),
            rng.uniform(-1.0, 1.0, size=(length, ACTIONS)).astype(np.float32),
            float(rng.normal() * 50.0),
            False,
        )
        for length in lengths
    ]


def held_out(episodes: list[Episode]) -> list[EvaluationEpisode]:
    return [EvaluationEpisode(episode, None) for episode in episodes]


def steps_of(obs, action) -> replay.Steps:
    """Steps of one column, of which nothing else is known.  # [T, 1, …]"""
    time = np.arange(len(obs), dtype=np.int32)[:, None]
    return replay.Steps(obs, action, obs, time < 0, time, time, np.float32(time))


@cache
def model(reward_source: str, return_scale: float | str = "auto"):
    """A model, its decomposer and a state that has seen some episodes; the state is the same for all."""
    config = DiasterConfig(
        base="none", hidden=8, reward_source=reward_source, segments="all", return_scale=return_scale
    )
    decomposer = diaster.make_diaster(config, HORIZON)
    seen = replay.make_block(episodes_of([7, 16, 2, 11], seed=9), 64, 8, OBS, ACTIONS)
    store = replay.init_store(64, OBS, ACTIONS)
    state = decomposer.ingest(decomposer.init(jax.random.key(0), SPEC), store, seen)
    return RewardModel(decomposer, HORIZON), decomposer, state


@pytest.mark.parametrize("name", LENGTHS)
def test_rewards_of_episodes_are_those_of_their_steps(name):
    reward_model, _, state = model("step_reward")
    episodes = episodes_of(LENGTHS[name])
    found = reward_model.of_episodes(state, held_out(episodes))
    assert [len(rewards) for rewards in found] == LENGTHS[name]
    if not episodes:
        return
    # One call for all steps, end to end: one shape for all cases.
    obs, action = np.zeros((200, OBS), np.float32), np.zeros((200, ACTIONS), np.float32)
    total = sum(LENGTHS[name])
    obs[:total] = np.concatenate([episode.obs[:-1] for episode in episodes])
    action[:total] = np.concatenate([episode.action for episode in episodes])
    steps = reward_model.of_steps(state, obs, action)
    assert found[0].dtype == steps.dtype == np.float64
    np.testing.assert_allclose(np.concatenate(found), steps[:total], rtol=1e-5, atol=1e-5)
    assert np.abs(steps[:total]).min() > 1e-4


@pytest.mark.parametrize("source", ["step_reward", "difference"])
def test_rewards_of_all_seeds_together_are_those_of_each(source):
    reward_model, _, state = model(source)
    other = jax.tree.map(lambda leaf: leaf * 1.5 if leaf.dtype == jnp.float32 else leaf, state)
    episodes = [held_out(episodes_of(lengths, seed=7)) for lengths in ([3, HORIZON, 1], [5])]
    together = reward_model.of_seeds(jax.tree.map(lambda *leaves: jnp.stack(leaves), state, other), episodes)
    for found, one, of_seed in zip(together, (state, other), episodes, strict=True):
        for rewards, expected in zip(found, reward_model.of_episodes(one, of_seed), strict=True):
            np.testing.assert_allclose(rewards, expected, rtol=1e-5, atol=1e-5)


def test_more_steps_than_one_call_takes_are_split_and_put_together_again(monkeypatch):
    reward_model, _, state = model("step_reward")
    episodes = held_out(episodes_of([HORIZON, 3, HORIZON]))
    whole = reward_model.of_episodes(state, episodes)
    monkeypatch.setattr("diaster.learning.reward_model.BLOCK", 7)
    split = reward_model.of_episodes(state, episodes)
    assert [len(rewards) for rewards in split] == [HORIZON, 3, HORIZON]
    np.testing.assert_allclose(np.concatenate(split), np.concatenate(whole), rtol=1e-5, atol=1e-5)


def test_many_images_are_not_copied_all_at_once(monkeypatch):
    monkeypatch.setattr("diaster.learning.reward_model.BLOCK", 64)
    monkeypatch.setattr("diaster.learning.reward_model.BYTES_AHEAD", 0)
    dark = [
        Episode(np.zeros((HORIZON + 1, 4096), np.uint8), np.zeros((HORIZON, ACTIONS), np.float32), 1.0, False)
        for _ in range(64)
    ]
    reward_model = RewardModel(pretend(reward=lambda state, steps: steps.obs[..., 0].astype(jnp.float32)), HORIZON)
    tracemalloc.start()
    try:
        found = reward_model.of_episodes((), held_out(dark))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(rewards) for rewards in found] == [HORIZON] * 64
    assert peak < sum(episode.obs.nbytes for episode in dark)


def test_rewards_are_in_the_units_of_the_environment():
    automatic, decomposer, state = model("step_reward")
    fixed, _, _ = model("step_reward", 7.0)
    (episode,) = episodes_of([HORIZON])
    obs, action = episode.obs[:-1], episode.action
    in_learners_scale = np.asarray(jax.jit(decomposer.reward)(state, steps_of(obs[:, None], action[:, None])))[:, 0]
    scale = float(decomposer.scale(state))
    assert abs(scale - 7.0) > 1.0 and abs(scale - 1.0) > 1.0
    for reward_model, factor in ((automatic, scale), (fixed, 7.0)):
        for found in (
            reward_model.of_episodes(state, held_out([episode]))[0],
            reward_model.of_steps(state, obs, action),
        ):
            np.testing.assert_allclose(found, factor * in_learners_scale, rtol=1e-5, atol=1e-5)


def test_steps_may_have_any_leading_shape():
    reward_model, _, state = model("step_reward")
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(3, 4, OBS)).astype(np.float32), rng.normal(size=(3, 4, ACTIONS)).astype(np.float32)
    grid = reward_model.of_steps(state, obs, action)
    assert grid.shape == (3, 4)
    single = reward_model.of_steps(state, obs[1, 2], action[1, 2])
    assert single.shape == ()
    assert single == pytest.approx(grid[1, 2], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["one step", "short ones", "all sorts", "more than one group, one of them short"])
def test_rewards_with_a_history_are_the_labels_of_each_episode_by_itself(name):
    reward_model, decomposer, state = model("difference")
    episodes = episodes_of(LENGTHS[name])
    found = reward_model.of_episodes(state, held_out(episodes))
    label = jax.jit(decomposer.label)
    scale = float(decomposer.scale(state))
    for episode, rewards in zip(episodes, found, strict=True):
        assert len(rewards) == episode.length
        # Padding after an episode cannot reach back into it.
        obs, action = np.full((HORIZON, 1, OBS), 5.0, np.float32), np.full((HORIZON, 1, ACTIONS), 5.0, np.float32)
        obs[: episode.length, 0], action[: episode.length, 0] = episode.obs[:-1], episode.action
        alone = np.asarray(label(state, steps_of(obs, action)))[: episode.length, 0]
        np.testing.assert_allclose(rewards, scale * alone, rtol=1e-4, atol=1e-4)


def test_only_rewards_with_a_history_depend_on_the_steps_before():
    (episode,) = episodes_of([6])
    earlier = episode.obs.copy()
    earlier[0] += 1.0
    changed = episode._replace(obs=earlier)
    for source, needs_history in (("step_reward", False), ("difference", True)):
        reward_model, _, state = model(source)
        assert reward_model.has_step_reward != needs_history
        before, after = (reward_model.of_episodes(state, held_out([one])) for one in (episode, changed))
        assert abs(before[0][0] - after[0][0]) > 1e-4
        assert np.allclose(before[0][1:], after[0][1:], rtol=1e-5, atol=1e-6) != needs_history


def pretend(**functions) -> Decomposer:
    """A method that shows what it is given."""
    parts = {
        "init": lambda key, spec: (),
        "ingest": lambda state, store, block: state,
        "reward": lambda state, steps: steps.obs[..., 0],
        "scale": lambda state: jnp.full((), 2.0),
        "update": lambda state, batch: (state, {}),
    }
    return Decomposer(**{"saved": (), **parts, **functions})


FACTS = {
    "next_obs": lambda episode, t: episode.obs[t + 1, 0],
    "terminal": lambda episode, t: float(episode.terminated and t == episode.length - 1),
    "time": lambda episode, t: t,
    "length": lambda episode, t: episode.length,
    "episode_return": lambda episode, t: episode.episode_return,
}


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("function", ["reward", "label"])
def test_the_steps_of_an_episode_carry_what_is_known_of_it(fact, function):
    def show(state, steps):
        shown = getattr(steps, fact)
        return (shown[..., 0] if fact == "next_obs" else shown).astype(jnp.float32)

    reward_model = RewardModel(pretend(**{function: show}), HORIZON)
    episodes = episodes_of(LENGTHS["more than one group, one of them short"])
    episodes[0], episodes[3] = episodes[0]._replace(terminated=True), episodes[3]._replace(terminated=True)
    found = reward_model.of_episodes((), held_out(episodes))
    for episode, shown in zip(episodes, found, strict=True):
        expected = [FACTS[fact](episode, t) for t in range(episode.length)]
        np.testing.assert_allclose(shown, 2.0 * np.array(expected), rtol=1e-6)


def test_single_steps_may_be_given_with_what_they_led_to():
    reward_model = RewardModel(
        pretend(reward=lambda state, steps: steps.next_obs[..., 0] - steps.obs[..., 0], needs_next_obs=True), HORIZON
    )
    assert reward_model.needs_next_obs
    assert not model("step_reward")[0].needs_next_obs
    obs, action = np.ones((3, OBS), np.float32), np.zeros((3, ACTIONS), np.float32)
    next_obs = obs + np.array([[4.0], [5.0], [6.0]], np.float32)
    np.testing.assert_allclose(reward_model.of_steps((), obs, action, next_obs), [8.0, 10.0, 12.0])


def test_the_rewards_of_the_upper_reference_are_the_hidden_ones_as_they_are():
    reward_model = RewardModel(make_dense(DenseConfig(return_scale=10.0), HORIZON), HORIZON)
    assert not reward_model.has_step_reward
    known, unknown = episodes_of([5, 3])
    hidden = np.arange(5, dtype=np.float32)
    found = reward_model.of_episodes((), [EvaluationEpisode(known, hidden), EvaluationEpisode(unknown, None)])
    np.testing.assert_array_equal(found[0], hidden)
    np.testing.assert_array_equal(found[1], np.zeros(3))
    assert found[0].dtype == np.float64


def test_a_method_that_fits_nothing_has_no_step_reward_and_its_episodes_have():
    decomposer = make_episodic(EpisodicConfig(), HORIZON)
    reward_model = RewardModel(decomposer, HORIZON)
    assert not reward_model.has_step_reward
    episodes = episodes_of([4, 1])
    found = reward_model.of_episodes(decomposer.init(jax.random.key(0), SPEC), held_out(episodes))
    np.testing.assert_allclose(found[0], [0.0, 0.0, 0.0, episodes[0].episode_return], rtol=1e-6)
    np.testing.assert_allclose(found[1], [episodes[1].episode_return], rtol=1e-6)

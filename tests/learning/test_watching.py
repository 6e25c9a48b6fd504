"""Rewards that an agent looks at before a chunk of updates: whose they are, and of which steps."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from toy_methods import Watched, make_counting, make_watching

from diaster.agents import Agent, Transition
from diaster.agents.xqc import make_xqc
from diaster.config import METHODS, DenseConfig, XqcConfig
from diaster.decomposers import Decomposer, make_decomposer
from diaster.decomposers.controls import make_dense
from diaster.learning import learner as module
from diaster.learning.learner import Learner
from diaster.replay.store import Steps
from diaster.types import EnvSpec, Episode, Feedback, Spans

OBS, ACTIONS, HORIZON, CAPACITY, BATCH = 3, 2, 4, 100, 8
SPEC = EnvSpec("toy", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (ACTIONS,), HORIZON)
LENGTH, WIDTH = 64, 2
READY = np.array([True])


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHED", (LENGTH, WIDTH))
    monkeypatch.setattr(module, "SURVEYED", (LENGTH, WIDTH))


def numbered_episodes(lengths: list[int], first: int = 0) -> list[Episode]:
    """Every observation but an episode's last holds the number of its step; hidden rewards are ten times that."""
    episodes = []
    for length in lengths:
        obs = np.zeros((length + 1, OBS), np.float32)
        obs[:length, 0] = first + np.arange(length)
        hidden = 10.0 * obs[:length, 0]
        episodes.append(Episode(obs, np.zeros((length, ACTIONS), np.float32), 0.0, True, hidden))
        first += length
    return episodes


def learner_of(decomposer: Decomposer, agent: Agent, n_seeds: int = 1) -> Learner:
    return Learner(decomposer, agent, SPEC, range(n_seeds), CAPACITY, BATCH, jax.devices("cpu")[0])


def shown(learner: Learner) -> Watched:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], learner.state.agent._replace(state=None))


def of_number(state: Any, steps: Steps) -> jax.Array:
    """A reward that grows with the decomposer's updates."""
    return steps.obs[..., 0] + 1000.0 * state.updates


LENGTHS = [4, 1, 3, 2, 4]
ENDS = np.cumsum(LENGTHS) - 1


def check_stretches(number: np.ndarray, is_last: np.ndarray) -> None:
    n_steps = sum(LENGTHS)
    np.testing.assert_array_equal(number[1:], (number[:-1] + 1) % n_steps)
    np.testing.assert_array_equal(is_last, np.isin(number, ENDS))


def test_what_is_watched_are_steps_that_follow_one_another_with_the_rewards_of_the_decomposer_as_it_is_now() -> None:
    learner = learner_of(make_counting(label=None, reward=of_number), make_watching(BATCH, LENGTH, WIDTH))
    learner.store_episodes([numbered_episodes(LENGTHS)])
    starts = set()
    for fits in range(3):
        learner.fit_agent(READY, 3 * fits, 3)
        found = shown(learner)
        assert found.calls == fits + 1  # once for a chunk, whatever the number of its updates
        check_stretches(found.rewards - 1000.0 * fits, found.is_last)
        starts |= set((found.rewards[0] - 1000.0 * fits).tolist())
        learner.fit_decomposer(READY, fits, 1)
    assert len(starts) > 1  # from places that are drawn anew


def test_labels_are_watched_where_there_are_some() -> None:
    learner = learner_of(make_dense(DenseConfig(return_scale=5.0), HORIZON), make_watching(BATCH, LENGTH, WIDTH))
    learner.store_episodes([numbered_episodes(LENGTHS)])
    learner.fit_agent(READY, 0, 1)
    found = shown(learner)
    check_stretches(found.rewards / 2.0, found.is_last)


def test_a_seed_that_is_not_ready_watches_nothing() -> None:
    learner = learner_of(make_counting(label=None, reward=of_number), make_watching(BATCH, LENGTH, WIDTH), n_seeds=2)
    learner.store_episodes([numbered_episodes(LENGTHS), []])
    learner.fit_agent(np.array([True, False]), 0, 2)
    assert learner.state.agent.calls.tolist() == [1, 0]
    np.testing.assert_array_equal(learner.state.agent.rewards[1], 0.0)


class Surveyed(NamedTuple):
    state: Any
    steps: Transition  # [T, W]
    first_obs: Array  # [M, D]
    n_stored: Array  # []


def make_surveying() -> Agent:
    """Keeps what it has surveyed, and from then on sees minus the rewards; before, none."""
    inner = make_watching(BATCH, LENGTH, WIDTH)

    def init(key: Array, spec: EnvSpec) -> Surveyed:
        zeros = jnp.zeros((LENGTH, WIDTH))
        obs, action = jnp.zeros((LENGTH, WIDTH, OBS)), jnp.zeros((LENGTH, WIDTH, ACTIONS))
        steps = Transition(obs, action, zeros, obs, zeros > 0.0)
        return Surveyed(inner.init(key, spec), steps, jnp.zeros((module.N_FIRST, OBS)), jnp.zeros((), jnp.int32))

    def update(state: Surveyed, *given: Any) -> tuple[Surveyed, Any]:
        new, metrics = inner.update(state.state, *given)
        return state._replace(state=new), metrics

    assert inner.watch is not None
    return inner._replace(
        init=init,
        update=update,
        policy=lambda state: inner.policy(state.state),
        watch=lambda state, *given: state._replace(state=inner.watch(state.state, *given)),
        survey=lambda state, steps, first_obs, n_stored: Surveyed(state.state, steps, first_obs, n_stored),
        rewards=lambda state, steps: -steps.reward * (state.first_obs[:, 1].max() > 0.0),
    )


def test_what_is_surveyed_are_stretches_of_steps_and_first_observations_and_rewards_are_then_as_seen() -> None:
    episodes = numbered_episodes(LENGTHS)
    for episode in episodes:
        episode.obs[0, 1] = 1.0
    learner = learner_of(make_counting(label=None, reward=of_number), make_surveying())
    learner.store_episodes([episodes])
    learner.fit_agent(READY, 0, 2)
    found = jax.tree.map(lambda leaf: np.asarray(leaf)[0], learner.state.agent)
    number = found.steps.reward
    np.testing.assert_array_equal(number[1:], (number[:-1] + 1) % sum(LENGTHS))
    np.testing.assert_array_equal(found.steps.obs[..., 0], number)
    np.testing.assert_array_equal(found.steps.terminal, np.isin(number, ENDS))
    np.testing.assert_array_equal(found.first_obs[:, 1], 1.0)
    assert len(np.unique(found.first_obs[:, 0])) == len(LENGTHS)
    assert found.n_stored == sum(LENGTHS)
    assert found.state.rewards.min() == 1 - sum(LENGTHS)  # what is watched
    learnt_from = found.state.state.batch.reward
    assert learnt_from.max() <= 0.0 and learnt_from.min() < 0.0


@pytest.mark.parametrize("every", [1, 2, 3])
def test_first_observations_are_those_of_episodes_where_feedback_comes_in_pieces(every: int) -> None:
    episodes = []
    for episode in numbered_episodes(LENGTHS * 12):  # more than there is room for: the oldest are gone
        episode.obs[0, 1] = 1.0
        end = np.append(np.arange(every, episode.length, every), episode.length)
        episodes.append(episode._replace(spans=Spans(end, np.zeros(len(end)))))
    decomposer, device = make_counting(label=None, reward=of_number), jax.devices("cpu")[0]
    learner = Learner(decomposer, make_surveying(), SPEC, [0], CAPACITY, BATCH, device, Feedback(every))
    for first in range(0, len(episodes), len(LENGTHS)):
        learner.store_episodes([episodes[first : first + len(LENGTHS)]])
    learner.fit_agent(READY, 0, 2)
    first_obs = np.asarray(learner.state.agent.first_obs)[0]
    np.testing.assert_array_equal(first_obs[:, 1], 1.0)
    assert len(np.unique(first_obs[:, 0])) > 10


def test_a_seed_that_is_not_ready_surveys_nothing() -> None:
    learner = learner_of(make_counting(label=None, reward=of_number), make_surveying(), n_seeds=2)
    learner.store_episodes([numbered_episodes(LENGTHS), []])
    learner.fit_agent(np.array([True, False]), 0, 2)
    np.testing.assert_array_equal(learner.state.agent.steps.reward[1], 0.0)
    assert learner.state.agent.steps.reward[0].max() > 0.0


def test_the_size_of_rewards_of_a_ready_seed_is_that_of_its_decomposer_and_others_have_none() -> None:
    settings = XqcConfig(hidden=4, actor_hidden=4, layers=1, atoms=5, annealing_updates=0, discount=0.0)
    constant = make_counting(label=None, reward=lambda state, steps: jnp.full(steps.time.shape, 3.0))
    learner = learner_of(constant, make_xqc(settings), n_seeds=2)
    learner.store_episodes([numbered_episodes(LENGTHS), []])
    before = jax.device_get(learner.state.agent)
    learner.fit_agent(np.array([True, False]), 0, 3)
    after = jax.device_get(learner.state.agent)
    assert after.reward_scale.chunks.tolist() == [1.0, 0.0]
    assert after.reward_scale.square.tolist() == [9.0, 0.0]
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
    assert not np.array_equal(before.critics.nets[0].head.weight[0], after.critics.nets[0].head.weight[0])


@pytest.mark.parametrize("method", METHODS)
def test_with_every_method_an_agent_sees_the_size_of_its_rewards_and_learns_from_them(method: str) -> None:
    settings = XqcConfig(hidden=4, actor_hidden=4, layers=1, atoms=5, annealing_updates=0)
    known = {field.name for field in dataclasses.fields(METHODS[method].settings)}
    small = {name: value for name, value in {"hidden": 4, "subset": 2}.items() if name in known}
    decomposer = make_decomposer(METHODS[method].settings(**small), HORIZON)
    learner = learner_of(decomposer, make_xqc(settings))
    episodes = [episode._replace(episode_return=float(n)) for n, episode in enumerate(numbered_episodes(LENGTHS))]
    learner.store_episodes([episodes])
    metrics = learner.fit_agent(READY, 0, 2)
    state = jax.device_get(learner.state.agent)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))
    assert state.reward_scale.chunks == 1.0 and state.reward_scale.square > 0.0
    assert 0.0 <= metrics["clipped"] < 0.5  # critics that know nothing are broad


@pytest.mark.parametrize("n_updates", [4, 3])
def test_learning_in_the_working_form_with_whole_cycles_or_without_is_learning(n_updates: int) -> None:
    agent = make_xqc(XqcConfig(hidden=4, actor_hidden=4, layers=1, atoms=5, annealing_updates=20, policy_every=2))
    states = []
    for form in (None, agent.working_form):
        learner = learner_of(make_counting(label=None, reward=of_number), agent, n_seeds=2)
        learner._working_form = form  # as on an accelerator
        learner.store_episodes([numbered_episodes(LENGTHS), numbered_episodes(LENGTHS)])
        learner.fit_agent(np.array([True, False]), 0, n_updates)
        states.append(learner.state.agent)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4), *states)

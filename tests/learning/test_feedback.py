"""Learning from spans: what has no number trains no decomposer, and what is known of rewards passes through."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_methods import make_counting, make_remembering, make_watching

from diaster.agents import Transition
from diaster.config import METHODS, build_config
from diaster.decomposers import Decomposer, make_decomposer
from diaster.learning import learner as module
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.replay.store import Steps
from diaster.types import EnvSpec, Episode, EvaluationEpisode, Feedback, Spans

OBS, ACTIONS, HORIZON, CAPACITY, BATCH = 3, 2, 8, 100, 64
SPEC = EnvSpec("toy", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (ACTIONS,), HORIZON)
MARKED = Feedback("environment")
READY, NONE = np.array([True]), float("nan")


def learner_of(decomposer: Decomposer, feedback: Feedback = MARKED, agent: Any = None, n_seeds: int = 1) -> Learner:
    agent = agent or make_remembering(BATCH)
    return Learner(decomposer, agent, SPEC, range(n_seeds), CAPACITY, BATCH, jax.devices("cpu")[0], feedback)


def episodes_of(seed: int, n: int = 6, has_known: bool = False) -> list[Episode]:
    """Of eight steps each: two with a number, four without, two with one. A step's first entry is its own number."""
    random, episodes = np.random.default_rng(seed), []
    for number in range(n):
        obs = random.normal(size=(HORIZON + 1, OBS)).astype(np.float32)
        obs[:, 0] = 100.0 * number + np.arange(HORIZON + 1)
        action = random.uniform(-1, 1, (HORIZON, ACTIONS)).astype(np.float32)
        spans = Spans(np.array([2, 6, 8]), np.array([float(number), NONE, -2.0 * number]))
        known = random.normal(size=HORIZON).astype(np.float32) if has_known else None
        episodes.append(Episode(obs, action, 1.0, False, np.zeros(HORIZON, np.float32), spans, known))
    return episodes


def last_batch(learner: Learner) -> Transition:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], learner.state.agent.batch)


def steps_drawn(learner: Learner) -> set[int]:
    """Which step of their episode those of the last batch are."""
    return set((last_batch(learner).obs[:, 0].astype(int) % 100).tolist())


def settings_of(method: str) -> Any:
    small = {"hidden": 4, "subset": 2, "batch_episodes": 3, "normalize_inputs": True, "base": "linear"}
    kind = METHODS[method].settings
    fields = kind.__dataclass_fields__
    return build_config(env="x", method={"name": method, **{k: v for k, v in small.items() if k in fields}}).method


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_observations_and_actions_of_a_span_without_a_number_reach_no_decomposer(method: str) -> None:
    states = []
    for is_changed in (False, True):
        learner = learner_of(make_decomposer(settings_of(method), HORIZON))
        episodes = episodes_of(0)
        if is_changed:
            for episode in episodes:  # the observations at its edges are those of its neighbours too
                episode.obs[3:6] += 5.0
                episode.action[2:6] *= -1.0
        learner.store_episodes([episodes[:4]])
        learner.store_episodes([episodes[4:]])
        if learner._decomposer.update is not None:
            learner.fit_decomposer(READY, 0, 3)
        states.append(jax.device_get(learner.state.decomposer))
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_decomposer_sees_the_rated_parts_of_episodes_and_nothing_else() -> None:
    seen = make_counting(
        init=lambda key, spec: jnp.zeros(3),
        ingest=lambda state, store, block: (
            state
            + jnp.array([(jnp.asarray(block.length) > 0).sum(), block.length.sum(), (block.row_episode >= 0).sum()])
        ),
        label=None,
    )
    learner = learner_of(seen)
    learner.store_episodes([episodes_of(0)])
    # Of each of six episodes: two spans of two steps, each with an observation more.
    np.testing.assert_array_equal(learner.state.decomposer[0], [12.0, 24.0, 36.0])
    assert int(learner.store.next_step[0]) == 48


def test_steps_without_feedback_are_learnt_from_where_the_reward_is_one_of_steps() -> None:
    learner = learner_of(make_counting(label=None, reward=lambda state, steps: steps.obs[..., 0]))
    learner.store_episodes([episodes_of(1)])
    learner.fit_agent(READY, 0, 1)
    assert steps_drawn(learner) == set(range(8))
    batch = last_batch(learner)
    np.testing.assert_array_equal(batch.reward, batch.obs[:, 0])


@pytest.mark.parametrize("kind", ["reward", "label", "exact sum"])
def test_where_a_reward_needs_the_number_an_agent_learns_from_rated_steps_alone(kind: str) -> None:
    shared = make_counting(
        label=(lambda state, steps: steps.episode_return / steps.length) if kind == "label" else None,
        reward=lambda state, steps: steps.episode_return / steps.length,
    )
    learner = learner_of(shared._replace(needs_return=kind != "exact sum", exact_sum=kind == "exact sum"))
    learner.store_episodes([episodes_of(1)])
    for number in range(4):
        learner.fit_agent(READY, number, 1)
        batch = last_batch(learner)
        time, episode = batch.obs[:, 0].astype(int) % 100, batch.obs[:, 0].astype(int) // 100
        assert set(time.tolist()) <= {0, 1, 6, 7}
        np.testing.assert_allclose(batch.reward, np.where(time < 2, episode / 2.0, -episode), atol=1e-5)


@pytest.mark.parametrize("kind", ["reward", "label"])
def test_what_is_known_of_a_reward_is_added_to_it_in_the_agents_scale(kind: str) -> None:
    feedback, scale = Feedback("environment", has_known=True), 4.0

    def reward(state: Any, steps: Steps) -> jax.Array:
        return steps.obs[..., 1]

    known = make_counting(
        label=reward if kind == "label" else None, reward=reward, scale=lambda state: jnp.full((), scale)
    )
    learner = learner_of(known, feedback)
    for seed in range(4):  # the ring wraps
        episodes = episodes_of(seed, has_known=True)
        learner.store_episodes([episodes])
    assert int(learner.store.oldest[0]) > 0
    stored = {obs.tobytes(): known for e in episodes for obs, known in zip(e.obs, e.known_reward, strict=False)}
    found = 0
    for number in range(4):
        learner.fit_agent(READY, number, 1)
        batch = last_batch(learner)
        for obs, given in zip(batch.obs, batch.reward, strict=True):
            if obs.tobytes() in stored:
                found += 1
                assert given == pytest.approx(obs[1] + stored[obs.tobytes()] / scale, rel=1e-5, abs=1e-6)
    assert found > 20


def test_a_seed_without_two_numbers_in_its_replay_keeps_its_nets() -> None:
    learner = learner_of(make_counting(label=None), n_seeds=2)
    unrated = [e._replace(spans=e.spans._replace(number=np.full(3, NONE))) for e in episodes_of(0)]  # type: ignore[union-attr]
    learner.store_episodes([episodes_of(0), unrated])
    both = np.array([True, True])
    learner.fit_decomposer(both, 0, 3)
    learner.fit_agent(both, 0, 3)
    assert learner.state.decomposer.updates.tolist() == [3, 0]
    assert learner.state.agent.number.tolist() == [2, 0]


def test_an_agent_that_watches_rewards_sees_stretches_without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHED", (40, 2))
    for needs_return in (False, True):
        watched = make_counting(label=None, reward=lambda state, steps: steps.obs[..., 0])
        learner = learner_of(watched._replace(needs_return=needs_return), agent=make_watching(BATCH, 40, 2))
        learner.store_episodes([episodes_of(2)])
        learner.fit_agent(READY, 0, 1)
        number, is_last = (np.asarray(learner.state.agent[n][0]).astype(int) for n in (1, 2))
        time = number % 100
        # The end of an episode, and that of a part with numbers before one without.
        np.testing.assert_array_equal(is_last, np.isin(time, [1, 7] if needs_return else [7]))
        assert set(time.ravel().tolist()) == ({0, 1, 6, 7} if needs_return else set(range(8)))


# Rewards of whole episodes


@pytest.mark.parametrize("method", ["diaster", "rudder", "uniform", "episodic", "ircr", "rrd"])
def test_rewards_of_an_episode_are_those_of_its_spans_as_if_each_were_one(method: str) -> None:
    decomposer = make_decomposer(settings_of(method), HORIZON)
    learner, model = learner_of(decomposer, Feedback(4)), RewardModel(decomposer, HORIZON)
    cut = [
        e._replace(spans=Spans(np.array([3, 4, 8]), np.array([1.0, -2.0, 0.5 * n])))
        for n, e in enumerate(episodes_of(3))
    ]
    learner.store_episodes([cut])
    if decomposer.update is not None:
        learner.fit_decomposer(READY, 0, 3)
    state = learner.decomposer_state(0)
    [whole] = model.of_episodes(state, [EvaluationEpisode(cut[2], None)])
    pieces = [
        EvaluationEpisode(Episode(cut[2].obs[a : b + 1], cut[2].action[a:b], number, False), None)
        for a, b, number in ((0, 3, 1.0), (3, 4, -2.0), (4, 8, 1.0))
    ]
    np.testing.assert_allclose(whole, np.concatenate(model.of_episodes(state, pieces)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["uniform", "episodic", "ircr", "rudder", "diaster", "dense"])
def test_a_method_that_shares_out_numbers_has_no_rewards_where_there_is_none(method: str) -> None:
    decomposer = make_decomposer(settings_of(method), HORIZON)
    learner, model = learner_of(decomposer), RewardModel(decomposer, HORIZON)
    learner.store_episodes([episodes_of(3)])
    hidden = np.arange(8, dtype=np.float32)
    [found] = model.of_episodes(learner.decomposer_state(0), [EvaluationEpisode(episodes_of(3)[1], hidden)])
    expected = [2, 3, 4, 5] if method in ("uniform", "episodic", "ircr", "rudder") else []
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found)), expected)


def test_the_rewards_of_the_upper_reference_are_the_hidden_part_of_the_true_ones() -> None:
    decomposer = make_decomposer(settings_of("dense"), HORIZON)
    [episode] = episodes_of(5, 1, has_known=True)
    hidden = np.arange(8, dtype=np.float32)
    [found] = RewardModel(decomposer, HORIZON).of_episodes((), [EvaluationEpisode(episode, hidden)])
    np.testing.assert_allclose(found, hidden - episode.known_reward)

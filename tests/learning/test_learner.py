"""The compiled half: where an agent's rewards come from, labels that need the history, readiness of a seed."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_methods import make_counting, make_remembering

from diaster.agents import Agent, Transition
from diaster.agents.sac import make_sac
from diaster.config import DenseConfig, DiasterConfig, RudderConfig, SacConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.controls import make_dense
from diaster.decomposers.diaster import make_diaster
from diaster.decomposers.rudder import make_rudder
from diaster.learning import labels, snapshot, updates
from diaster.learning import learner as module
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.replay.store import EpisodeStore, Steps, gather_numbered
from diaster.types import EnvSpec, Episode, EvaluationEpisode

# Short episodes in a ring so large that a renewal of its labels takes more than one call.
OBS, ACTIONS, HORIZON, CAPACITY, BATCH = 3, 2, 4, 400, 8
assert HORIZON * labels.ROWS[-1] < CAPACITY
SPEC = EnvSpec("toy", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (ACTIONS,), HORIZON)
READY = np.array([True])


def random_episode(random: np.random.Generator, length: int | None = None) -> Episode:
    length = int(random.integers(1, HORIZON + 1)) if length is None else length
    obs = random.normal(size=(length + 1, OBS)).astype(np.float32)
    action = random.uniform(-1, 1, (length, ACTIONS)).astype(np.float32)
    hidden = random.normal(size=length).astype(np.float32)
    return Episode(obs, action, float(obs[:, 0].sum()), bool(random.integers(2)), hidden)


def learner_of(decomposer: Decomposer, agent: Agent | None = None, n_seeds: int = 1) -> Learner:
    agent = agent or make_remembering(BATCH)
    return Learner(decomposer, agent, SPEC, range(n_seeds), CAPACITY, BATCH, jax.devices("cpu")[0])


def fill(learner: Learner, random: np.random.Generator, rounds: int, *per_seed: int) -> list[list[Episode]]:
    """Store episodes of each seed, some at a time; returns those of them that are stored in the end."""
    seen: list[list[Episode]] = [[] for _ in per_seed]
    for _ in range(rounds):
        new = [[random_episode(random) for _ in range(n)] for n in per_seed]
        learner.store_episodes(new)
        for of_seed, episodes in zip(seen, new, strict=True):
            of_seed += episodes
    stored = np.minimum(learner.store.n_episodes, [len(of_seed) for of_seed in seen])
    return [of_seed[len(of_seed) - n :] for of_seed, n in zip(seen, stored, strict=True)]


def live_places(learner: Learner, seed: int = 0) -> np.ndarray:
    """Where the steps that are stored stand, oldest first."""
    store = jax.tree.map(lambda leaf: leaf[seed], learner.store)
    return np.arange(int(store.first_live_step), int(store.next_step)) % CAPACITY


def stored_labels(learner: Learner, episodes: list[Episode]) -> np.ndarray:
    """Labels of the newest episodes, in order."""
    assert learner.labels.values is not None
    total = sum(episode.length for episode in episodes)
    end = int(learner.store.next_step[0])
    return np.asarray(learner.labels.values)[0][np.arange(end - total, end) % CAPACITY]


def expected_labels(learner: Learner, model: RewardModel, episodes: list[Episode]) -> np.ndarray:
    state = learner.decomposer_state(0)
    scale = np.asarray(learner._decomposer.scale(state))
    return np.concatenate(model.of_episodes(state, [EvaluationEpisode(e, None) for e in episodes])) / scale


# Where the rewards come from


def steps_by_obs(episodes: list[Episode]) -> dict[bytes, tuple[Episode, int]]:
    return {episode.obs[t].tobytes(): (episode, t) for episode in episodes for t in range(episode.length)}


def last_batch(learner: Learner) -> Transition:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], learner.state.agent.batch)


@pytest.mark.parametrize("has_labels", [False, True])
def test_rewards_that_are_to_sum_to_the_return_get_an_even_share_of_what_is_missing(has_labels: bool) -> None:
    def reward(state: Any, steps: Steps) -> jax.Array:
        return 0.1 * steps.obs[..., 0] + steps.time + state.updates

    scale = 5.0
    plain = make_counting(label=reward if has_labels else None, reward=reward, scale=lambda state: jnp.full((), scale))
    learner = learner_of(plain._replace(exact_sum=True))
    [live] = fill(learner, np.random.default_rng(0), 5, 30)
    for n_fits in (0, 3):
        if n_fits:
            learner.fit_decomposer(READY, 0, n_fits)
            learner.renew_labels(oldest=2)  # the corrected rewards age as the net learns
        labels = np.asarray(learner.labels.values)[0][live_places(learner)]
        for episode, found in zip(live, np.split(labels, np.cumsum([e.length for e in live])[:-1]), strict=True):
            r_hat = 0.1 * episode.obs[:-1, 0] + np.arange(episode.length) + n_fits
            missing = episode.episode_return / scale - r_hat.sum()
            np.testing.assert_allclose(found, r_hat + missing / episode.length, atol=1e-3)
            assert found.sum() == pytest.approx(episode.episode_return / scale, abs=2e-3)
    # What r̂ is judged by is r̂ itself.
    [found] = RewardModel(learner._decomposer, HORIZON).of_episodes(
        learner.decomposer_state(0), [EvaluationEpisode(live[0], None)]
    )
    expected = scale * (0.1 * live[0].obs[:-1, 0] + np.arange(live[0].length) + 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_agents_reward_is_the_decomposers_and_all_else_is_as_stored() -> None:
    def reward(state: Any, steps: Steps) -> jax.Array:
        return steps.obs[..., 0] + 2.0 * steps.next_obs[..., 1] + 100.0 * steps.time + steps.episode_return

    learner = learner_of(make_counting(label=None, reward=reward))
    assert learner.labels.values is None
    [live] = fill(learner, np.random.default_rng(0), 5, 30)
    known = steps_by_obs(live)
    for number in range(5):
        learner.fit_agent(READY, number, 1)
        batch = last_batch(learner)
        for position in range(BATCH):
            episode, t = known[batch.obs[position].tobytes()]
            np.testing.assert_array_equal(batch.action[position], episode.action[t])
            np.testing.assert_array_equal(batch.next_obs[position], episode.obs[t + 1])
            assert batch.terminal[position] == (episode.terminated and t == episode.length - 1)
            expected = episode.obs[t, 0] + 2.0 * episode.obs[t + 1, 1] + 100.0 * t + episode.episode_return
            assert batch.reward[position] == pytest.approx(expected, rel=1e-5)


def test_labels_go_before_the_step_reward() -> None:
    learner = learner_of(make_counting(label=lambda state, steps: 10.0 * steps.time + steps.length))
    [live] = fill(learner, np.random.default_rng(1), 5, 30)
    known = steps_by_obs(live)
    learner.fit_agent(READY, 0, 1)
    batch = last_batch(learner)
    for obs, reward in zip(batch.obs, batch.reward, strict=True):
        episode, t = known[obs.tobytes()]
        assert reward == 10.0 * t + episode.length


def test_a_method_may_choose_the_steps_of_an_agents_batch() -> None:
    def newest(state: Any, store: EpisodeStore, key: jax.Array, n: int) -> Steps:
        return gather_numbered(store, store.next_step - 1 - jnp.arange(n))

    learner = learner_of(
        make_counting(label=None, sample=newest, reward=lambda state, steps: 3.0 * steps.action[..., 0])
    )
    [live] = fill(learner, np.random.default_rng(2), 5, 30)
    learner.fit_agent(READY, 0, 1)
    batch = last_batch(learner)
    actions = np.concatenate([episode.action for episode in live])[::-1][:BATCH]
    np.testing.assert_array_equal(batch.action, actions)
    np.testing.assert_allclose(batch.reward, 3.0 * actions[:, 0], rtol=1e-6)


@pytest.mark.parametrize("setting", [4.0, "auto"])
def test_the_upper_reference_learns_from_the_hidden_rewards_also_in_a_ring_that_has_wrapped(setting: Any) -> None:
    decomposer = make_dense(DenseConfig(return_scale=setting), HORIZON)
    learner = learner_of(decomposer, n_seeds=2)
    random = np.random.default_rng(3)
    live = fill(learner, random, 8, 30, 20)
    assert (learner.store.oldest > 0).all()
    learner.fit_agent(np.array([True, True]), 0, 1)
    known = steps_by_obs(live[0])
    scale, batch = float(decomposer.scale(learner.decomposer_state(0))), last_batch(learner)
    assert setting == "auto" or scale == setting
    for obs, reward in zip(batch.obs, batch.reward, strict=True):
        episode, t = known[obs.tobytes()]
        assert reward == pytest.approx(episode.hidden_reward[t] / scale, rel=1e-5)


def test_hidden_rewards_that_come_along_reach_no_other_method() -> None:
    first, second = (learner_of(make_counting(label=lambda state, steps: steps.obs[..., 0])) for _ in range(2))
    random = np.random.default_rng(4)
    for _ in range(3):
        episodes = [random_episode(random) for _ in range(4)]
        first.store_episodes([episodes])
        second.store_episodes([[episode._replace(hidden_reward=None) for episode in episodes]])
    for one, other in zip(
        jax.tree.leaves((first.state, first.store, first.labels.values)),
        jax.tree.leaves((second.state, second.store, second.labels.values)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_updates_are_numbered_on_from_the_first() -> None:
    learner = learner_of(make_counting())
    fill(learner, np.random.default_rng(5), 2, 4)
    metrics = learner.fit_agent(READY, 7, 3)
    assert float(metrics["number"][0]) == 8.0  # the mean of 7, 8 and 9
    assert int(learner.state.agent.number[0]) == 9


# Labels


METHODS = {
    "diaster, all": make_diaster(
        DiasterConfig(base="none", hidden=4, reward_source="difference", segments="all"), HORIZON
    ),
    "diaster, sampled": make_diaster(
        DiasterConfig(base="none", hidden=4, reward_source="difference", segment_length=3), HORIZON
    ),
    "diaster, final": make_diaster(
        DiasterConfig(base="none", hidden=4, reward_source="difference", head="final"), HORIZON
    ),
    "rudder": make_rudder(RudderConfig(hidden=4), HORIZON),
}


@cache
def labelling(name: str) -> tuple[Learner, RewardModel]:
    """Compiled once for all tests; what is stored before does not matter to them."""
    return learner_of(METHODS[name]), RewardModel(METHODS[name], HORIZON)


@pytest.mark.parametrize("name", METHODS)
def test_labels_of_new_episodes_are_the_present_models_of_each_episode_by_itself(name: str) -> None:
    random = np.random.default_rng(0)
    learner, model = labelling(name)
    for n in (1, 4, 9, 40, 70, 40):
        episodes = [random_episode(random) for _ in range(n)]
        learner.store_episodes([episodes])
        np.testing.assert_allclose(
            stored_labels(learner, episodes), expected_labels(learner, model, episodes), atol=1e-5
        )
    assert int(learner.store.oldest[0]) > 0  # the ring has wrapped


@pytest.mark.parametrize("name", ["diaster, all", "rudder"])
def test_renewing_labels_brings_every_stored_step_up_to_date_also_in_a_ring_that_has_wrapped(name: str) -> None:
    learner, model = labelling(name)
    [live] = fill(learner, np.random.default_rng(1), 20, 10)
    assert len(live) == int(learner.store.n_episodes[0]) < 200
    learner.fit_decomposer(READY, 0, 30)
    expected = expected_labels(learner, model, live)
    assert len(expected) == len(live_places(learner))
    assert not np.allclose(stored_labels(learner, live), expected, atol=1e-3)
    learner.renew_labels(oldest=0)
    np.testing.assert_allclose(stored_labels(learner, live), expected, atol=1e-5)


def test_a_renewal_labels_every_stored_step_by_itself_and_touches_no_other_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def label(state: Any, steps: Steps) -> jax.Array:
        return 10_000.0 * state.updates + 100.0 * steps.time + steps.length

    random = np.random.default_rng(0)
    for rows, rounds in (((64,), 1), ((2, 8), 3), ((2, 64), 20), ((1, 20), 30)):
        monkeypatch.setattr(labels, "ROWS", rows)
        # Three seeds: one that fills its ring quickly, one slowly, and one that never has an episode.
        learner = learner_of(make_counting(label=label), n_seeds=3)
        live = fill(learner, random, rounds, 9, 3, 0)
        learner.fit_decomposer(np.ones(3, bool), 0, 1)
        learner.labels.values = jnp.full_like(learner.labels.values, -1.0)
        learner.renew_labels(oldest=0)
        for seed, episodes in enumerate(live):
            expected = np.full(CAPACITY, -1.0)
            own = [10_000.0 + 100.0 * t + episode.length for episode in episodes for t in range(episode.length)]
            expected[live_places(learner, seed)] = own
            np.testing.assert_array_equal(np.asarray(learner.labels.values)[seed], expected)
    assert int(learner.store.oldest[0]) > 0, "a ring has wrapped"


def test_labels_are_renewed_only_when_they_are_older_than_asked() -> None:
    learner = learner_of(make_counting())
    random = np.random.default_rng(6)
    fill(learner, random, 3, 4)

    def ages() -> set[int]:
        labels = np.asarray(learner.labels.values)[0][live_places(learner)]
        return set((int(learner.state.decomposer.updates[0]) - labels).astype(int).tolist())

    assert ages() == {0}
    learner.fit_decomposer(READY, 0, 5)
    learner.renew_labels(oldest=5)
    assert ages() == {5}
    fill(learner, random, 1, 4)  # new episodes get the present model's labels, old ones keep theirs
    assert ages() == {0, 5}
    learner.fit_decomposer(READY, 5, 1)
    assert ages() == {1, 6}
    learner.renew_labels(oldest=5)
    assert ages() == {0}
    learner.fit_decomposer(READY, 6, 5)
    learner.renew_labels(oldest=5)
    assert ages() == {5}  # their age counts from the renewal


# Seeds


@cache
def two_seeds() -> Learner:
    """Diaster and SAC, in a learner that is compiled once for all tests."""
    config = DiasterConfig(base="mixed", hidden=8, batch_episodes=3, segments_per_episode=2)
    agent = make_sac(SacConfig(hidden=8, batch_size=BATCH))
    return learner_of(make_diaster(config, HORIZON), agent, n_seeds=2)


def test_a_seed_that_is_not_ready_keeps_its_nets() -> None:
    random = np.random.default_rng(2)
    learner = two_seeds()
    learner.store_episodes([[random_episode(random) for _ in range(4)], []])
    before = jax.device_get(learner.state)
    ready = np.array([True, False])
    metrics = learner.fit_decomposer(ready, 0, 3) | learner.fit_agent(ready, 0, 3)
    after = jax.device_get(learner.state)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
    assert not np.array_equal(before.agent.actor[0].weight[0], after.agent.actor[0].weight[0])
    assert np.isfinite(metrics["critic_loss"][0]) and np.isnan(metrics["critic_loss"][1])


def test_the_host_acts_with_the_parameters_of_each_seed() -> None:
    sent = two_seeds().send_policies()
    policies, tree = sent.of_seeds, sent.tree
    assert len(policies) == 2
    for seed, policy in enumerate(policies):
        assert isinstance(policy.exploration, float)
        for (weight, bias), layer in zip(policy.layers, tree.layers, strict=True):
            assert isinstance(weight, np.ndarray)
            np.testing.assert_array_equal(weight, layer.weight[seed])
            np.testing.assert_array_equal(bias, layer.bias[seed])
    assert not np.array_equal(policies[0].layers[0][0], policies[1].layers[0][0])


def test_policies_that_are_read_later_are_those_of_the_time_they_were_sent() -> None:
    learner = two_seeds()
    learner.store_episodes([[random_episode(np.random.default_rng(seed)) for _ in range(4)] for seed in range(2)])
    before = np.array(learner.state.agent.actor[0].weight)
    sent = learner.send_policies()
    learner.fit_agent(np.ones(2, bool), 3, 3)
    for policy, weight, now in zip(sent.of_seeds, before, learner.send_policies().of_seeds, strict=True):
        np.testing.assert_array_equal(policy.layers[0][0], weight)
        assert not np.array_equal(now.layers[0][0], weight)


def lose(learner: Learner, seed: int) -> None:
    """What learning that diverges leaves: a policy that is not finite."""
    lost = jax.tree.map(lambda leaf: leaf.at[seed].set(jnp.inf), learner.state.agent.actor)
    learner.state = learner.state._replace(agent=learner.state.agent._replace(actor=lost))


def nets_of_seeds(learner: Learner) -> list[dict[str, np.ndarray]]:
    arrays = snapshot.net_arrays(learner.state)
    return [{name: array[seed] for name, array in arrays.items()} for seed in range(3)]


def test_a_seed_whose_policy_is_not_finite_is_rolled_back_to_the_nets_that_were_kept_and_the_others_are_not() -> None:
    learner = learner_of(make_counting(label=None), make_sac(SacConfig(hidden=4)), n_seeds=3)
    fill(learner, np.random.default_rng(0), 1, 5, 5, 5)
    ready = np.ones(3, bool)
    learner.fit_agent(ready, 0, 1)
    learner.keep_nets()
    kept = nets_of_seeds(learner)
    keys = jax.random.key_data(learner._seed_keys)
    for count in (1, 2):
        learner.fit_agent(ready, count, 1)
        learned = nets_of_seeds(learner)
        lose(learner, 1)
        assert learner.send_policies().rollbacks.tolist() == [0, count, 0]
        now = nets_of_seeds(learner)
        for seed, expected in enumerate((learned[0], kept[1], learned[2])):
            jax.tree.map(np.testing.assert_array_equal, now[seed], expected)
        other = jax.random.key_data(learner._seed_keys)
        assert [np.array_equal(*pair) for pair in zip(other, keys, strict=True)] == [True, False, True]
    sent = learner.send_policies()
    assert np.isfinite(sent.of_seeds[1].layers[0][0]).all()
    assert learner.snapshot().rollbacks == [0, 2, 0]


def test_agents_that_begin_anew_are_others_than_the_first_and_a_rollback_returns_to_them() -> None:
    learner = learner_of(make_counting(label=None), make_sac(SacConfig(hidden=4)), n_seeds=3)
    fill(learner, np.random.default_rng(0), 1, 5, 5, 5)
    first, ready = nets_of_seeds(learner), np.ones(3, bool)
    learner.fit_decomposer(ready, 0, 1)
    learner.fit_agent(ready, 0, 1)
    learnt = nets_of_seeds(learner)
    learner.restart_agents(np.array([False, True, False]))
    fresh = nets_of_seeds(learner)
    for seed in (0, 2):
        jax.tree.map(np.testing.assert_array_equal, fresh[seed], learnt[seed])
    for name, array in fresh[1].items():
        of_agent = name.startswith("state.agent.")
        assert of_agent or np.array_equal(array, learnt[1][name])
    weights = next(name for name in fresh[1] if name.startswith("state.agent.actor") and name.endswith("weight"))
    assert not np.array_equal(fresh[1][weights], learnt[1][weights])
    assert not np.array_equal(fresh[1][weights], first[1][weights])
    learner.fit_agent(ready, 1, 1)
    lose(learner, 1)
    learner.send_policies()
    np.testing.assert_array_equal(nets_of_seeds(learner)[1][weights], fresh[1][weights])


def test_labels_of_a_seed_are_those_of_its_nets_also_after_a_rollback() -> None:
    learner = learner_of(make_counting(), make_sac(SacConfig(hidden=4)), n_seeds=3)
    fill(learner, np.random.default_rng(0), 1, 5, 5, 5)
    ready = np.ones(3, bool)
    learner.fit_decomposer(ready, 0, 2)
    learner.renew_labels(0)
    learner.keep_nets()  # a label is the number of updates of the nets that gave it
    learner.fit_decomposer(ready, 2, 3)
    learner.renew_labels(0)
    learner.fit_agent(ready, 0, 1)
    lose(learner, 1)
    learner.send_policies()
    assert [set(learner.labels.values[seed, live_places(learner, seed)].tolist()) for seed in range(3)] == [{5.0}] * 3
    learner.store_episodes([[], [], []])
    assert [set(learner.labels.values[seed, live_places(learner, seed)].tolist()) for seed in range(3)] == [
        {5.0},
        {2.0},
        {5.0},
    ]


def test_kept_nets_stay_as_they_are_when_learning_goes_on() -> None:
    learner = learner_of(make_counting(label=None), make_sac(SacConfig(hidden=4)))
    fill(learner, np.random.default_rng(0), 1, 5)
    learner.keep_nets()
    frozen = learner.frozen_decomposers()
    before, decomposers = learner.snapshot(), jax.device_get(frozen)
    learner.fit_agent(READY, 0, 2)
    after = learner.snapshot()
    jax.tree.map(np.testing.assert_array_equal, after.good, before.good)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(frozen), decomposers)
    assert any(not np.array_equal(after.arrays[name], before.arrays[name]) for name in before.good)
    nets = snapshot.nets_of(before.good, learner.state)
    jax.tree.map(np.testing.assert_array_equal, snapshot.net_arrays(nets), before.good)


def test_sound_nets_are_the_new_ones_but_of_a_seed_in_which_a_number_is_lost() -> None:
    def nets(offset: float) -> snapshot.LearnerState:
        arrays = {"weight": jnp.arange(6.0).reshape(3, 2) + offset, "updates": jnp.arange(3) + int(offset)}
        return snapshot.LearnerState(arrays, jnp.full((3,), offset))

    new = nets(10.0)._replace(agent=jnp.array([10.0, jnp.nan, 10.0]))
    chosen = snapshot.sound_nets(new, nets(0.0))
    np.testing.assert_array_equal(chosen.decomposer["weight"], [[10, 11], [2, 3], [14, 15]])
    np.testing.assert_array_equal(chosen.decomposer["updates"], [10, 1, 12])
    np.testing.assert_array_equal(chosen.agent, [10.0, 0.0, 10.0])


def test_learning_in_the_working_form_is_learning_and_leaves_the_state_in_its_own() -> None:
    agent = make_sac(SacConfig(hidden=4))
    states = []
    for form in (None, agent.working_form):
        learner = learner_of(make_counting(label=None), agent, n_seeds=2)
        learner._working_form = form  # as on an accelerator
        fill(learner, np.random.default_rng(0), 1, 5, 5)
        learner.fit_agent(np.array([True, False]), 0, 3)
        states.append(learner.state.agent)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5), *states)


def test_how_loops_are_compiled_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for options in (updates.loop_options("cpu"), None):
        monkeypatch.setattr(module, "loop_options", lambda _, options=options: options)
        learner = learner_of(make_counting(label=None), make_sac(SacConfig(hidden=8)))
        fill(learner, np.random.default_rng(0), 1, 20)
        learner.fit_agent(READY, 0, 5)
        states.append(snapshot.net_arrays(learner.state))
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_only_what_this_version_of_jax_knows_is_asked_of_its_compiler() -> None:
    assert updates.loop_options("gpu") is None
    options = updates.loop_options("cpu")
    assert options is None or jax.jit(lambda x: x, compiler_options=options)(1.0) == 1.0

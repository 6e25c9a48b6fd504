"""Several decomposers in the place of one."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from jax import jit

from diaster.config import RrdConfig, build_config, validate
from diaster.decomposers import ensemble, make_decomposer
from diaster.errors import DiasterError
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode

OBS, ACTIONS, HORIZON, MEMBERS = 2, 1, 8, 4
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
SETTINGS = {"hidden": 8, "subset": 8, "batch_episodes": 4, "learning_rate": 3e-3}


def make(n: int = MEMBERS, careful: float = 0.0):
    return make_decomposer(RrdConfig(**SETTINGS, ensemble=n, careful=careful), HORIZON)


def episodes_of(seed: int, n: int, shift: float = 0.0) -> list[Episode]:
    """Episodes around a point of their own; a step is worth its first observation."""
    rng, episodes = np.random.default_rng(seed), []
    for _ in range(n):
        obs = (shift + rng.normal() + 0.3 * rng.normal(size=(HORIZON + 1, OBS))).astype(np.float32)
        action = rng.uniform(-1.0, 1.0, size=(HORIZON, ACTIONS)).astype(np.float32)
        episodes.append(Episode(obs, action, float(obs[:-1, 0].sum()), False))
    return episodes


def steps_of(episodes: list[Episode]) -> replay.Steps:
    obs, next_obs = (np.concatenate([e.obs[part] for e in episodes]) for part in (np.s_[:-1], np.s_[1:]))
    none = np.zeros(len(obs), np.float32)
    return replay.Steps(obs, np.concatenate([e.action for e in episodes]), next_obs, none, none, none, none)


@cache
def fitted(n_updates: int):
    """An ensemble after so many updates: state, metrics and the last batches."""
    decomposer = make()
    block = replay.make_block(episodes_of(0, 30), 512, 256, OBS, ACTIONS)
    store = replay.insert(replay.init_store(1024, OBS, ACTIONS), block)
    state, update, metrics = decomposer.ingest(decomposer.init(jax.random.key(0), SPEC), store, block), None, {}
    draw, update = jit(decomposer.draw), jit(decomposer.update)
    for number in range(n_updates):
        batches = draw(state, store, jax.random.key(number))
        state, metrics = update(state, batches)
    return state, metrics, batches


def of_member(state, number: int):
    return jax.tree.map(lambda leaf: leaf[number], state)


def rewards_of_members(state, steps: replay.Steps) -> np.ndarray:
    return np.stack([make(1).reward(of_member(state, number), steps) for number in range(MEMBERS)])


def test_the_reward_is_the_mean_of_the_members_less_some_of_their_deviation() -> None:
    state, steps = fitted(3)[0], steps_of(episodes_of(1, 3))
    members = rewards_of_members(state, steps)
    assert members.std(axis=0).min() > 1e-4
    for careful in (0.0, 2.0):
        expected = members.mean(axis=0) - careful * members.std(axis=0)
        np.testing.assert_allclose(make(careful=careful).reward(state, steps), expected, rtol=1e-4, atol=1e-5)


def test_members_begin_with_other_nets_see_the_same_episodes_and_draw_batches_of_their_own() -> None:
    state, _, batches = fitted(1)
    assert len({of_member(state, number).step_reward[0].weight.tobytes() for number in range(MEMBERS)}) == MEMBERS
    np.testing.assert_array_equal(state.moments.rows, np.full(MEMBERS, 30 * (HORIZON + 1)))
    assert len({np.asarray(of_member(batches.of_members, n).inputs).tobytes() for n in range(MEMBERS)}) == MEMBERS


def test_a_member_is_what_it_would_be_by_itself() -> None:
    """But for its random numbers: nothing passes between members."""
    before, _, _ = fitted(2)
    after, _, batches = fitted(3)
    alone, _ = make(1).update(of_member(before, 1), of_member(batches.of_members, 1))
    found = of_member(after, 1).step_reward
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), alone.step_reward, found)


def test_what_is_logged_is_how_much_members_differ_on_stored_steps_relative_to_what_they_say() -> None:
    state, metrics, batches = fitted(3)
    assert set(metrics) == {"step_loss", "disagreement"}
    members = rewards_of_members(state, batches.probed)
    expected = np.sqrt(members.var(axis=0).mean() / (members.mean(axis=0) ** 2).mean())
    assert float(metrics["disagreement"]) == pytest.approx(float(expected), rel=1e-3)


def test_members_agree_more_the_more_they_have_learnt_and_least_on_steps_of_a_kind_never_seen() -> None:
    early, late = (float(fitted(n)[1]["disagreement"]) for n in (1, 300))
    assert late < 0.5 * early
    state = fitted(300)[0]
    near, far = (rewards_of_members(state, steps_of(episodes_of(1, 20, shift))).std(axis=0).mean() for shift in (0, 30))
    assert far > 5.0 * near


def test_rewards_of_zero_disagree_by_a_finite_number() -> None:
    assert float(ensemble.disagreement(np.zeros((3, 4), np.float32))) == 0.0


def test_one_member_is_the_method_itself_and_caution_needs_more() -> None:
    assert make(1).init(jax.random.key(0), SPEC).step_reward[0].weight.ndim == 2
    with pytest.raises(DiasterError, match="members of an ensemble differ, and there is one"):
        validate(build_config(env="x", method={"careful": 1.0}))
    validate(build_config(env="x", method={"careful": 1.0, "ensemble": 2}))
    validate(build_config(env="x", method="uniform"))

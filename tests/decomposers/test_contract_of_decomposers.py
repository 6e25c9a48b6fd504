"""What every method has to keep, whatever its settings.

A new method is under this contract with a line in `VARIANTS`; which tests apply to it follows from the record it fills.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from jax import jit

from diaster.config import METHODS, build_config, validate
from diaster.decomposers import make_decomposer
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode, Feedback, Spans

OBS, ACTIONS, HORIZON, CAPACITY = 3, 2, 3, 64
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), HORIZON)

SAMPLED = {"segment_length": 2, "segments_per_episode": 2}
UNIFORM = {"episode_draw": "uniform", "normalize_inputs": False}
# The method's name, and what tells a variant from others; the settings are those of `build_config`.
VARIANTS: dict[str, dict[str, Any]] = {
    "diaster": {"method": SAMPLED},
    "diaster, to the letter": {"preset": "paper"},
    "diaster, differences": {"method": {"head": "final", "reward_source": "difference", **UNIFORM, **SAMPLED}},
    "diaster, a budget of steps": {
        "method": {"segments": "all", "batch_steps": 4, "n_cuts": 1, "terminal_target": "return"}
    },
    "diaster, a linear base": {"method": {"base": "linear", **SAMPLED}},
    "diaster, a mixed base": {"method": {"base": "mixed", **SAMPLED}},
    "diaster, an ensemble": {
        "method": {"ensemble": 2, "careful": 0.5, "unbiased": True, "next_obs": True, "weight_decay": 1.0, **SAMPLED}
    },
    "rrd": {"method": {"subset": 2}},
    "rrd, averaged": {"method": {"subset": 2, "averaging": 0.5, "next_obs": False, "weight_decay": 1.0}},
    "rrd, a linear base": {"method": {"subset": 2, "base": "linear"}},
    "rrd, unbiased": {"method": {"subset": 2, "unbiased": True, "episode_draw": "uniform"}},
    "rd": {"method": {"normalize_inputs": True}},
    "rudder": {},
    "rudder, averaged": {"method": {"averaging": 0.5, "next_obs": True, "weight_decay": 1.0, "scale_steps": 4}},
    "ircr": {"method": {"elite_episodes": 2}},
    "ircr, returns as they are": {"method": {"credit": "return", "elite_episodes": 2}},
    "uniform": {},
    "episodic": {},
    "dense": {},
}
SMALL = {"hidden": 4, "batch_episodes": 3, "learning_rate": 1e-2}  # where a method has such settings


def method_of(name: str) -> str:
    return name.split(",")[0]


def config_of(name: str):
    variant, method = VARIANTS[name], method_of(name)
    known = {field.name for field in dataclasses.fields(METHODS[method].settings)}
    small = {setting: value for setting, value in SMALL.items() if setting in known}
    settings = {"name": method, **small, **variant.get("method", {})}
    config = build_config(env="Made-up", **variant | {"method": settings})
    validate(config)
    return config.method


DECOMPOSERS = {name: make_decomposer(config_of(name), HORIZON) for name in VARIANTS}


def each_variant_where(holds=lambda decomposer: True):
    return pytest.mark.parametrize("name", [name for name, decomposer in DECOMPOSERS.items() if holds(decomposer)])


each_variant = each_variant_where()
each_fitted_variant = each_variant_where(lambda decomposer: decomposer.update is not None)
each_labelled_variant = each_variant_where(lambda decomposer: decomposer.label is not None)
# The hidden rewards are no function of what is stored: the learner stores them with the steps.
each_variant_with_rewards = each_variant_where(lambda decomposer: not decomposer.is_hidden_reward)
each_variant_with_a_step_reward = each_variant_where(
    lambda decomposer: decomposer.update is not None and decomposer.label is None
)
each_sampling_variant = each_variant_where(lambda decomposer: decomposer.sample is not None)


class Subject:
    """A decomposer and its programs, each compiled once for all tests."""

    def __init__(self, name: str) -> None:
        self.decomposer = DECOMPOSERS[name]
        self.traces: dict[str, int] = {}
        self.ingest = self.compiled("ingest", self.decomposer.ingest)
        self.reward = self.compiled("reward", None if self.decomposer.is_hidden_reward else self.r_hat)
        self.draw = self.compiled("draw", self.decomposer.draw)
        self.update = self.compiled("update", self.decomposer.update)
        self.sample = self.compiled("sample", self.decomposer.sample and self.sample_eight)

    def compiled(self, name: str, function):
        if function is None:
            return None
        self.traces[name] = 0

        def traced(*arguments):
            self.traces[name] += 1  # runs when JAX traces, not when the program runs
            return function(*arguments)

        return jit(traced)

    def init(self, seed: int):
        # Not compiled whole: all variants share its single operations.
        return self.decomposer.init(jax.random.key(seed), SPEC)

    def r_hat(self, state, steps):
        """What learning would use, in the environment's units: labels where there are, else the step reward."""
        if self.decomposer.label is None:
            return self.decomposer.reward(state, steps) * self.decomposer.scale(state)
        column = jax.tree.map(lambda leaf: leaf[:, None], steps)
        return self.decomposer.label(state, column)[:, 0] * self.decomposer.scale(state)

    def sample_eight(self, state, store, key):
        return self.decomposer.sample(state, store, key, 8)

    def after(self, seed: int, episodes):
        """A decomposer, and the store, that have seen some episodes."""
        block = block_of(episodes)
        store = insert(empty_store(), block)
        return self.ingest(self.init(seed), store, block), store

    def life(self, seed: int, n_updates: int = 3, episodes=None):
        """From nothing to a few updates, where there are any: state, metrics of the last one, and r̂ of some steps."""
        state, store = self.after(seed, random_episodes(seed) if episodes is None else episodes)
        metrics = {}
        if self.update is not None:
            for key in update_keys(seed, n_updates):
                state, metrics = self.update(state, self.draw(state, store, key))
        return jax.device_get((state, metrics, None if self.reward is None else self.reward(state, PROBE)))

    def batches(self, state, store, key):
        """All that is drawn from the store."""
        return [draw(state, store, key) for draw in (self.draw, self.sample) if draw is not None]


subject = cache(Subject)
insert = jit(replay.insert)
empty_store = cache(lambda: replay.init_store(CAPACITY, OBS, ACTIONS))


def update_keys(seed: int, n: int):
    return [jax.random.fold_in(jax.random.key(seed), index) for index in range(n)]


def random_episodes(seed: int, lengths=(3, 1, 2, 3, 3, 1)) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [
        Episode(
            rng.normal(size=(length + 1, OBS)).astype(np.float32),
            rng.uniform(-1.0, 1.0, size=(length, ACTIONS)).astype(np.float32),
            float(rng.normal() * 10.0),
            bool(rng.integers(2)),
        )
        for length in lengths
    ]


def block_of(episodes: list[Episode], n_rows: int = 32) -> replay.EpisodeBlock:
    return replay.make_block(episodes, n_rows, n_rows // 2, OBS, ACTIONS)


def steps_of(*episodes: Episode) -> replay.Steps:
    """All that is known of the steps of episodes laid end to end.  # [T, …]"""
    parts = [
        replay.Steps(
            obs=episode.obs[:-1],
            action=episode.action,
            next_obs=episode.obs[1:],
            terminal=episode.terminated & (np.arange(episode.length) == episode.length - 1),
            time=np.arange(episode.length, dtype=np.int32),
            length=np.full(episode.length, episode.length, np.int32),
            episode_return=np.full(episode.length, episode.episode_return, np.float32),
        )
        for episode in episodes
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


PROBE = steps_of(*random_episodes(99, (HORIZON,)))


def assert_close(one, other, tolerance: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), one, other)


def assert_equal(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def is_finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def differ(one, other) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in leaves)


def test_every_method_is_under_this_contract():
    assert {method_of(name) for name in VARIANTS} == set(METHODS)


@each_variant
def test_the_record_is_of_one_piece(name):
    decomposer = DECOMPOSERS[name]
    assert (decomposer.draw is None) == (decomposer.update is None)
    # The learner takes the reward from one of these places.
    sources = [decomposer.label is not None, decomposer.sample is not None, decomposer.is_hidden_reward]
    assert sum(sources) <= 1
    # How many updates there are is the settings' to say, and none are asked of what has none.
    assert (config_of(name).updates > 0) == (decomposer.update is not None)


@each_variant
def test_only_the_upper_reference_has_the_hidden_rewards(name):
    assert DECOMPOSERS[name].is_hidden_reward == (method_of(name) == "dense")


@pytest.mark.parametrize("name", [n for n in VARIANTS if getattr(config_of(n), "return_scale", None) == "auto"])
def test_the_automatic_scale_is_the_same_whatever_the_method(name):
    episodes = random_episodes(0)
    length, total = (np.array(part) for part in zip(*((e.length, e.episode_return) for e in episodes), strict=True))
    expected = 5.0 * np.sqrt(np.average((total / length) ** 2, weights=length))
    assert float(DECOMPOSERS[name].scale(subject(name).after(0, episodes)[0])) == pytest.approx(expected, rel=1e-5)


@each_variant
def test_a_block_with_more_padding_gives_the_same_state_and_the_same_batches(name):
    one, episodes = subject(name), random_episodes(0)
    states, batches = [], []
    for n_rows, ingest in ((32, one.ingest), (80, jit(one.decomposer.ingest))):
        block = block_of(episodes, n_rows)
        store = insert(empty_store(), block)
        states.append(ingest(one.init(0), store, block))
        batches.append(one.batches(states[-1], store, jax.random.key(7)))
    assert_close(states[0], states[1])
    assert_close(batches[0], batches[1])


@each_variant
def test_two_seeds_in_one_program_equal_two_single_runs(name):
    one, seeds = subject(name), (0, 1)
    blocks = [block_of(random_episodes(seed)) for seed in seeds]

    def together(*parts):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

    stores = together(*(insert(empty_store(), block) for block in blocks))
    ingest = jit(jax.vmap(one.decomposer.ingest))
    states, metrics = ingest(together(*map(one.init, seeds)), stores, together(*blocks)), {}
    if one.decomposer.update is not None:
        draw, update = jit(jax.vmap(one.decomposer.draw)), jit(jax.vmap(one.decomposer.update))
        for keys in zip(*(update_keys(seed, 3) for seed in seeds), strict=True):
            states, metrics = update(states, draw(states, stores, jax.numpy.stack(keys)))
    rewards = None if one.reward is None else jit(jax.vmap(one.r_hat, (0, None)))(states, PROBE)
    for position, seed in enumerate(seeds):
        found = jax.tree.map(lambda leaf, position=position: leaf[position], (states, metrics, rewards))
        assert_close(found, one.life(seed))


@each_fitted_variant
def test_two_seeds_differ_from_the_start_and_draw_differently(name):
    one, episodes = subject(name), random_episodes(0)
    assert differ(one.life(0, episodes=episodes)[2], one.life(1, episodes=episodes)[2])
    state, store = one.after(0, episodes)
    batches = [one.draw(state, store, key) for key in update_keys(5, 6)]
    assert sum(differ(batches[0], other) for other in batches[1:]) >= 4


@each_variant
def test_the_same_seed_gives_the_same_numbers(name):
    assert_equal(subject(name).life(3), subject(name).life(3))


@each_fitted_variant
def test_an_update_changes_the_rewards(name):
    one = subject(name)
    assert differ(one.life(0, n_updates=1)[2], one.life(0, n_updates=3)[2])


@each_fitted_variant
def test_a_batch_does_not_depend_on_what_updates_change(name):
    one = subject(name)
    before, store = one.after(0, random_episodes(0))
    after, _ = one.update(before, one.draw(before, store, jax.random.key(1)))
    assert differ(before, after)
    assert_equal(one.draw(before, store, jax.random.key(2)), one.draw(after, store, jax.random.key(2)))


@each_variant
def test_each_function_is_traced_once_for_a_shape(name):
    one = subject(name)  # the other tests use it with the same shapes
    block, more = block_of(random_episodes(0)), block_of(random_episodes(1, (2, 3)))
    state, store = one.init(0), insert(empty_store(), block)
    one.batches(state, store, jax.random.key(0))
    for key in update_keys(0, 2):
        state = one.ingest(state, store, block)
        one.batches(state, store, key)
        if one.update is not None:
            state, _ = one.update(state, one.draw(state, store, key))
        if one.reward is not None:
            one.reward(state, PROBE)
        store = insert(store, more)
        state = one.ingest(state, store, more)
    assert one.traces == dict.fromkeys(one.traces, 1)


# Spans


def in_pieces(seed: int) -> tuple[list[Episode], list[Episode]]:
    """Episodes of several spans, and each of their spans as an episode."""
    rng = np.random.default_rng(seed)
    whole, pieces = [], []
    for ends, episode in zip(([1, 3], [2, 3], [1, 2, 3], [2]), random_episodes(seed, (3, 3, 3, 2)), strict=True):
        numbers = rng.normal(size=len(ends)) * 10.0
        whole.append(episode._replace(spans=Spans(np.array(ends), numbers)))
        for start, end, number in zip([0, *ends], ends, numbers, strict=False):
            terminated = episode.terminated and end == ends[-1]
            pieces.append(Episode(episode.obs[start : end + 1], episode.action[start:end], number, terminated))
    return whole, pieces


def inserted(episodes: list[Episode]) -> tuple[replay.EpisodeStore, replay.EpisodeBlock]:
    block = replay.make_block(episodes, 32, 31, OBS, ACTIONS, Feedback(1))
    return insert(replay.init_store(CAPACITY, OBS, ACTIONS, Feedback(1)), block), block


@each_variant
def test_a_span_is_decomposed_as_an_episode_of_its_own(name):
    one = subject(name)
    (whole, block), (pieces, of_pieces) = map(inserted, in_pieces(0))
    state = jit(one.decomposer.ingest)(one.init(0), whole, block)
    assert_close(one.batches(state, whole, jax.random.key(7)), one.batches(state, pieces, jax.random.key(7)))
    # What was seen is the same but for the observations between two spans, which are those of both.
    alike = jit(one.decomposer.ingest)(one.init(0), pieces, of_pieces)
    for field in ("rate", "size", "low", "high", "elite"):
        if hasattr(state, field):
            assert_close(getattr(state, field), getattr(alike, field))
    if getattr(state, "base_means", None) is not None:
        for field in ("features", "rate", "length", "episodes"):
            assert_close(getattr(state.base_means, field), getattr(alike.base_means, field))


@each_variant
def test_spans_in_a_block_with_more_padding_and_in_one_program_for_two_seeds_are_the_same(name):
    one, seeds = subject(name), (0, 1)
    ingest, states = jit(one.decomposer.ingest), []
    blocks = [inserted(in_pieces(seed)[0]) for seed in seeds]
    for seed, (store, block) in zip(seeds, blocks, strict=True):
        states.append(ingest(one.init(seed), store, block))
        wide = replay.make_block(in_pieces(seed)[0], 80, 79, OBS, ACTIONS, Feedback(1))
        assert_close(states[-1], ingest(one.init(seed), store, wide))
    together = [jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for parts in zip(*blocks, strict=True)]
    first = jax.tree.map(lambda *leaves: np.stack(leaves), *map(one.init, seeds))
    found = jit(jax.vmap(one.decomposer.ingest))(first, *together)
    for position, state in enumerate(states):
        assert_close(jax.tree.map(lambda leaf, position=position: leaf[position], found), state)


@each_variant_with_rewards
def test_a_method_says_whether_its_rewards_look_at_the_number_of_their_span(name):
    one = subject(name)
    state = one.life(0)[0]
    other = PROBE._replace(episode_return=PROBE.episode_return - 7.0)
    assert differ(one.reward(state, PROBE), one.reward(state, other)) == one.decomposer.needs_return


# What r̂ may depend on


def other_step(episode_facts_only: bool = False) -> replay.Steps:
    """The probe in another episode, or also with other successors."""
    other = PROBE._replace(
        time=PROBE.time + 1,
        length=PROBE.length + 2,
        episode_return=PROBE.episode_return - 7.0,
        terminal=~PROBE.terminal,
    )
    return other if episode_facts_only else PROBE._replace(next_obs=PROBE.next_obs + 3.0)


@each_variant_with_rewards
def test_only_a_method_that_says_so_looks_at_the_next_observation(name):
    one = subject(name)
    state = one.life(0)[0]
    looks = differ(one.reward(state, PROBE), one.reward(state, other_step()))
    assert looks == one.decomposer.needs_next_obs


@each_variant_with_a_step_reward
def test_a_step_reward_that_was_fitted_depends_on_nothing_but_the_step(name):
    one = subject(name)
    state = one.life(0)[0]
    assert_equal(one.reward(state, PROBE), one.reward(state, other_step(episode_facts_only=True)))


@each_variant_with_a_step_reward
def test_steps_may_have_any_leading_shape(name):
    one = subject(name)
    state = one.life(0)[0]
    grid = jax.tree.map(lambda leaf: np.stack([leaf, leaf[::-1]]), PROBE)  # [2, T, …]
    flat = one.reward(state, PROBE)
    assert_close(jit(one.r_hat)(state, grid), np.stack([flat, flat[::-1]]))


@each_labelled_variant
def test_the_labels_of_an_episode_are_its_own_wherever_in_a_row_it_lies(name):
    one = subject(name)
    state = one.life(0)[0]
    episodes = random_episodes(42, (2, 3, 1, 3))
    alone = [
        # Cells after the last whole episode hold anything.
        np.asarray(one.reward(state, first_steps(steps_of(episode, *random_episodes(n, (3,))), HORIZON)))
        for n, episode in enumerate(episodes)
    ]
    row = jit(one.r_hat)(state, steps_of(*episodes))
    assert_close(row, np.concatenate([r[: e.length] for r, e in zip(alone, episodes, strict=True)]))


def first_steps(steps: replay.Steps, n: int) -> replay.Steps:
    return jax.tree.map(lambda leaf: leaf[:n], steps)


# Samples of its own


@each_sampling_variant
def test_what_a_method_samples_for_the_learner_are_stored_steps(name):
    one, episodes = subject(name), random_episodes(0)
    state, store = one.after(0, episodes)
    stored = steps_of(*episodes)
    for key in update_keys(3, 4):
        drawn = one.sample(state, store, key)
        assert drawn.time.shape == (8,)
        for position in range(8):
            step = jax.tree.map(lambda leaf, position=position: np.asarray(leaf)[position], drawn)
            [place] = np.flatnonzero((stored.obs == step.obs).all(axis=-1))
            assert_equal(step, jax.tree.map(lambda leaf, place=place: leaf[place], stored))


@each_sampling_variant
def test_a_method_samples_other_steps_with_another_key(name):
    one = subject(name)
    state, store = one.after(0, random_episodes(0))
    samples = [one.sample(state, store, key) for key in update_keys(5, 6)]
    assert sum(differ(samples[0], other) for other in samples[1:]) >= 4


# Numbers


CASES = {
    "constant returns": [episode._replace(episode_return=5.0) for episode in random_episodes(0)],
    "zero returns": [episode._replace(episode_return=0.0) for episode in random_episodes(0)],
    "episodes of one step": random_episodes(0, (1,) * 6),
    "a single episode of one step": random_episodes(0, (1,)),
    "constant observations": [episode._replace(obs=np.full_like(episode.obs, 1e3)) for episode in random_episodes(0)],
    "huge returns": [episode._replace(episode_return=1e6 * episode.episode_return) for episode in random_episodes(0)],
}


@each_variant
def test_state_scale_and_rewards_stay_finite_whatever_the_episodes(name):
    one = subject(name)
    for case, episodes in CASES.items():
        state, metrics, rewards = one.life(0, episodes=episodes)
        assert is_finite(state) and is_finite(metrics), case
        assert 0.0 < float(one.decomposer.scale(state)) < np.inf, case
        if not one.decomposer.is_hidden_reward:
            assert is_finite(rewards) and rewards.shape == (HORIZON,), case


@each_variant
def test_scale_and_rewards_are_finite_before_anything_was_seen(name):
    one = subject(name)
    assert 0.0 < float(one.decomposer.scale(one.init(0))) < np.inf
    if not one.decomposer.is_hidden_reward:
        assert is_finite(one.reward(one.init(0), PROBE))

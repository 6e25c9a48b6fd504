"""What every decomposer has to keep, whatever its method and settings."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest

from diaster import replay
from diaster.config import build_config, validate
from diaster.registry import METHODS, make_decomposer
from diaster.types import EnvSpec, Episode

# Compiling is what these tests spend their time on: hardly any optimisation is quicker in all.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

OBS, ACTIONS, HORIZON, CAPACITY = 3, 2, 3, 64
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), HORIZON)

SAMPLED = {"segment_length": 2, "segments_per_episode": 2}
UNIFORM = {"episode_draw": "uniform", "normalize_inputs": False}
VARIANTS = {
    "diaster": {"decomposer": SAMPLED},
    "diaster, to the letter": {"preset": "paper"},
    "diaster, differences": {"decomposer": {"head": "final", "reward_source": "difference", **UNIFORM, **SAMPLED}},
    "diaster, a budget of steps": {
        "decomposer": {"segments": "all", "batch_steps": 4, "n_cuts": 1, "terminal_target": "return"}
    },
}
each_variant = pytest.mark.parametrize("name", VARIANTS)

_random = np.random.default_rng(99)
PROBE = (
    _random.normal(size=(HORIZON, OBS)).astype(np.float32),
    _random.uniform(-1.0, 1.0, size=(HORIZON, ACTIONS)).astype(np.float32),
)


def config_of(name: str):
    variant = VARIANTS[name]
    small = {"hidden": 4, "batch_episodes": 3, "learning_rate": 1e-2}
    decomposer = small | variant.get("decomposer", {})
    config = build_config(variant.get("preset"), env="Made-up", method=name.split(",")[0], decomposer=decomposer)
    validate(config)
    return config


class Subject:
    """A decomposer and its programs, each compiled once for all tests."""

    def __init__(self, name: str) -> None:
        self.decomposer = make_decomposer(config_of(name), HORIZON)
        self.traces: dict[str, int] = {}
        self.ingest = self.compiled("ingest", self.decomposer.ingest)
        self.draw = self.compiled("draw", self.decomposer.draw)
        self.update = self.compiled("update", self.decomposer.update)
        self.reward = self.compiled("reward", self.r_hat)

    def compiled(self, name: str, function):
        self.traces[name] = 0

        def traced(*arguments):
            self.traces[name] += 1  # runs when JAX traces, not when the program runs
            return function(*arguments)

        return jit(traced)

    def init(self, seed: int):
        # Not compiled whole: all variants share its single operations.
        return self.decomposer.init(jax.random.key(seed), SPEC)

    def r_hat(self, state, obs, action):
        """What learning would use, in the environment's units: labels where there are, else the step reward."""
        if self.decomposer.label is None:
            return self.decomposer.reward(state, obs, action) * self.decomposer.scale(state)
        step = np.arange(HORIZON)[:, None]
        labels = self.decomposer.label(state, obs[:, None], action[:, None], step)[:, 0]
        return labels * self.decomposer.scale(state)

    def life(self, seed: int, n_updates: int = 3, episodes=None):
        """From nothing to a few updates: state, metrics of the last one, and r̂ of some steps."""
        block = block_of(random_episodes(seed) if episodes is None else episodes)
        state, store = self.ingest(self.init(seed), block), insert(empty_store(), block)
        for key in update_keys(seed, n_updates):
            state, metrics = self.update(state, self.draw(state, store, key))
        return jax.device_get((state, metrics, self.reward(state, *PROBE)))


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


def assert_close(one, other, tolerance: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), one, other)


def assert_equal(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def is_finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def differ(one, other) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in leaves)


def test_every_registered_method_is_under_this_contract():
    assert {name.split(",")[0] for name in VARIANTS} == set(METHODS)


@each_variant
def test_a_block_with_more_padding_gives_the_same_state_and_the_same_batches(name):
    one, episodes = subject(name), random_episodes(0)
    ingest = jit(one.decomposer.ingest)
    states, batches = [], []
    for n_rows in (32, 80):
        block = block_of(episodes, n_rows)
        states.append(ingest(one.init(0), block))
        batches.append(one.draw(states[-1], insert(empty_store(), block), jax.random.key(7)))
    assert_close(states[0], states[1])
    assert_close(batches[0], batches[1])


@each_variant
def test_two_seeds_in_one_program_equal_two_single_runs(name):
    one, seeds = subject(name), (0, 1)
    blocks = [block_of(random_episodes(seed)) for seed in seeds]

    def together(*parts):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)

    states = together(*(one.ingest(one.init(seed), block) for seed, block in zip(seeds, blocks, strict=True)))
    stores = together(*(insert(empty_store(), block) for block in blocks))
    draw, update = jit(jax.vmap(one.decomposer.draw)), jit(jax.vmap(one.decomposer.update))
    for keys in zip(*(update_keys(seed, 3) for seed in seeds), strict=True):
        states, metrics = update(states, draw(states, stores, jax.numpy.stack(keys)))
    for position, seed in enumerate(seeds):
        state, last = jax.tree.map(lambda leaf, position=position: leaf[position], (states, metrics))
        assert_close((state, last, one.reward(state, *PROBE)), one.life(seed))


@each_variant
def test_two_seeds_differ_from_the_start_and_draw_differently(name):
    one, episodes = subject(name), random_episodes(0)
    assert differ(one.life(0, episodes=episodes)[2], one.life(1, episodes=episodes)[2])
    state, store = one.ingest(one.init(0), block_of(episodes)), insert(empty_store(), block_of(episodes))
    batches = [one.draw(state, store, key) for key in update_keys(5, 6)]
    assert sum(differ(batches[0], other) for other in batches[1:]) >= 4


@each_variant
def test_the_same_seed_gives_the_same_numbers(name):
    assert_equal(subject(name).life(3), subject(name).life(3))


@each_variant
def test_an_update_changes_the_rewards(name):
    one = subject(name)
    assert differ(one.life(0, n_updates=1)[2], one.life(0, n_updates=3)[2])


@each_variant
def test_a_batch_does_not_depend_on_what_updates_change(name):
    one, block = subject(name), block_of(random_episodes(0))
    store = insert(empty_store(), block)
    before = one.ingest(one.init(0), block)
    after, _ = one.update(before, one.draw(before, store, jax.random.key(1)))
    assert differ(before, after)
    assert_equal(one.draw(before, store, jax.random.key(2)), one.draw(after, store, jax.random.key(2)))


@each_variant
def test_each_function_is_traced_once_for_a_shape(name):
    one = subject(name)  # the other tests use it with the same shapes
    block, more = block_of(random_episodes(0)), block_of(random_episodes(1, (2, 3)))
    state, store = one.init(0), insert(empty_store(), block)
    one.reward(state, *PROBE)
    one.draw(state, store, jax.random.key(0))
    for key in update_keys(0, 2):
        state = one.ingest(state, block)
        state, _ = one.update(state, one.draw(state, store, key))
        one.reward(state, *PROBE)
        state, store = one.ingest(state, more), insert(store, more)
    assert one.traces == {"ingest": 1, "draw": 1, "update": 1, "reward": 1}


CASES = {
    "constant returns": [episode._replace(episode_return=5.0) for episode in random_episodes(0)],
    "zero returns": [episode._replace(episode_return=0.0) for episode in random_episodes(0)],
    "episodes of one step": random_episodes(0, (1,) * 6),
    "a single episode of one step": random_episodes(0, (1,)),
    "constant observations": [episode._replace(obs=np.full_like(episode.obs, 1e3)) for episode in random_episodes(0)],
    "huge returns": [episode._replace(episode_return=1e6 * episode.episode_return) for episode in random_episodes(0)],
}


@each_variant
@pytest.mark.parametrize("case", CASES)
def test_state_and_rewards_stay_finite(name, case):
    one = subject(name)
    state, metrics, rewards = one.life(0, episodes=CASES[case])
    assert is_finite(state) and is_finite(metrics) and is_finite(rewards)
    assert rewards.shape == (HORIZON,)
    assert float(one.decomposer.scale(state)) > 0.0


@each_variant
def test_rewards_are_finite_before_anything_was_seen(name):
    one = subject(name)
    assert is_finite(one.reward(one.init(0), *PROBE))
    assert float(one.decomposer.scale(one.init(0))) > 0.0

"""Diaster against a plain implementation: one segment at a time, one step at a time, in NumPy.

Gradients of the plain implementation come from complex steps: the loss is analytic in the parameters, so
the imaginary part of loss(θ + iε e_k) is ε ∂loss/∂θ_k without any cancellation. No part of JAX is involved.
"""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_precision import float64
from jax import jit

from diaster.config import DiasterConfig
from diaster.decomposers import Decomposer, diaster, sub_trajectory
from diaster.nn import nets
from diaster.replay import rows as packing
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode

OBS, ACTIONS, HIDDEN = 2, 1, 4
INPUTS = OBS + ACTIONS
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), 5)
TINY = 1e-30

# Compiled whole, and each only once for a shape: compiling is what these tests spend their time on.
draw_segments = jit(packing.draw_segments, static_argnums=(2, 3, 4))
rows_of_segments = jit(packing.rows_of_segments, static_argnums=2)
pack_episodes = jit(packing.pack_episodes, static_argnums=(1, 2))
reward_differences = jit(sub_trajectory.reward_differences, static_argnums=1)
insert = jit(replay.insert)


def random_net(seed: int, scale: float = 1.0) -> sub_trajectory.SubReward:
    """R̂_sub with float64 parameters, on the host."""
    rng = np.random.default_rng(seed)
    sizes = ((INPUTS, 3 * HIDDEN), (HIDDEN, 3 * HIDDEN), (HIDDEN, 1))
    layers = [nets.Linear(rng.normal(size=size) * scale, rng.normal(size=size[1]) * scale) for size in sizes]
    return sub_trajectory.SubReward(nets.GRU(layers[0], layers[1]), layers[2])


# --- the plain implementation -------------------------------------------------------------------------------


def perturbed(net: sub_trajectory.SubReward) -> sub_trajectory.SubReward:
    """The net and, for each of its P parameters, a copy with that parameter moved by iε.  # [1 + P, …]"""
    leaves, structure = jax.tree.flatten(net)
    sizes = [np.size(leaf) for leaf in leaves]
    flat = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.complex128)
    moved = flat + 1j * TINY * np.concatenate([np.zeros((1, flat.size)), np.eye(flat.size)])
    parts = np.split(moved, np.cumsum(sizes)[:-1], axis=1)
    shaped = [part.reshape(-1, *np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def copies(net: sub_trajectory.SubReward) -> sub_trajectory.SubReward:
    """The net alone, in the same form.  # [1, …]"""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[None], net)


def gru_values(net: sub_trajectory.SubReward, segment):
    """w·h_t + b after every step of one segment, which begins with a zero state.  # [P, n]"""
    (w_in, b_in), (w_hidden, b_hidden) = net.cell
    w_out, b_out = net.head
    state = np.zeros((len(w_in), HIDDEN), w_in.dtype)
    values = []
    for x in segment:
        from_input = np.einsum("i,pij->pj", x, w_in) + b_in
        from_state = np.einsum("pi,pij->pj", state, w_hidden) + b_hidden
        reset = 1.0 / (1.0 + np.exp(-(from_input + from_state)[:, :HIDDEN]))
        update = 1.0 / (1.0 + np.exp(-(from_input + from_state)[:, HIDDEN : 2 * HIDDEN]))
        candidate = np.tanh(from_input[:, 2 * HIDDEN :] + reset * from_state[:, 2 * HIDDEN :])
        state = (1.0 - update) * candidate + update * state
        values.append(np.einsum("pi,pi->p", state, w_out[..., 0]) + b_out[:, 0])
    return np.stack(values, axis=-1)


def sub_reward(values, head: str):
    """R̂_sub of a segment from the values along it.  # [P]"""
    return values.sum(axis=-1) if head == "cumulative" else values[:, -1]


def plain_differences(values, head: str):
    """R̂_sub(τ_{0:t+1}) − R̂_sub(τ_{0:t}) inside one segment, R̂_sub(∅) = 0.  # [P, n]"""
    prefix = np.cumsum(values, axis=-1) if head == "cumulative" else values
    return np.diff(prefix, axis=-1, prepend=0.0)


def split(episode, flags) -> list[np.ndarray]:
    """An episode's segments, from the flags of their starts."""
    return np.split(episode, np.flatnonzero(flags[: len(episode)])[1:])


class PlainEpisode:
    """Σ_segments R̂_sub and the variance of the differences, from the values along every segment of an episode."""

    def __init__(self, segments: list[np.ndarray], head: str) -> None:
        self.total = sum(sub_reward(values, head) for values in segments)  # [P]
        self.difference = np.concatenate([plain_differences(values, head) for values in segments], axis=-1)
        mean = self.difference.mean(axis=-1, keepdims=True)
        self.variance = ((self.difference - mean) ** 2).mean(axis=-1)

    def loss(self, episode_return: float, loss: str, penalty: float):
        """(Σ_segments R̂_sub − R)², per step where asked, plus the variance.  # [P]"""
        error = self.total - episode_return
        if loss == "mean":
            error = error / self.difference.shape[1]
        return error**2 + penalty * self.variance


# --- packed rows with reset flags are nothing but segments ----------------------------------------------------

LENGTHS = (2, 7, 200, 1, 140, 5, 180)  # rows of 220: the first four, the next two, and one finds no place
COUNTED = 6
HORIZON, ROW = 200, 220


class Packed:
    """One batch of packed episodes, with its cuts, and its segments as the plain implementation sees them."""

    def __init__(self, n_cuts: int) -> None:
        rng = np.random.default_rng(n_cuts)
        self.net = random_net(seed=1, scale=0.6)
        self.episodes = [rng.normal(size=(length, INPUTS)) for length in LENGTHS]
        self.returns = rng.normal(size=len(LENGTHS)) * 3.0
        with float64():
            keys = jax.random.split(jax.random.key(n_cuts), len(LENGTHS))
            draw = jax.vmap(lambda key, length: packing.draw_cuts(key, length, n_cuts, HORIZON))
            flags = np.asarray(jit(draw)(keys, np.array(LENGTHS)))
            rows = jax.tree.map(np.asarray, pack_episodes(np.array(LENGTHS), 2, ROW))
        inputs = rng.normal(size=(ROW, 2, INPUTS)) * 3.0  # padding holds numbers that must not matter
        for time, row in zip(*np.nonzero(rows.valid), strict=True):
            inputs[time, row] = self.episodes[rows.episode[time, row]][rows.step[time, row]]
        self.batch = sub_trajectory.Batch(inputs, rows, flags[rows.episode, rows.step], self.returns, np.array(LENGTHS))
        self.segments = [split(self.episodes[e], flags[e]) for e in range(COUNTED)]
        moved = perturbed(self.net)
        values = [[gru_values(moved, part) for part in parts] for parts in self.segments]
        self.plain = {head: [PlainEpisode(parts, head) for parts in values] for head in ("cumulative", "final")}


packed = cache(Packed)


def loss_with(net, penalty, batch, config: DiasterConfig):
    """The loss with its penalty as an argument, so that one program serves several."""
    return sub_trajectory.sub_trajectory_loss(net, dataclasses.replace(config, variance_penalty=penalty), batch)


loss_of = jit(loss_with, static_argnums=3)
loss_and_gradient = jit(jax.value_and_grad(loss_with, has_aux=True), static_argnums=3)


def test_the_batch_under_test_packs_all_lengths_and_leaves_one_out():
    rows = packed(5).batch.rows
    np.testing.assert_array_equal(rows.counted, [True] * COUNTED + [False])
    assert set(rows.episode[rows.valid]) == set(range(COUNTED))
    assert (~rows.valid).sum() == 2 * ROW - sum(LENGTHS[:COUNTED])
    assert [len(parts) for parts in packed(0).segments] == [1] * COUNTED
    assert [len(parts) for parts in packed(5).segments] == [2, 6, 6, 1, 6, 5]
    assert [len(parts) for parts in packed(HORIZON - 1).segments] == list(LENGTHS[:COUNTED])
    assert sum(len(parts) for parts in packed(1).segments) > COUNTED


def reward_differences_alone(net, head, inputs, here):
    """Of one episode by itself, from its cells in the rows."""
    steps = np.asarray(inputs)[here]
    return plain_differences(gru_values(copies(net), steps), head)[0].real


@pytest.mark.parametrize("head", ["cumulative", "final"])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_the_packed_loss_and_its_gradient_equal_a_loop_over_every_segment_by_itself(head, loss):
    config = DiasterConfig(hidden=HIDDEN, head=head, segments="all", loss=loss)
    for n_cuts, penalty in product((0, 1, 5, HORIZON - 1), (0.0, 0.3)):
        case = packed(n_cuts)
        with float64():
            (value, difference), gradient = loss_and_gradient(case.net, penalty, case.batch, config)
            cut = reward_differences(case.net, head, case.batch.inputs, case.batch.start)
        value, difference, cut = np.asarray(value), np.asarray(difference), np.asarray(cut)
        gradient = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
        plain = case.plain[head]
        expected = np.mean([e.loss(r, loss, penalty) for e, r in zip(plain, case.returns, strict=False)], axis=0)
        assert value.dtype == gradient.dtype == np.float64
        np.testing.assert_allclose(value, expected[0].real, rtol=1e-9)
        slope = expected[1:].imag / TINY
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-9 * np.abs(slope).max())
        rows = case.batch.rows
        for number, episode in enumerate(plain):
            # Time runs along the first axis, and an episode lies in one row: the mask keeps the order.
            here = rows.valid & (rows.episode == number)
            np.testing.assert_allclose(cut[here], episode.difference[0].real, atol=1e-9)
            # What the step reward is to follow are the differences of the whole episode.
            whole = reward_differences_alone(case.net, head, case.batch.inputs, here)
            np.testing.assert_allclose(difference[here], whole, atol=1e-9)


# --- differences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["cumulative", "final"])
def test_differences_telescope_to_the_reward_of_every_prefix_and_of_the_whole_episode(head):
    net, inputs = random_net(2), np.random.default_rng(2).normal(size=(6, 3, INPUTS))
    start = np.tile(np.arange(6)[:, None] == 0, (1, 3))
    with float64():
        difference = np.asarray(reward_differences(net, head, inputs, start))
    for row in range(3):
        values = gru_values(copies(net), inputs[:, row])
        prefixes = [sub_reward(values[:, : t + 1], head)[0] for t in range(6)]
        np.testing.assert_allclose(np.cumsum(difference[:, row]), prefixes, atol=1e-12)
    whole = difference.sum(axis=0)
    last = [gru_values(copies(net), inputs[:, row])[0] for row in range(3)]
    expected = [v.sum() for v in last] if head == "cumulative" else [v[-1] for v in last]
    np.testing.assert_allclose(whole, expected, atol=1e-12)


def test_cut_everywhere_the_cumulative_head_is_a_net_that_sees_single_steps():
    horizon, net = 6, random_net(3)
    inputs = np.random.default_rng(3).normal(size=(horizon, 2, INPUTS))
    with float64():
        flags = [packing.draw_cuts(jax.random.key(k), jnp.array(horizon), horizon - 1, horizon) for k in range(2)]
        cut = reward_differences(net, "cumulative", inputs, np.stack(flags, axis=1))
        alone = reward_differences(net, "cumulative", inputs.reshape(1, -1, INPUTS), np.ones((1, 2 * horizon), bool))
        uncut = reward_differences(net, "cumulative", inputs, np.zeros((horizon, 2), bool))
    np.testing.assert_allclose(np.ravel(cut), np.ravel(alone), atol=1e-12)
    plain = [gru_values(copies(net), step[None])[0, 0] for step in inputs.reshape(-1, INPUTS)]
    np.testing.assert_allclose(np.ravel(cut), plain, atol=1e-12)
    assert np.abs(np.asarray(uncut - cut))[1:].min() > 1e-6  # without cuts it sees more than that


# --- sampled segments -----------------------------------------------------------------------------------------


def sampled_batch(episode, episode_return, segment_length: int, n_segments: int, horizon: int, key):
    """What an update sees of one episode, and the segments' bounds."""
    bounds = draw_segments(key, np.int32(len(episode)), segment_length, n_segments, horizon)
    first, end = (np.asarray(x)[None] for x in bounds)
    rows = jax.tree.map(np.asarray, rows_of_segments(first, end, segment_length))
    start = np.tile(np.arange(segment_length)[:, None] == 0, (1, n_segments))
    batch = sub_trajectory.Batch(
        episode[rows.step], rows, start, np.array([episode_return]), np.array([len(episode)], np.int32)
    )
    return batch, first[0], end[0]


def test_all_segments_sampled_give_the_loss_of_the_whole_episode_over_the_square_of_its_length():
    horizon, net, rng = 9, random_net(4), np.random.default_rng(4)
    mean = DiasterConfig(hidden=HIDDEN, segments="sampled", loss="mean")
    total = DiasterConfig(hidden=HIDDEN, segments="all", loss="sum")
    for length in (1, 3, 6, 9):
        episode, episode_return = rng.normal(size=(length, INPUTS)), 7.0
        with float64():
            batch, first, end = sampled_batch(episode, episode_return, 3, 5, horizon, jax.random.key(length))
            assert (end - first).sum() == length
            flags = np.zeros(horizon, bool)
            flags[first[first < end]] = True
            rows = jax.tree.map(np.asarray, pack_episodes(np.array([length]), 1, horizon))
            whole = sub_trajectory.Batch(
                episode[rows.step], rows, flags[rows.step], np.array([episode_return]), np.array([length])
            )
            sampled, _ = loss_of(net, 0.0, batch, mean)
            full, _ = loss_of(net, 0.0, whole, total)
        assert float(sampled) == pytest.approx(float(full) / length**2, rel=1e-10)
        plain = PlainEpisode([gru_values(copies(net), part) for part in split(episode, flags)], "cumulative")
        assert float(full) == pytest.approx(plain.loss(episode_return, "sum", 0.0)[0], rel=1e-10)


@pytest.mark.parametrize("penalty", [0.0, 0.25])
def test_segments_of_one_step_give_the_loss_of_randomized_return_decomposition(penalty):
    n_drawn, horizon, net, rng = 6, 20, random_net(5), np.random.default_rng(5)
    config = DiasterConfig(hidden=HIDDEN, segment_length=1, segments_per_episode=n_drawn)
    for length in (1, 4, 20):
        episode, episode_return = rng.normal(size=(length, INPUTS)), -5.0
        with float64():
            batch, first, end = sampled_batch(episode, episode_return, 1, n_drawn, horizon, jax.random.key(7))
            loss, _ = loss_of(net, penalty, batch, config)
        drawn = first[first < end]
        assert len(set(drawn)) == len(drawn) == min(n_drawn, length)
        f = np.array([gru_values(copies(net), episode[step : step + 1])[0, 0] for step in drawn])
        expected = (f.mean() - episode_return / length) ** 2 + penalty * f.var()
        assert float(loss) == pytest.approx(expected, rel=1e-9)


def test_the_step_loss_is_the_mean_over_all_steps_of_the_batch_and_no_padding():
    step_net = (nets.Linear(jnp.array([[1.0], [2.0], [0.0]]), jnp.array([0.5])),)
    inputs = jnp.zeros((2, 2, INPUTS)).at[:, :, 0].set(jnp.array([[1.0, 2.0], [3.0, 100.0]]))
    rows = packing.Rows(
        jnp.array([[0, 1], [0, 1]]),
        jnp.array([[0, 0], [1, 0]]),
        jnp.array([[True, True], [True, False]]),
        jnp.ones(2, bool),
    )
    batch = sub_trajectory.Batch(inputs, rows, rows.step == 0, jnp.zeros(2), jnp.array([2, 1]))
    target = jnp.array([[1.0, 1.0], [1.0, -999.0]])
    # r̂ = 1.5, 2.5 and 3.5 against 1: (0.25 + 2.25 + 6.25) / 3
    assert float(diaster.step_loss(step_net, batch, target)) == pytest.approx(8.75 / 3)


# --- what it has seen -----------------------------------------------------------------------------------------------


def make(**settings):
    settings = {"hidden": HIDDEN, "learning_rate": 1e-2} | settings
    return diaster.make_diaster(DiasterConfig(**{"base": "none", **settings}), SPEC.horizon)


@pytest.fixture(scope="module")
def fresh():
    """Diaster before it has seen anything; no setting of the tests below changes that state."""
    return jit(make().init, static_argnums=1)(jax.random.key(0), _Hashable(SPEC))


class _Hashable:
    """EnvSpec holds arrays; jit wants static arguments it can hash."""

    def __init__(self, spec: EnvSpec) -> None:
        self.obs_dim, self.action_dim = spec.obs_dim, spec.action_dim


def random_episodes(seed: int, n: int, offset=(3.0, -100.0), spread=(0.01, 5.0)) -> list[Episode]:
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        length = int(rng.integers(1, SPEC.horizon + 1))
        obs = offset + spread * rng.normal(size=(length + 1, OBS))
        action = rng.uniform(-1.0, 1.0, size=(length, ACTIONS))
        episodes.append(
            Episode(
                obs.astype(np.float32), action.astype(np.float32), float(rng.normal() * 20.0), bool(rng.integers(2))
            )
        )
    return episodes


def block_of(episodes: list[Episode], n_rows: int = 128, n_episodes: int = 64) -> replay.EpisodeBlock:
    return replay.make_block(episodes, n_rows, n_episodes, OBS, ACTIONS)


ingest = jit(make().ingest)


def after(state, episodes: list[Episode]):
    block = block_of(episodes)
    return ingest(state, insert(replay.init_store(256, OBS, ACTIONS), block), block)


def steps_of(obs, action, time=0) -> replay.Steps:
    """Steps as a step reward may see them: of their episode only the time is known, the rest is nonsense."""
    nonsense = np.full(np.shape(obs)[:-1], np.nan, np.float32)
    time = np.broadcast_to(np.asarray(time, np.int32), nonsense.shape)
    return replay.Steps(obs, action, np.full_like(obs, np.nan), nonsense > 0, time, nonsense, nonsense)


def test_the_scale_is_the_setting_or_the_one_of_the_returns_taken_in(fresh):
    episodes = random_episodes(1, 12)
    state = after(fresh, episodes)
    lengths = np.array([episode.length for episode in episodes])
    rates = np.array([episode.episode_return for episode in episodes]) / lengths
    expected = 5.0 * np.sqrt(np.average(rates**2, weights=lengths))
    assert float(make(return_scale="auto").scale(state)) == pytest.approx(expected, rel=1e-5)
    assert float(make(return_scale=7.0).scale(state)) == 7.0


def normalised(episodes: list[Episode], obs):
    """What the nets see, by hand."""
    rows = np.concatenate([episode.obs for episode in episodes]).astype(np.float64)
    return np.clip((obs - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-8), -10.0, 10.0)


def plain_mlp(layers, x):
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ np.asarray(weight) + np.asarray(bias), 0.0)
    return x @ np.asarray(layers[-1].weight) + np.asarray(layers[-1].bias)


@pytest.mark.parametrize("normalize", [True, False])
def test_the_step_reward_sees_normalised_and_clipped_observations_and_plain_actions(fresh, normalize):
    episodes = random_episodes(3, 8)
    state = after(fresh, episodes)
    obs = np.concatenate([episodes[0].obs, [[1e6, -1e6]]]).astype(np.float32)
    action = np.linspace(-1.0, 1.0, len(obs), dtype=np.float32)[:, None]
    seen = normalised(episodes, obs) if normalize else obs
    expected = plain_mlp(state.mean_step_reward, np.concatenate([seen, action], axis=-1))[:, 0]
    reward = jit(make(normalize_inputs=normalize).reward)(state, steps_of(obs, action))
    np.testing.assert_allclose(reward, expected, rtol=1e-3, atol=1e-3)
    if normalize:
        np.testing.assert_array_equal(seen[-1], [10.0, -10.0])


# --- batches --------------------------------------------------------------------------------------------------


def numbered_episodes(lengths) -> list[Episode]:
    """Observation and action carry the numbers of their episode and step, the return that of the episode."""
    episodes = []
    for number, length in enumerate(lengths):
        code = 100.0 * number + np.arange(length + 1, dtype=np.float32)
        obs = np.stack([code, -code], axis=-1)
        episodes.append(Episode(obs, 0.5 + code[:-1, None], 1000.0 + number, False))
    return episodes


@pytest.mark.parametrize("segments", ["sampled", "all"])
def test_a_batch_holds_the_steps_its_rows_name_and_the_return_of_their_episode(fresh, segments):
    shape = {"segment_length": 2, "segments_per_episode": 2} if segments == "sampled" else {"n_cuts": 2}
    decomposer = make(segments=segments, normalize_inputs=False, return_scale=4.0, batch_episodes=3, **shape)
    lengths = (5, 1, 2, 4, 3)
    store = store_of(numbered_episodes(lengths))
    draw, seen = jit(decomposer.draw), set()
    for seed in range(20):
        batch = jax.device_get(draw(fresh, store, jax.random.key(seed)))
        rows = batch.rows
        drawn = (batch.target * 4.0 - 1000.0).astype(int)  # [B] which episodes these are
        np.testing.assert_array_equal(batch.length, np.array(lengths)[drawn])
        assert rows.counted.all()
        code = 100.0 * drawn[rows.episode] + rows.step
        expected = np.stack([code, -code, code + 0.5], axis=-1)
        np.testing.assert_array_equal(batch.inputs[rows.valid], expected[rows.valid])
        assert (rows.step < batch.length[rows.episode])[rows.valid].all()
        n_starts = np.bincount(rows.episode[rows.valid & batch.start], minlength=3)
        if segments == "all":
            np.testing.assert_array_equal(np.bincount(rows.episode[rows.valid], minlength=3), batch.length)
            np.testing.assert_array_equal(n_starts, np.minimum(2, batch.length - 1) + 1)
            assert batch.start[rows.valid & (rows.step == 0)].all()
        else:
            assert batch.inputs.shape == (2, 3 * 2, INPUTS)
            np.testing.assert_array_equal(np.nonzero(batch.start)[0], 0)  # each row is one segment
            assert (n_starts >= 1).all() and (n_starts <= 2).all()
        seen |= set(drawn.tolist())
    assert seen == set(range(5))


# --- updates --------------------------------------------------------------------------------------------------


def store_of(episodes: list[Episode]) -> replay.EpisodeStore:
    return insert(replay.init_store(256, OBS, ACTIONS), block_of(episodes))


def seen_by_nets(episodes: list[Episode], episode: Episode):
    return np.concatenate([normalised(episodes, episode.obs[:-1]), episode.action], axis=-1)


def draw_and_update(decomposer: Decomposer):
    """A fresh batch and one gradient step on it, compiled apart."""
    draw, update = jit(decomposer.draw), jit(decomposer.update)
    return lambda state, store, key: update(state, draw(state, store, key))


RETURN = 30.0
ONE = [episode._replace(episode_return=RETURN) for episode in random_episodes(9, 20) if episode.length == 4][:1]

# With as many cuts as there are places, an update has nothing random about it.
WHOLE = {
    "paper's head": {"head": "final", "terminal_target": "model"},
    "published code's target": {"head": "cumulative", "terminal_target": "return"},
}


@cache
def whole(name: str):
    """A decomposer of whole episodes and its updates."""
    shape = {"segments": "all", "n_cuts": SPEC.horizon - 1, "batch_episodes": 2}
    decomposer = make(loss="sum", variance_penalty=0.0, **shape, **WHOLE[name])
    return decomposer, draw_and_update(decomposer)


@pytest.mark.parametrize("name", WHOLE)
def test_an_update_fits_the_stored_episode_normalised_and_scaled(fresh, name):
    decomposer, update = whole(name)
    state, store = after(fresh, ONE), store_of(ONE)
    new, metrics = update(state, store, jax.random.key(1))
    single = [gru_values(copies(state.sub_reward), step[None])[0, 0] for step in seen_by_nets(ONE, ONE[0])]
    expected = (sum(single) - RETURN / float(decomposer.scale(state))) ** 2
    assert float(metrics["sub_loss"]) == pytest.approx(expected, rel=1e-3)
    for _ in range(40):
        new, later = update(new, store, jax.random.key(1))
    assert float(later["sub_loss"]) < 0.5 * expected


@cache
def sampled():
    """The default's way of sampling, on one short episode at a time, with room for all of its segments."""
    decomposer = make(segment_length=3, segments_per_episode=4, batch_episodes=1)
    return decomposer, draw_and_update(decomposer)


def test_an_update_on_sampled_segments_sees_one_of_the_grids_of_the_stored_episode(fresh):
    decomposer, update = sampled()
    penalty = DiasterConfig().variance_penalty
    assert penalty > 0.0
    state = after(fresh, ONE)
    inputs, length, scale = seen_by_nets(ONE, ONE[0]), ONE[0].length, float(decomposer.scale(state))
    expected = []
    for phase in range(1, 4):
        parts = np.split(inputs, range(phase, length, 3))
        plain = PlainEpisode([gru_values(copies(state.sub_reward), part) for part in parts], "cumulative")
        expected.append(plain.loss(RETURN / scale, "mean", penalty)[0])
    assert len({round(loss, 4) for loss in expected}) == 3
    store = store_of(ONE)
    losses = [float(update(state, store, jax.random.key(seed))[1]["sub_loss"]) for seed in range(30)]
    nearest = [int(np.argmin(np.abs(np.array(expected) - loss))) for loss in losses]
    np.testing.assert_allclose(losses, np.array(expected)[nearest], rtol=1e-3)
    assert set(nearest) == {0, 1, 2}


@pytest.mark.parametrize(("n_episodes", "share"), [(1, 1.0), (4, 1.0), (16, 0.25)])
def test_a_penalty_that_fades_is_whole_for_some_episodes_and_then_falls_with_their_number(n_episodes, share):
    decomposer = make(penalty_episodes=4)
    store = store_of(ONE)._replace(newest=jnp.int32(n_episodes))  # as if others had been stored and dropped before it
    store = store._replace(
        **{
            name: jnp.broadcast_to(getattr(store, name)[:1], getattr(store, name).shape)
            for name in ("first_row", "first_step", "length", "episode_return", "terminated")
        }
    )
    batch = decomposer.draw(after(decomposer.init(jax.random.key(0), SPEC), ONE), store, jax.random.key(0))
    assert float(batch.penalty_share) == pytest.approx(share)
    config, net = DiasterConfig(variance_penalty=2.0), decomposer.init(jax.random.key(1), SPEC).sub_reward
    whole, none, faded = (
        float(sub_trajectory.sub_trajectory_loss(net, dataclasses.replace(config, variance_penalty=penalty), given)[0])
        for penalty, given in ((2.0, batch._replace(penalty_share=None)), (0.0, batch), (2.0, batch))
    )
    assert whole > none
    assert faded - none == pytest.approx(share * (whole - none), rel=1e-3)


def mean_target(update, state, store):
    """Mean of the step reward's targets, and of their squares, from the losses of two constant step rewards."""
    losses = []
    for constant in (0.0, 1.0):
        zeros = jax.tree.map(np.zeros_like, state.step_reward)
        flat = (*zeros[:-1], zeros[-1]._replace(bias=np.full((1,), constant, np.float32)))
        new, metrics = update(state._replace(step_reward=flat), store, jax.random.key(3))
        losses.append(float(metrics["step_loss"]))
    # mean (0 − d)² and mean (1 − d)²
    return (1.0 + losses[0] - losses[1]) / 2.0, losses[0], new


@pytest.mark.parametrize("name", WHOLE)
def test_targets_are_uncut_differences_and_sum_to_the_return_where_it_replaces_the_models_total(fresh, name):
    decomposer, update = whole(name)
    head, terminal_target = WHOLE[name]["head"], WHOLE[name]["terminal_target"]
    state = after(fresh, ONE)
    mean, mean_square, new = mean_target(update, state, store_of(ONE))
    length, scaled_return = ONE[0].length, RETURN / float(decomposer.scale(state))
    # The targets are those of the net before its own step, without cuts.
    assert not np.array_equal(new.sub_reward.cell.hidden.bias, state.sub_reward.cell.hidden.bias)
    difference = plain_differences(gru_values(copies(state.sub_reward), seen_by_nets(ONE, ONE[0])), head)[0]
    gap = scaled_return - difference.sum()
    assert abs(gap) > 0.1
    if terminal_target == "return":
        difference[-1] += gap
        assert mean * length == pytest.approx(scaled_return, rel=1e-3)
    assert mean * length == pytest.approx(difference.sum(), rel=1e-3, abs=1e-3)
    assert mean_square == pytest.approx((difference**2).mean(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("averaging", [0.0, 0.1])
def test_the_step_reward_is_the_running_average_of_the_net_that_is_fitted(fresh, averaging):
    decomposer = make(averaging=averaging, segment_length=1, segments_per_episode=2, batch_episodes=1)
    update = draw_and_update(decomposer)
    state, store = after(fresh, ONE), store_of(ONE)
    mean = jax.tree.map(np.asarray, state.mean_step_reward)
    for number in range(4):
        state, _ = update(state, store, jax.random.key(number))
        # Over all nets so far at first, so that the start is forgotten: 0, 1/11, 2/12 …, and never more than asked for.
        keep = min(averaging, number / (number + 10.0))
        mean = jax.tree.map(lambda slow, fast: keep * slow + (1.0 - keep) * fast, mean, state.step_reward)  # noqa: B023
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), state.mean_step_reward, mean)
    same = np.array_equal(state.mean_step_reward[0].weight, state.step_reward[0].weight)
    assert same == (averaging == 0.0)


def test_the_learner_is_told_the_average_and_not_the_net_that_is_fitted(fresh):
    state = after(fresh, ONE)
    steps, reward = steps_of(ONE[0].obs[:-1], ONE[0].action), jit(make().reward)
    before = reward(state, steps)
    moved = jax.tree.map(lambda leaf: leaf + 1.0, state.step_reward)
    np.testing.assert_array_equal(reward(state._replace(step_reward=moved), steps), before)
    assert not np.allclose(reward(state._replace(mean_step_reward=moved), steps), before)


def test_with_differences_as_reward_the_step_reward_is_not_trained(fresh):
    decomposer = make(reward_source="difference", segment_length=1, segments_per_episode=2, batch_episodes=1)
    state = after(fresh, ONE)
    new, metrics = draw_and_update(decomposer)(state, store_of(ONE), jax.random.key(0))
    assert set(metrics) == {"sub_loss"}
    jax.tree.map(np.testing.assert_array_equal, new.step_reward, state.step_reward)
    jax.tree.map(np.testing.assert_array_equal, new.mean_step_reward, state.mean_step_reward)
    assert not np.array_equal(new.sub_reward.head.weight, state.sub_reward.head.weight)


# --- labels ---------------------------------------------------------------------------------------------------


def end_to_end(episodes: list[Episode]) -> replay.Steps:
    """One row of whole episodes.  # [T, 1, …]"""
    obs = np.concatenate([episode.obs[:-1] for episode in episodes])[:, None]
    action = np.concatenate([episode.action for episode in episodes])[:, None]
    time = np.concatenate([np.arange(episode.length) for episode in episodes])[:, None]
    return steps_of(obs, action, time)


@pytest.mark.parametrize("head", ["cumulative", "final"])
def test_labels_are_the_differences_from_the_first_step_of_each_episode(fresh, head):
    episodes = random_episodes(4, 6)
    state = after(fresh, episodes)
    decomposer = make(reward_source="difference", segments="all", head=head)
    labels = jit(decomposer.label)(state, end_to_end(episodes))
    net = copies(state.sub_reward)
    plain = [plain_differences(gru_values(net, seen_by_nets(episodes, e)), head)[0] for e in episodes]
    np.testing.assert_allclose(np.asarray(labels)[:, 0], np.concatenate(plain), atol=2e-4)


def test_labels_of_a_net_trained_on_short_segments_are_differences_inside_such_segments(fresh):
    episodes = random_episodes(5, 6)
    state = after(fresh, episodes)
    decomposer = make(reward_source="difference", segments="sampled", segment_length=2)
    labels = jit(decomposer.label)(state, end_to_end(episodes))
    net, plain = copies(state.sub_reward), []
    for episode in episodes:
        parts = np.split(seen_by_nets(episodes, episode), range(2, episode.length, 2))
        plain += [plain_differences(gru_values(net, part), "cumulative")[0] for part in parts]
    np.testing.assert_allclose(np.asarray(labels)[:, 0], np.concatenate(plain), atol=2e-4)


def test_only_differences_as_reward_need_labels():
    assert make(reward_source="difference").label is not None
    assert make(reward_source="step_reward").label is None


# --- it learns ------------------------------------------------------------------------------------------------


def test_sampled_segments_find_the_hidden_reward_of_made_up_episodes(fresh):
    episodes, rewards = [], []
    for episode in random_episodes(6, 30, offset=(0.0, 0.0), spread=(1.0, 1.0)):
        reward = episode.obs[:-1, 0] - 2.0 * episode.action[:, 0]
        episodes.append(episode._replace(episode_return=float(reward.sum())))
        rewards.append(reward)
    decomposer, update = sampled()
    state, store = after(fresh, episodes), store_of(episodes)
    losses = []
    for key in jax.random.split(jax.random.key(0), 1000):
        state, metrics = update(state, store, key)
        losses.append(metrics["sub_loss"])
    losses = np.array(jax.device_get(losses))
    assert losses[-200:].mean() < 0.2 * losses[:100].mean()
    obs = np.concatenate([episode.obs[:-1] for episode in episodes])
    action = np.concatenate([episode.action for episode in episodes])
    found = np.asarray(jit(decomposer.reward)(state, steps_of(obs, action)))
    assert np.corrcoef(found, np.concatenate(rewards))[0, 1] > 0.9

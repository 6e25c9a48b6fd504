"""RUDDER against a plain implementation, one episode and one step at a time, and its sums, episode by episode.

Gradients of the plain implementation come from complex steps, as in test_diaster.py.
"""

from __future__ import annotations

import contextlib
from functools import cache
from itertools import pairwise

import jax
import numpy as np
import pytest
from double_precision import float64
from jax import jit

from diaster.agents.sac import make_sac
from diaster.config import RudderConfig, SacConfig
from diaster.decomposers import rudder
from diaster.learning.learner import Learner
from diaster.learning.reward_model import RewardModel
from diaster.nn import nets
from diaster.replay import rows as packing
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode, EvaluationEpisode

OBS, ACTIONS, HIDDEN, HORIZON = 2, 1, 4, 6
INPUTS, UNIT = OBS + ACTIONS, 1.7
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
TINY = 1e-30

insert = jit(replay.insert)
pack_episodes = jit(packing.pack_episodes, static_argnums=(1, 2))
loss_and_gradient = jit(jax.value_and_grad(rudder.return_loss, has_aux=True))
redistribute = jit(rudder.redistribute)
predict_return = jit(rudder.predict_return)
predict_before = jit(rudder.predict_before)


def random_net(seed: int) -> rudder.ReturnNet:
    """g with float64 parameters, on the host."""
    rng = np.random.default_rng(seed)
    sizes = ((INPUTS, 4 * HIDDEN), (HIDDEN, 4 * HIDDEN), (HIDDEN, 1))
    layers = [nets.Linear(rng.normal(size=size), rng.normal(size=size[1])) for size in sizes]
    return rudder.ReturnNet(nets.LSTM(layers[0], layers[1]), layers[2])


# --- the plain implementation -------------------------------------------------------------------------------


def perturbed(net: rudder.ReturnNet) -> rudder.ReturnNet:
    """The net and, for each of its P parameters, a copy with that parameter moved by iε.  # [1 + P, …]"""
    leaves, structure = jax.tree.flatten(net)
    flat = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.complex128)
    moved = flat + 1j * TINY * np.concatenate([np.zeros((1, flat.size)), np.eye(flat.size)])
    parts = np.split(moved, np.cumsum([np.size(leaf) for leaf in leaves])[:-1], axis=1)
    shaped = [part.reshape(-1, *np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def alone(net: rudder.ReturnNet) -> rudder.ReturnNet:
    """The net alone, in the same form.  # [1, …]"""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[None], net)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def plain_predictions(net: rudder.ReturnNet, episode, unit: float = UNIT):
    """g_{−1} before any step of one episode, and g_t after each.  # [P, 1 + L]"""
    (w_in, b_in), (w_hidden, b_hidden) = net.cell
    w_out, b_out = net.head
    state = memory = np.zeros((len(w_in), HIDDEN), w_in.dtype)
    predictions = [unit * b_out[:, 0]]
    for x in episode:
        gates = np.einsum("i,pij->pj", x, w_in) + b_in + np.einsum("pi,pij->pj", state, w_hidden) + b_hidden
        admit, forget, candidate, output = np.split(gates, 4, axis=-1)
        memory = sigmoid(forget) * memory + sigmoid(admit) * np.tanh(candidate)
        state = sigmoid(output) * np.tanh(memory)
        predictions.append(unit * (np.einsum("pi,pi->p", state, w_out[..., 0]) + b_out[:, 0]))
    return np.stack(predictions, axis=-1)


def plain_loss(predictions, episode_return: float, weight: float):
    """(g_last − R)² + λ · mean_t (g_t − R)²  # [P]"""
    error = predictions - episode_return
    return error[:, -1] ** 2 + weight * (error**2).mean(axis=-1)


def plain_rewards(predictions, episode_return: float):
    """g_t − g_{t−1} and the residual, one step at a time."""
    residual = (episode_return - (predictions[-1] - predictions[0])) / (len(predictions) - 1)
    return np.array([g - before + residual for before, g in pairwise(predictions)])


# --- the loss -------------------------------------------------------------------------------------------------

LENGTHS = (3, 1, 6, 2, 4, 1)


def packed_batch(seed: int) -> tuple[rudder.Batch, list[np.ndarray]]:
    """Six episodes in rows of six steps, padding included, and the same episodes by themselves."""
    rng = np.random.default_rng(seed)
    episodes = [rng.normal(size=(length, INPUTS)) for length in LENGTHS]
    rows = jax.tree.map(np.asarray, pack_episodes(np.array(LENGTHS), len(LENGTHS), HORIZON))
    inputs = rng.normal(size=(*rows.step.shape, INPUTS)) * 3.0  # padding holds numbers that must not matter
    for time, row in zip(*np.nonzero(rows.valid), strict=True):
        inputs[time, row] = episodes[rows.episode[time, row]][rows.step[time, row]]
    return rudder.Batch(inputs, rows, rng.normal(size=len(LENGTHS)) * 3.0, np.array(LENGTHS)), episodes


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_packed_loss_and_its_gradient_equal_a_loop_over_every_episode_by_itself(weight):
    net = random_net(1)
    with float64():
        batch, episodes = packed_batch(0)
        (value, metrics), gradient = loss_and_gradient(net, UNIT, weight, batch)
    assert batch.rows.counted.all() and not batch.rows.valid.all()
    predictions = [plain_predictions(perturbed(net), episode) for episode in episodes]
    pairs = list(zip(predictions, batch.target, strict=True))
    expected = np.mean([plain_loss(p, r, weight) for p, r in pairs], axis=0)
    assert np.asarray(value).dtype == np.float64
    np.testing.assert_allclose(value, expected[0].real, rtol=1e-10)
    gradient = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    slope = expected[1:].imag / TINY
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-9 * np.abs(slope).max())
    last, every = (np.mean([plain_loss(p, r, w)[0].real for p, r in pairs]) for w in (0.0, 1.0))
    np.testing.assert_allclose(metrics["return_loss"], last, rtol=1e-10)
    np.testing.assert_allclose(metrics["auxiliary_loss"], every - last, rtol=1e-9)


def test_the_auxiliary_loss_is_the_mean_of_squares_and_not_the_square_of_the_mean():
    net, rng = random_net(2), np.random.default_rng(2)
    episode = rng.normal(size=(HORIZON, INPUTS))
    predictions = plain_predictions(alone(net), episode)[0]
    with float64():
        rows = pack_episodes(np.array([HORIZON]), 1, HORIZON)
        # The mean error is 0, and its square with it.
        batch = rudder.Batch(episode[:, None], rows, np.array([predictions.mean()]), np.array([HORIZON]))
        (_, metrics), _ = loss_and_gradient(net, UNIT, 0.5, batch)
    assert float(metrics["auxiliary_loss"]) == pytest.approx(predictions.var(), rel=1e-9)
    assert predictions.var() > 0.1


# --- rewards --------------------------------------------------------------------------------------------------


def rows_of(episodes: list[tuple[np.ndarray, float]], n_rows: int = 2 * HORIZON, seed: int = 0):
    """Episodes end to end in a row of two horizons, and anything after them.

    Returns inputs, time, length and return  # [T, 1, …]
    """
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n_rows, 1, INPUTS))
    time, length = rng.integers(0, HORIZON, size=(2, n_rows, 1))
    episode_return = rng.normal(size=(n_rows, 1))
    place = 0
    for steps, total in episodes:
        cells = slice(place, place + len(steps))
        inputs[cells, 0], time[cells, 0] = steps, np.arange(len(steps))
        length[cells], episode_return[cells] = len(steps), total
        place += len(steps)
    return inputs, time, np.maximum(length, 1), episode_return


def random_row(seed: int, lengths) -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(length, INPUTS)), float(rng.normal() * 10.0)) for length in lengths]


ROWS = [(6, 6), (1, 1, 1, 1, 1, 1), (1, 6, 2, 1), (5, 6), (4,), (1,)]


@pytest.mark.parametrize("lengths", ROWS)
@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_the_rewards_of_each_episode_are_its_differences_and_sum_to_its_return(lengths, precision):
    net, episodes = random_net(3), random_row(3, lengths)
    with float64() if precision == np.float64 else contextlib.nullcontext():
        inputs, time, length, total = (np.asarray(a) for a in rows_of(episodes))
        inputs, total = inputs.astype(precision), total.astype(precision)
        net = jax.tree.map(lambda leaf: leaf.astype(precision), net)
        prediction, at_first = predict_return(net, UNIT, inputs, time == 0), predict_before(net, UNIT)
        rewards = redistribute(prediction, at_first, time, length, total)
    assert np.asarray(rewards).dtype == precision
    rewards, place = np.asarray(rewards, np.float64)[:, 0], 0
    bound = 1e-9 if precision == np.float64 else 1e-5
    for steps, episode_return in episodes:
        found = rewards[place : place + len(steps)]
        predictions = plain_predictions(alone(net), steps)[0]
        np.testing.assert_allclose(found, plain_rewards(predictions, episode_return), atol=bound)
        assert found.sum() == pytest.approx(episode_return, abs=bound)
        place += len(steps)
    assert np.isfinite(rewards).all()


def test_sums_are_exact_however_wrong_the_net_is_and_however_long_the_episode():
    rng, length = np.random.default_rng(4), 1000
    prediction = (rng.normal(size=(length, 1)).cumsum(axis=0) * 5.0).astype(np.float32)
    time = np.arange(length, dtype=np.int32)[:, None]
    rewards = redistribute(prediction, 7.0, time, np.full((length, 1), length), np.full((length, 1), 2500.0))
    assert np.asarray(rewards, np.float64).sum() == pytest.approx(2500.0, rel=1e-6)


def test_the_first_step_does_not_carry_what_is_expected_of_every_episode():
    # A net that knows the mean return, and learns nothing more on the way: every step has its even share.
    length, mean = 10, 500.0
    time = np.arange(length, dtype=np.int32)[:, None]
    full = np.full((length, 1), mean, np.float32)
    rewards = redistribute(full, mean, time, np.full((length, 1), length), full + 20.0)
    np.testing.assert_allclose(rewards, np.full((length, 1), 52.0), rtol=1e-6)


# --- whole --------------------------------------------------------------------------------------------------


def random_episode(random: np.random.Generator, length: int | None = None) -> Episode:
    length = int(random.integers(1, HORIZON + 1)) if length is None else length
    obs = (random.normal(size=(length + 1, OBS)) * 3.0 + 5.0).astype(np.float32)
    action = random.uniform(-1.0, 1.0, (length, ACTIONS)).astype(np.float32)
    return Episode(obs, action, float(np.float32(random.normal() * 30.0)), bool(random.integers(2)))


def make(**settings):
    settings = {"hidden": HIDDEN, "batch_episodes": 3, "learning_rate": 1e-2} | settings
    return rudder.make_rudder(RudderConfig(**settings), HORIZON)


@cache
def made():
    decomposer = make()
    return decomposer, jit(decomposer.ingest), jit(decomposer.draw), jit(decomposer.update)


def start(episodes: list[Episode], decomposer=None):
    ingest = made()[1] if decomposer is None else jit(decomposer.ingest)
    decomposer = decomposer or made()[0]
    block = replay.make_block(episodes, 128, 64, OBS, ACTIONS)
    store = insert(replay.init_store(128, OBS, ACTIONS), block)
    return ingest(decomposer.init(jax.random.key(0), SPEC), store, block), store


def normalised(episodes: list[Episode], obs):
    rows = np.concatenate([episode.obs for episode in episodes]).astype(np.float64)
    return (obs - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-8)


def test_a_batch_holds_whole_episodes_normalised_and_their_scaled_returns():
    decomposer, _, draw, _ = made()
    random = np.random.default_rng(5)
    episodes = [random_episode(random, length) for length in (6, 1, 3, 5)]
    state, store = start(episodes)
    scale, seen = float(decomposer.scale(state)), set()
    for seed in range(8):
        batch = jax.device_get(draw(state, store, jax.random.key(seed)))
        assert batch.inputs.shape == (HORIZON, 3, INPUTS) and batch.rows.counted.all()
        for number in range(3):
            place = int(np.argmin([abs(e.episode_return / scale - batch.target[number]) for e in episodes]))
            episode = episodes[place]
            assert batch.length[number] == episode.length
            inputs = np.concatenate([normalised(episodes, episode.obs[:-1]), episode.action], axis=-1)
            cells = batch.rows.valid & (batch.rows.episode == number)
            np.testing.assert_allclose(batch.inputs[cells], inputs, atol=1e-4)
            seen.add(place)
    assert seen == {0, 1, 2, 3}


def unit_of(episodes: list[Episode]) -> float:
    """Root mean square, over all steps, of the return of their episode."""
    squares = [[episode.episode_return**2] * episode.length for episode in episodes]
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def test_predictions_of_an_update_are_in_units_of_the_returns_seen():
    decomposer, _, draw, update = made()
    random = np.random.default_rng(9)
    episodes = [random_episode(random, length) for length in (5, 2, 4)]
    state, store = start(episodes)
    batch = jax.device_get(draw(state, store, jax.random.key(0)))
    _, metrics = update(state, batch)
    unit = unit_of(episodes) / float(decomposer.scale(state))
    expected = []
    for number in range(3):
        cells = batch.rows.valid & (batch.rows.episode == number)
        predictions = plain_predictions(alone(state.predicted_return), batch.inputs[cells], unit)
        expected.append(plain_loss(predictions, batch.target[number], 0.0)[0])
    assert float(metrics["return_loss"]) == pytest.approx(np.mean(expected), rel=1e-4)


def test_labels_are_made_from_normalised_inputs_and_scaled_returns():
    random = np.random.default_rng(8)
    episodes = [random_episode(random, length) for length in (2, 6, 1)]
    state, store = start(episodes)
    steps = replay.gather_numbered(store, np.arange(9)[:, None])
    labels = np.asarray(jit(make().label)(state, steps))[:, 0]
    scale, unit, expected = float(make().scale(state)), unit_of(episodes), []
    for episode in episodes:
        inputs = np.concatenate([normalised(episodes, episode.obs[:-1]), episode.action], axis=-1)
        predictions = plain_predictions(alone(state.predicted_return), inputs, unit / scale)[0]
        expected += plain_rewards(predictions, episode.episode_return / scale).tolist()
    np.testing.assert_allclose(labels, expected, atol=1e-4)


def test_updates_learn_to_predict_returns_and_say_so():
    _, _, draw, update = made()
    random = np.random.default_rng(6)
    episodes = []
    for _ in range(12):
        episode = random_episode(random)
        episodes.append(episode._replace(episode_return=float(episode.obs[:-1, 0].sum())))
    state, store = start(episodes)
    losses = []
    for key in jax.random.split(jax.random.key(0), 300):
        state, metrics = update(state, draw(state, store, key))
        losses.append((metrics["return_loss"], metrics["auxiliary_loss"]))
    losses = np.array(jax.device_get(losses))
    assert set(metrics) == {"return_loss", "auxiliary_loss"}
    assert (losses[-50:].mean(axis=0) < 0.3 * losses[:20].mean(axis=0)).all()


def test_the_net_may_see_what_a_step_led_to_and_its_running_average_may_make_the_labels():
    episode = random_episode(np.random.default_rng(9), 5)
    decomposer = make(averaging=0.1, next_obs=True, normalize_inputs=False, return_scale=1.0)
    assert decomposer.needs_next_obs and "mean_predicted_return" in decomposer.saved
    state, store = start([episode], decomposer)
    states = [state]
    for key in jax.random.split(jax.random.key(0), 3):
        states.append(jit(decomposer.update)(states[-1], decomposer.draw(states[-1], store, key))[0])
    mean = jax.tree.map(np.asarray, states[0].mean_predicted_return.net)
    for number, later in enumerate(states[1:]):
        keep = min(0.1, number / (number + 10.0))
        mean = jax.tree.map(lambda slow, fast: keep * slow + (1 - keep) * fast, mean, later.predicted_return)  # noqa: B023
    steps = replay.gather_numbered(store, np.arange(5)[:, None])
    inputs = np.concatenate([episode.obs[:-1], episode.action, episode.obs[:-1] - episode.obs[1:]], axis=-1)
    predictions = plain_predictions(alone(mean), inputs, unit_of([episode]))[0]
    expected = plain_rewards(predictions, episode.episode_return)
    np.testing.assert_allclose(np.asarray(decomposer.label(states[-1], steps))[:, 0], expected, atol=1e-4)
    assert make().init(jax.random.key(0), SPEC).mean_predicted_return is None
    assert "mean_predicted_return" not in make().saved


def make_learner() -> tuple[Learner, RewardModel]:
    decomposer = make()
    agent = make_sac(SacConfig(hidden=4, batch_size=4))
    learner = Learner(decomposer, agent, SPEC, range(2), 100, 4, jax.devices("cpu")[0])
    return learner, RewardModel(decomposer, HORIZON)


def stored_sums(learner: Learner, episodes: list[list[Episode]]) -> list[np.ndarray]:
    """Sums of the stored labels of the newest episodes of each seed, in the environment's units."""
    sums = []
    for seed, of_seed in enumerate(episodes):
        lengths = [episode.length for episode in of_seed]
        end = int(learner.store.next_step[seed])
        place = np.arange(end - sum(lengths), end) % learner.labels.values.shape[1]
        labels = np.asarray(learner.labels.values, np.float64)[seed][place]
        scale = float(make().scale(learner.decomposer_state(seed)))
        sums.append(np.array([part.sum() for part in np.split(labels, np.cumsum(lengths)[:-1])]) * scale)
    return sums


def returns_of(episodes: list[list[Episode]]) -> list[np.ndarray]:
    return [np.array([episode.episode_return for episode in of_seed]) for of_seed in episodes]


def test_labels_of_the_learner_sum_to_the_return_of_every_episode_also_after_the_ring_has_wrapped():
    random = np.random.default_rng(7)
    learner, model = make_learner()
    everything: list[list[Episode]] = [[], []]
    for turn in range(12):
        lengths = [1, HORIZON, *random.integers(1, HORIZON + 1, size=3)]
        new = [[random_episode(random, int(length)) for length in lengths] for _ in range(2)]
        learner.store_episodes(new)
        for found, expected in zip(stored_sums(learner, new), returns_of(new), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        everything = [[*before, *of_seed] for before, of_seed in zip(everything, new, strict=True)]
        if turn % 4 == 3:
            learner.fit_decomposer(np.array([True, True]), 5 * turn, 5)
    live = [of_seed[-int(learner.store.n_episodes[seed]) :] for seed, of_seed in enumerate(everything)]
    assert all(len(kept) < len(of_seed) for kept, of_seed in zip(live, everything, strict=True))
    stale = stored_sums(learner, live)
    learner.renew_labels(oldest=0)
    for seed, (found, expected) in enumerate(zip(stored_sums(learner, live), returns_of(live), strict=True)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        # Older labels were made with an older scale: renewing them has changed something.
        assert not np.allclose(stale[seed], expected, rtol=1e-5, atol=1e-4)
        seen = [EvaluationEpisode(episode, None) for episode in live[seed]]
        rewards = model.of_episodes(learner.decomposer_state(seed), seen)
        np.testing.assert_allclose([reward.sum() for reward in rewards], expected, rtol=1e-5, atol=1e-4)
        end = int(learner.store.next_step[seed])
        place = np.arange(end - sum(map(len, rewards)), end) % learner.labels.values.shape[1]
        scale = float(make().scale(learner.decomposer_state(seed)))
        labels = np.asarray(learner.labels.values)[seed][place] * scale
        np.testing.assert_allclose(labels, np.concatenate(rewards), atol=1e-3)


def test_there_is_no_reward_of_a_step_without_its_episode():
    decomposer = make()
    assert not RewardModel(decomposer, HORIZON).has_step_reward
    with pytest.raises(NotImplementedError, match="episode"):
        decomposer.reward(None, None)

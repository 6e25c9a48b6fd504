"""What RRD and RD share: what r̂ sees, what a batch holds, and that hidden rewards come back from returns alone."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from jax import jit

from diaster.config import RdConfig, RrdConfig
from diaster.decomposers.rd import make_rd
from diaster.decomposers.rrd import make_rrd
from diaster.replay import store as replay
from diaster.types import EnvSpec, Episode

OBS, ACTIONS, HORIZON, CAPACITY = 2, 1, 12, 4096
SPEC = EnvSpec("Made-up", OBS, ACTIONS, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), HORIZON)
insert = jit(replay.insert)


NAMES = ("rrd", "rrd, unbiased", "rd")
each = pytest.mark.parametrize("name", NAMES)


def make(name: str, **settings):
    settings = {"hidden": 8} | settings
    if name == "rd":
        return make_rd(RdConfig(**settings), HORIZON)
    return make_rrd(RrdConfig(**{"subset": 4} | settings, unbiased=name == "rrd, unbiased"), HORIZON)


# No setting but the size of the net changes what these two do.
ingest = jit(make("rrd").ingest)
fresh = cache(lambda hidden: make("rrd", hidden=hidden).init(jax.random.key(0), SPEC))


def with_episodes(episodes: list[Episode], hidden: int = 8, n_rows: int = 64):
    """The state before any update and a store, both with the episodes."""
    block = replay.make_block(episodes, n_rows, n_rows // 2, OBS, ACTIONS)
    store = insert(replay.init_store(CAPACITY, OBS, ACTIONS), block)
    return ingest(fresh(hidden), store, block), store


def numbered_episodes(lengths) -> list[Episode]:
    """Observation and action carry the numbers of their episode and step, the return that of the episode."""
    episodes = []
    for number, length in enumerate(lengths):
        code = 100.0 * number + np.arange(length + 1, dtype=np.float32)
        obs = np.stack([code, code**2], axis=-1)
        episodes.append(Episode(obs, 0.5 + code[:-1, None], 1000.0 + number, False))
    return episodes


# --- batches --------------------------------------------------------------------------------------------------


@each
def test_a_batch_holds_steps_of_drawn_episodes_what_they_led_to_and_the_scaled_return(name):
    decomposer, lengths = make(name, batch_episodes=3, return_scale=4.0), np.array([5, 1, 2, 12, 3])
    state, store = with_episodes(numbered_episodes(lengths))
    draw, seen = jit(decomposer.draw), set()
    for seed in range(20):
        batch = jax.device_get(draw(state, store, jax.random.key(seed)))
        drawn = (batch.episode_return * 4.0 - 1000.0).astype(int)  # [B] which episodes these are
        np.testing.assert_array_equal(batch.length, lengths[drawn])
        code = batch.inputs[..., 0]
        step = code - 100.0 * drawn[:, None]
        assert (step >= 0).all() and (step < batch.length[:, None]).all()
        expected = [code, code**2, code + 0.5, -np.ones_like(code), code**2 - (code + 1.0) ** 2]
        np.testing.assert_array_equal(batch.inputs, np.stack(expected, axis=-1))
        if name == "rd":
            np.testing.assert_array_equal(step, np.minimum(np.arange(HORIZON), batch.length[:, None] - 1))
        else:
            enough = batch.length >= 4
            assert all(len(set(steps)) == 4 for steps in step[enough].tolist())
        seen |= set(drawn.tolist())
    assert seen == set(range(5))


@pytest.mark.parametrize(("episode_draw", "share"), [("length", 0.9), ("uniform", 0.5)])
def test_episodes_are_drawn_in_proportion_to_their_length_or_uniformly(episode_draw, share):
    decomposer = make("rrd", batch_episodes=4000, subset=1, episode_draw=episode_draw)
    state, store = with_episodes(numbered_episodes((1, 9)))
    length = jit(decomposer.draw)(state, store, jax.random.key(0)).length
    assert np.mean(np.asarray(length) == 9) == pytest.approx(share, abs=5.0 * np.sqrt(share * (1 - share) / 4000))


def test_the_steps_of_a_draw_are_others_in_each_episode_and_each_update():
    decomposer = make("rrd", batch_episodes=8, subset=3)
    state, store = with_episodes(numbered_episodes((12,)))
    draw = jit(decomposer.draw)
    draws = [np.sort(draw(state, store, jax.random.key(seed)).inputs[..., 0]) for seed in range(2)]
    assert len({tuple(steps) for steps in np.concatenate(draws).tolist()}) > 8


# --- what r̂ sees ----------------------------------------------------------------------------------------------


def plain_mlp(layers, x):
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ np.asarray(weight, np.float64) + np.asarray(bias), 0.0)
    return x @ np.asarray(layers[-1].weight, np.float64) + np.asarray(layers[-1].bias)


def steps_of(obs, action, next_obs) -> replay.Steps:
    """Steps of which nothing else is known, nor matters."""
    none = np.full(len(obs), np.nan, np.float32)
    return replay.Steps(obs, action, next_obs, none, none, none, none)


@each
@pytest.mark.parametrize("normalize", [False, True])
def test_the_step_reward_sees_observation_action_and_the_difference_to_what_follows(name, normalize):
    decomposer, rng = make(name, normalize_inputs=normalize), np.random.default_rng(0)
    episodes = [
        episode._replace(obs=(3.0 + [0.1, 20.0] * rng.normal(size=episode.obs.shape)).astype(np.float32))
        for episode in numbered_episodes((12, 7, 1))
    ]
    state, _ = with_episodes(episodes)
    obs = np.concatenate([episodes[0].obs[:-1], [[1e6, -1e6]]]).astype(np.float32)
    next_obs = np.concatenate([episodes[0].obs[1:], [[0.0, 0.0]]]).astype(np.float32)
    action = np.linspace(-1.0, 1.0, len(obs), dtype=np.float32)[:, None]
    seen = [obs.astype(np.float64), next_obs.astype(np.float64)]
    if normalize:
        rows = np.concatenate([episode.obs for episode in episodes]).astype(np.float64)
        seen = [np.clip((x - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-8), -10.0, 10.0) for x in seen]
        np.testing.assert_array_equal(seen[0][-1], [10.0, -10.0])
    expected = plain_mlp(state.step_reward, np.concatenate([seen[0], action, seen[0] - seen[1]], axis=-1))[:, 0]
    reward = jit(decomposer.reward)(state, steps_of(obs, action, next_obs))
    assert decomposer.needs_next_obs and decomposer.label is None
    np.testing.assert_allclose(reward, expected, rtol=1e-3, atol=1e-3)


@each
def test_the_scale_is_the_given_number_or_five_root_mean_squares_of_the_return_per_step(name):
    lengths = np.array([5, 1, 2])
    episodes = numbered_episodes(lengths)
    rates = np.array([episode.episode_return for episode in episodes]) / lengths
    for setting, expected in ((7.0, 7.0), ("auto", 5.0 * np.sqrt(np.average(rates**2, weights=lengths)))):
        decomposer = make(name, return_scale=setting)
        state, _ = with_episodes(episodes)
        assert float(decomposer.scale(state)) == pytest.approx(expected, rel=1e-5)


def test_without_what_follows_the_step_reward_sees_observation_and_action_alone():
    decomposer = make("rrd", next_obs=False)
    assert not decomposer.needs_next_obs
    state = decomposer.init(jax.random.key(0), SPEC)
    episode = numbered_episodes((5,))[0]
    expected = plain_mlp(state.step_reward, np.concatenate([episode.obs[:-1], episode.action], axis=-1))[:, 0]
    reward = decomposer.reward(state, steps_of(episode.obs[:-1], episode.action, np.full((5, OBS), np.nan)))
    np.testing.assert_allclose(reward, expected, rtol=1e-3)


# --- updates --------------------------------------------------------------------------------------------------


@each
def test_the_logged_loss_is_that_of_the_batch_before_the_update_and_the_update_lowers_it(name):
    decomposer, rng = make(name, batch_episodes=2, learning_rate=1e-3), np.random.default_rng(1)
    obs, action = rng.normal(size=(5, OBS)).astype(np.float32), rng.normal(size=(4, ACTIONS)).astype(np.float32)
    # With as many steps as are drawn nothing is random about a batch.
    state, store = with_episodes([Episode(obs, action, 30.0, True)])
    batch, update = jit(decomposer.draw)(state, store, jax.random.key(0)), jit(decomposer.update)
    new, metrics = update(state, batch)
    rewards = plain_mlp(state.step_reward, np.concatenate([obs[:-1], action, obs[:-1] - obs[1:]], axis=-1))[:, 0]
    error = rewards.sum() - 30.0 / float(decomposer.scale(state))
    expected = error**2 if name == "rd" else (error / 4) ** 2
    assert set(metrics) == {"step_loss"}
    assert float(metrics["step_loss"]) == pytest.approx(expected, rel=1e-3)
    assert float(update(new, batch)[1]["step_loss"]) < expected


def some_updates(n: int, **settings):
    """The state after n updates on one short episode, all of whose steps are seen in each; and what came before."""
    decomposer = make("rrd", batch_episodes=1, **settings)
    block = replay.make_block(data_set(1, 0)[0], 64, 32, OBS, ACTIONS)
    store = insert(replay.init_store(CAPACITY, OBS, ACTIONS), block)
    states = [jit(decomposer.ingest)(decomposer.init(jax.random.key(0), SPEC), store, block)]
    draw, update = jit(decomposer.draw), jit(decomposer.update)
    for number in range(n):
        states.append(update(states[-1], draw(states[-1], store, jax.random.key(number)))[0])
    return decomposer, states


def test_the_step_reward_may_be_the_running_average_of_the_net_that_is_fitted():
    decomposer, states = some_updates(4, averaging=0.1)
    mean = jax.tree.map(np.asarray, states[0].mean_step_reward.net)
    for number, state in enumerate(states[1:]):
        keep = min(0.1, number / (number + 10.0))
        mean = jax.tree.map(lambda slow, fast: keep * slow + (1.0 - keep) * fast, mean, state.step_reward)  # noqa: B023
    steps = steps_of(*(np.ones((1, n), np.float32) for n in (OBS, ACTIONS, OBS)))
    expected = plain_mlp(mean, np.array([[1.0, 1.0, 1.0, 0.0, 0.0]]))[:, 0]
    np.testing.assert_allclose(decomposer.reward(states[-1], steps), expected, rtol=1e-4)
    assert "mean_step_reward" in decomposer.saved
    assert some_updates(0)[1][0].mean_step_reward is None and "mean_step_reward" not in make("rrd").saved


def test_weights_decay_by_the_learning_rate_times_their_setting():
    plain, decayed = (some_updates(1, learning_rate=1e-3, weight_decay=decay)[1] for decay in (0.0, 20.0))
    nets = (states[number].step_reward for states, number in ((plain, 0), (plain, 1), (decayed, 1)))
    for before, one, other in zip(*nets, strict=True):
        np.testing.assert_allclose(one.weight - other.weight, 0.02 * before.weight, rtol=1e-2, atol=1e-6)


# --- hidden rewards come back -----------------------------------------------------------------------------------


def hidden_reward(obs, action):
    return np.tanh(2.0 * obs[:, 0]) - obs[:, 1] * action[:, 0]


@cache
def data_set(n: int, seed: int) -> tuple[list[Episode], np.ndarray]:
    """Episodes of 3 to 12 unrelated steps with their totals, and the hidden reward of every step."""
    rng, episodes, rewards = np.random.default_rng(seed), [], []
    for _ in range(n):
        length = int(rng.integers(3, HORIZON + 1))
        obs = rng.normal(size=(length + 1, OBS)).astype(np.float32)
        action = rng.uniform(-1.0, 1.0, size=(length, ACTIONS)).astype(np.float32)
        rewards.append(hidden_reward(obs[:-1], action))
        episodes.append(Episode(obs, action, float(rewards[-1].sum()), True))
    return episodes, np.concatenate(rewards)


@each
def test_hidden_rewards_of_held_out_episodes_come_back_from_totals_alone(name):
    subset = {} if name == "rd" else {"subset": 8}
    decomposer = make(name, hidden=32, batch_episodes=16, learning_rate=3e-3, **subset)
    state, store = with_episodes(data_set(400, 0)[0], hidden=32, n_rows=CAPACITY)
    held_out, expected = data_set(40, 1)
    obs, next_obs = (np.concatenate([episode.obs[part] for episode in held_out]) for part in (np.s_[:-1], np.s_[1:]))
    steps = steps_of(obs, np.concatenate([episode.action for episode in held_out]), next_obs)

    def fit(state, store, keys):
        def update(state, key):
            return decomposer.update(state, decomposer.draw(state, store, key))

        fitted, _ = jax.lax.scan(update, state, keys)
        return decomposer.reward(state, steps), decomposer.reward(fitted, steps)

    before, after = jit(fit)(state, store, jax.random.split(jax.random.key(0), 600))
    assert abs(np.corrcoef(before, expected)[0, 1]) < 0.4  # what a net knows by chance
    assert np.corrcoef(after, expected)[0, 1] > 0.8


def test_a_running_average_that_another_run_takes_over_is_not_dropped_at_its_first_update():
    decomposer, states = some_updates(30, averaging=0.9)
    inherited = states[-1]._replace(optimizer=states[0].optimizer)  # as `--from` has it
    _, store = with_episodes(numbered_episodes([3, 4]))
    later, _ = jit(decomposer.update)(inherited, jit(decomposer.draw)(inherited, store, jax.random.key(0)))
    before, fitted, after = (
        net[0].weight for net in (inherited.mean_step_reward.net, later.step_reward, later.mean_step_reward.net)
    )
    np.testing.assert_allclose(after, 0.75 * before + 0.25 * fitted, rtol=1e-5, atol=1e-6)  # 30 of 40

"""The watch-repair example: its environment, its agent, its criterion, and the command."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import gymnasium.utils.env_checker
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex

from diaster.config import METHODS, EpisodicConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.controls import make_episodic
from diaster.replay.store import init_store

_spec = importlib.util.spec_from_file_location(
    "watch_repair", Path(__file__).parents[2] / "examples" / "watch_repair.py"
)
wr = sys.modules["watch_repair"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(wr)

LEAVE, REPAIR = wr.LEAVE, wr.REPAIR


def some_trips(n: int, seed: int = 0):
    return wr.draw_trips(np.random.default_rng(seed), n)


def play_through(env, seed: int, actions: list[int]):
    obs, _ = env.reset(seed=seed)
    seen, rewards = [obs], []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(obs)
        rewards.append(reward)
        assert not truncated
        assert terminated == (len(rewards) == wr.STEPS)
    return np.array(seen), np.array(rewards)


# --- the environment ------------------------------------------------------------------------------------------


def test_it_is_an_environment_as_gymnasium_wants_it():
    gymnasium.utils.env_checker.check_env(wr.WatchRepair(), skip_render_check=True)


def test_the_expected_profit_of_each_brand_is_what_the_docstring_says():
    # Every number of flat tyres with its probability: the profit depends on the number alone.
    expected = []
    for brand in range(wr.BRANDS):
        flat = np.tril(np.ones((wr.LEGS + 1, wr.LEGS), bool), -1)  # row k has k flat tyres
        trips = wr.Trips(np.full(wr.LEGS + 1, brand), np.full(wr.LEGS + 1, wr.WORKSHOP_MEAN[brand]), flat)
        chance = [
            math.comb(wr.LEGS, k) * wr.FLAT_CHANCE**k * (1.0 - wr.FLAT_CHANCE) ** (wr.LEGS - k)
            for k in range(wr.LEGS + 1)
        ]
        expected.append(np.dot(chance, wr.profit(np, trips, REPAIR)))
        assert not wr.profit(np, trips, LEAVE).any()
    np.testing.assert_allclose(expected, [-1.5, 3.5, 3.5, -1.5], atol=1e-5)
    np.testing.assert_allclose(wr.EXPECTED_PROFIT, expected, atol=1e-5)
    assert wr.BEST.tolist() == [False, True, True, False]


def test_drawn_trips_have_the_stated_mean_and_spread():
    trips = some_trips(100_000)
    profit = wr.profit(np, trips, REPAIR)
    spread = math.hypot(wr.WORKSHOP_STD, wr.FLAT_COST * math.sqrt(wr.LEGS * wr.FLAT_CHANCE * (1 - wr.FLAT_CHANCE)))
    for brand in range(wr.BRANDS):
        of_brand = profit[trips.brand == brand]
        assert abs(of_brand.size / 25_000 - 1) < 0.05
        assert abs(of_brand.mean() - wr.EXPECTED_PROFIT[brand]) < 4 * spread / math.sqrt(of_brand.size)
        assert abs(of_brand.std() / spread - 1) < 0.05


@pytest.mark.parametrize("decision", [LEAVE, REPAIR])
def test_the_profit_comes_with_the_last_step_and_only_the_first_action_counts(decision):
    env = wr.WatchRepair()
    quiet, rewards = play_through(env, 3, [decision] + [LEAVE] * wr.LEGS)
    busy, same_rewards = play_through(env, 3, [decision] + [REPAIR] * wr.LEGS)
    assert not rewards[:-1].any()
    assert (rewards[-1] != 0.0) == (decision == REPAIR)
    np.testing.assert_array_equal(rewards, same_rewards)
    np.testing.assert_array_equal(quiet, busy)


def test_observations_show_brand_decision_flat_tyres_and_time():
    leave, repair = (wr.observe(np, some_trips(5), decision) for decision in (LEAVE, REPAIR))
    np.testing.assert_array_equal(leave[:, 0], repair[:, 0])  # the decision cannot be seen before it is made
    for seed in range(20):
        seen, rewards = play_through(wr.WatchRepair(), seed, [REPAIR] * wr.STEPS)
        flags, repaired, flat, flats, time = seen[:, :4], seen[:, 4], seen[:, 5], seen[:, 6], seen[:, 7]
        assert (flags.sum(axis=1) == 1).all()
        assert (flags == flags[0]).all()
        assert repaired.tolist() == [0.0] + [1.0] * wr.STEPS
        assert flat[0] == flat[-1] == 0.0  # the decision and the arrival are no legs
        np.testing.assert_array_equal(flats, np.cumsum(flat))
        np.testing.assert_allclose(time, np.arange(wr.STEPS + 1) / wr.LEGS, rtol=1e-6)
        # What the last state does not tell of the profit is the workshop's bill alone.
        workshop = wr.PRICE[flags[0].argmax()] - wr.FLAT_COST * flats[-1] - rewards[-1]
        assert abs(workshop - wr.WORKSHOP_MEAN[flags[0].argmax()]) < 5 * wr.WORKSHOP_STD


# --- the agent ------------------------------------------------------------------------------------------------


def plain_q_learning(trips, coins, rate: float, coarse: bool):
    """Step by step, in the order of time, with a dictionary."""
    values: dict[tuple, float] = {}
    profit = [wr.profit(np, trips, action) for action in (LEAVE, REPAIR)]
    decisions, greedy = [], []
    for number, brand in enumerate(trips.brand.tolist()):
        first = [values.get((brand, action), 0.0) for action in (LEAVE, REPAIR)]
        by_chance = coins.explores[number] or first[LEAVE] == first[REPAIR]
        action = int(coins.guess[number]) if by_chance else int(np.argmax(first))
        flats = np.cumsum(trips.flat[number]) * (not coarse)
        states = [(brand, action)] + [(leg, brand, action, int(flats[leg])) for leg in range(wr.LEGS)]
        for time, state in enumerate(states):
            last = time == wr.STEPS - 1
            target = float(profit[action][number]) if last else values.get(states[time + 1], 0.0)
            values[state] = values.get(state, 0.0) + rate * (target - values.get(state, 0.0))
        decisions.append(action)
        greedy.append([values.get((b, REPAIR), 0.0) > values.get((b, LEAVE), 0.0) for b in range(wr.BRANDS)])
    return values, decisions, greedy


@pytest.mark.parametrize("coarse", [False, True])
def test_the_agent_is_plain_q_learning_on_the_state(coarse):
    n, rate = 2000, 0.9  # a high rate, so that the profit comes all the way back
    trips, random = some_trips(n), np.random.default_rng(1)
    coins = wr.Coins(random.random(n) < 0.3, random.integers(2, size=n))
    episodic = make_episodic(EpisodicConfig(return_scale=1.0), wr.STEPS)
    state = episodic.init(jax.random.key(0), wr.SPEC)
    table, decisions, greedy = jax.jit(wr.play, static_argnums=(0, 1))(
        episodic, coarse, state, wr.init_table(), trips, coins, rate
    )
    values, plain_decisions, plain_greedy = plain_q_learning(trips, coins, rate, coarse)
    expected = [[values.get((brand, action), 0.0) for action in (LEAVE, REPAIR)] for brand in range(wr.BRANDS)]
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(table.decision, expected, rtol=1e-3, atol=1e-5)
    assert decisions.tolist() == plain_decisions
    assert greedy.tolist() == plain_greedy
    assert np.count_nonzero(table.on_the_way) == sum(len(key) == 4 and value != 0.0 for key, value in values.items())


def test_rewards_are_made_of_whole_episodes_along_time_and_come_in_the_units_of_profit():
    def label(state, steps):  # flat tyres so far, from those of each leg; and the return
        return jnp.cumsum(steps.obs[..., 5], axis=0) + steps.episode_return / state

    counting = Decomposer(None, None, None, scale=lambda state: state, saved=(), label=label)
    trips = some_trips(6)
    rewards = wr.redistribute(counting, 2.0, *wr.both_episodes(trips))
    for decision in (LEAVE, REPAIR):
        flats_so_far = wr.observe(np, trips, decision)[:, :-1, 6]
        expected = 2.0 * flats_so_far + wr.profit(np, trips, decision)[:, None]
        np.testing.assert_allclose(rewards[decision], expected, rtol=1e-5, atol=1e-5)


def test_the_decomposer_is_given_the_episodes_that_were_played():
    recording = Decomposer(
        init=None,
        ingest=lambda state, store, block: (state[0], block),
        reward=None,
        scale=None,
        saved=(),
        draw=lambda state, store, key: store.n_episodes,
        update=lambda state, batch: ((state[0] + batch, state[1]), {}),
    )
    trips, decision = some_trips(3), np.array([REPAIR, LEAVE, REPAIR])
    store = init_store(200, wr.OBS_DIM, 2)
    fit = jax.jit(wr.fit, static_argnums=(0, 1))
    store, (counted, block) = fit(recording, 2, store, (0, None), trips, decision, jax.random.key(0), 0)
    assert int(counted) == 2 * 3  # two updates, after the three episodes were stored
    profit = [wr.profit(np, trips, action)[number] for number, action in enumerate(decision)]
    np.testing.assert_allclose(store.episode_return[:3], profit, rtol=1e-5)
    action = np.asarray(block.action).reshape(3, wr.STEPS + 1, 2)[:, :-1]
    np.testing.assert_array_equal(action[:, 0], np.eye(2)[decision])
    assert (action[:, 1:] == np.eye(2)[LEAVE]).all()
    seen = np.asarray(block.obs).reshape(3, wr.STEPS + 1, wr.OBS_DIM)
    for number, decided in enumerate(decision):
        np.testing.assert_allclose(seen[number], wr.observe(np, trips, decided)[number], rtol=1e-6)


# --- the criterion --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "needed"),
    [
        ("1111", 1),
        ("0111", 2),
        ("1101110", 4),  # the first row is too short
        ("01110001111", 2),  # what follows does not count
        ("110110", math.inf),
        ("0000", math.inf),
        ("11", math.inf),
        ("", math.inf),
    ],
)
def test_the_criterion_is_the_first_episode_of_the_first_row_that_is_long_enough(right, needed):
    assert wr.episodes_needed(np.array([letter == "1" for letter in right], bool), kept=3) == needed


def results_of(needed: list[float], repairs: np.ndarray | None = None):
    if repairs is None:
        repairs = np.zeros((len(needed), 10, wr.BRANDS), bool)
    return wr.Result("TD", 5000, np.array(needed), repairs, 1.6)


def test_what_happens_after_the_criterion_was_met_is_reported():
    repairs = np.tile(wr.BEST, (2, wr.KEPT + 12, 1))
    repairs[0, 1 + wr.KEPT] = True  # the second episode after its row: all are repaired
    repairs[1] = False
    result = results_of([2.0, math.inf], repairs)
    assert wr.right_afterwards(result) == pytest.approx(10 / 11)
    assert math.isnan(wr.right_afterwards(results_of([math.inf])))


def test_the_table_says_where_a_seed_did_not_make_it():
    line = wr.table_text([results_of([1200.0, math.inf, 300.0])]).splitlines()[-1]
    assert line == "| TD | 1,200 | 1,200 to > 5,000 | 1,200, > 5,000, 300 | – | 2 |"


def test_a_seed_does_not_depend_on_the_seeds_that_learn_together_with_it():
    episodic = make_episodic(EpisodicConfig(return_scale=1.0), wr.STEPS)
    contender = wr.Contender("TD", episodic, budget=2000, block=500, head_start=0)
    together, alone = wr.compare(contender, (4, 5)), wr.compare(contender, (5,))
    assert together.repairs[1].any()
    np.testing.assert_array_equal(together.repairs[1], alone.repairs[0])
    assert (together.repairs[0] != together.repairs[1]).any()


# --- the command ----------------------------------------------------------------------------------------------


def test_quick_runs_from_end_to_end(tmp_path, capsys, monkeypatch):
    kept, pictures = [], []
    monkeypatch.setattr("matplotlib.pyplot.close", pictures.append)

    def keep_and_plot(results, out, plot=wr.plot):
        kept.extend(results)
        plot(results, out)

    monkeypatch.setattr(wr, "plot", keep_and_plot)
    out = tmp_path / "picture.png"
    assert wr.main(["--quick", "--seeds", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| ")] == [
        "| method",
        "| Diaster",
        "| RUDDER",
        "| TD",
    ]
    assert out.read_bytes().startswith(b"\x89PNG")
    curves = {line.get_label(): to_hex(line.get_color()) for line in pictures[0].axes[0].lines[:3]}
    assert curves == {
        name: METHODS[method].colour
        for name, method in (("Diaster", "diaster"), ("RUDDER", "rudder"), ("TD", "episodic"))
    }
    for result in kept[:2]:  # the net has a head start of a hundred episodes
        assert not result.repairs[:, :100].any()
        assert result.repairs[:, 100:].any()
    assert not np.isfinite(kept[2].needed).any()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "many"], "seeds 'many' are neither a count nor a list"),
        (["--seeds", "0"], "at least one is needed"),
        (["--seeds", "3,3"], "seeds '3,3' are"),
        (["--seeds=-1,2"], "seeds '-1,2' are"),
        (["--out", "picture.txt"], "'picture.txt' is no picture this can write"),
        (["--out", "nowhere/picture.png"], "the folder 'nowhere' for 'picture.png' does not exist"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, complaint, capsys, empty_cwd, monkeypatch):
    monkeypatch.setattr(wr, "compare", None)  # refused before anything is computed
    assert wr.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.rstrip().endswith(".")

"""The replay for other learners: what goes in, the rewards that come out, and going on exactly."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from all_settings import refusal
from gymnasium import spaces
from replays import ACTIONS, HORIZON, OBS, SMALL, by_obs, episodes, filled, replay_of
from toy_methods import make_counting

from diaster import DecomposedReplay
from diaster.config import METHODS
from diaster.replay.store import Steps
from diaster.types import EvaluationEpisode


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DecomposedReplay]:
    """A replay with a method whose parts are given: what rewards are, and so on."""

    def make(**parts: Any) -> DecomposedReplay:
        factory = METHODS["uniform"]._replace(factory="toy_methods:make_given")
        monkeypatch.setattr("toy_methods.make_given", lambda settings, horizon: make_counting(**parts), raising=False)
        monkeypatch.setitem(METHODS, "uniform", factory)
        return replay_of("uniform")

    return make


# What goes in and comes out


def test_steps_come_out_as_the_environment_has_them_and_what_follows_them_too() -> None:
    replay, known = replay_of("uniform"), {}
    random = np.random.default_rng(0)
    for number in range(4):
        obs = random.normal(size=(4, 3))
        action = random.uniform(ACTIONS.low, ACTIONS.high, (3, 2))
        assert replay.add(obs, action, 3.0 * number, terminated=number % 2 == 0) == number
        known |= {np.float32(obs[t]).tobytes(): (obs, action, t, number % 2 == 0) for t in range(3)}
    batch = replay.sample(50)
    for i in range(50):
        obs, action, t, terminated = known[batch.obs[i].tobytes()]
        np.testing.assert_allclose(batch.action[i], action[t], atol=1e-6)
        np.testing.assert_array_equal(batch.next_obs[i], np.float32(obs[t + 1]))
        assert batch.terminal[i] == (terminated and t == 2)


def test_discrete_actions_keep_their_numbers_and_whole_numbers_their_kind() -> None:
    box = spaces.Box(0, 255, (2,), np.uint8)
    replay = DecomposedReplay(box, spaces.Discrete(3, start=5), HORIZON, SMALL["uniform"], capacity=50)
    for action in ([5, 6], [7, 7]):
        replay.add(np.array([[0, 255], [1, 2], [action[0], 9]]), np.array(action), 1.0, True)
    batch = replay.sample(40)
    assert batch.obs.dtype == np.uint8 and set(batch.action.tolist()) == {5, 6, 7}
    is_first = (batch.obs == [0, 255]).all(axis=1)
    assert set(batch.action[~is_first].tolist()) == {6, 7} and set(batch.action[is_first].tolist()) == {5, 7}


def test_several_choices_at_once_come_out_as_they_went_in() -> None:
    replay = DecomposedReplay(OBS, spaces.MultiDiscrete([2, 3]), HORIZON, SMALL["uniform"], capacity=50)
    given = np.array([[0, 2], [1, 0], [1, 2]])
    for _ in range(2):
        replay.add(np.zeros((4, 3)), given, 1.0, True)
    assert {tuple(action) for action in replay.sample(60).action.tolist()} == set(map(tuple, given.tolist()))
    assert "it has [0, 0] to [1, 2]" in refusal(lambda: replay.add(np.zeros((2, 3)), [[0, 3]], 1.0, True))


@pytest.mark.parametrize("method", ["diaster", "base", "rrd", "rd"])
def test_a_batchs_rewards_are_those_of_the_decomposer_as_it_is_now(method: str) -> None:
    replay = replay_of(method)
    filled(replay)
    before = None
    for _ in range(2):
        replay.fit(1)
        batch = replay.sample(32)
        expected = replay.rewards(batch.obs, batch.action, batch.next_obs)
        np.testing.assert_allclose(batch.reward * replay.scale, expected, rtol=1e-3, atol=1e-5)
        if before is not None:
            changed = replay.rewards(before.obs, before.action, before.next_obs)
            assert not np.allclose(before.reward * replay.scale, changed, rtol=1e-4, atol=1e-6)
        before = batch


@pytest.mark.parametrize("method", ["rudder", "difference"])
def test_rewards_that_need_the_history_are_stored_and_renewed_before_they_are_too_old(method: str) -> None:
    replay = replay_of(method)
    known = by_obs(filled(replay))

    def found_and_expected() -> tuple[Any, Any]:
        batch = replay.sample(32)
        rows = [known[obs.tobytes()] for obs in batch.obs]
        with_history = replay._model.of_seeds(
            replay._replay.state, [[EvaluationEpisode(episode, None) for episode, _ in rows]]
        )[0]
        return batch.reward * replay.scale, np.array([row[t] for row, (_, t) in zip(with_history, rows, strict=True)])

    replay.fit(1)
    np.testing.assert_allclose(*found_and_expected(), rtol=1e-3, atol=1e-4)
    replay.fit(2)  # three updates make them as old as they may get; these are two
    assert not np.allclose(*found_and_expected(), rtol=1e-4, atol=1e-6)
    replay.fit(2)
    np.testing.assert_allclose(*found_and_expected(), rtol=1e-3, atol=1e-4)


def test_rewards_that_are_to_sum_to_the_return_do() -> None:
    replay = replay_of("exact")
    added = filled(replay, 3, length=4)
    replay.fit(2)
    batch = replay.sample(300)
    of_step = {obs.tobytes(): reward for obs, reward in zip(batch.obs, batch.reward, strict=True)}
    for episode in added:
        total = sum(of_step[episode.obs[t].tobytes()] for t in range(4)) * replay.scale
        assert total == pytest.approx(episode.episode_return, abs=1e-4)


def test_the_upper_reference_gives_the_hidden_rewards() -> None:
    replay = replay_of({"name": "dense", "return_scale": 1.0})
    known = by_obs(filled(replay))
    batch = replay.sample(32)
    for obs, reward in zip(batch.obs, batch.reward, strict=True):
        episode, t = known[obs.tobytes()]
        assert episode.hidden_reward is not None and reward == episode.hidden_reward[t]


@pytest.mark.parametrize("method", SMALL)
def test_every_method_makes_rewards_from_returns(method: str) -> None:
    replay = replay_of(method)
    filled(replay)
    replay.fit(2)
    batch = replay.sample(64)
    assert batch.reward.shape == (64,) and batch.reward.std() > 0
    assert replay.updates == (2 if replay.can_be_fitted else 0)


def test_rewards_of_the_steps_that_follow_stop_at_the_end_of_the_episode(toy: Callable[..., DecomposedReplay]) -> None:
    replay = toy(label=None, update=None, draw=None, reward=lambda state, steps: 1.0 + steps.time)
    known = by_obs(filled(replay, 20))
    drawn = replay.draw(200, n_steps=3)
    assert drawn.reward.shape == (200, 3)
    for i in range(200):
        episode, t = known[drawn.obs[i].tobytes()]
        n = min(3, episode.length - t)
        assert drawn.n_steps[i] == n
        expected = [1.0 + t + k if k < n else 0.0 for k in range(3)]
        np.testing.assert_array_equal(drawn.reward[i], expected)
        np.testing.assert_array_equal(drawn.action[i], episode.action[t])
        np.testing.assert_array_equal(drawn.next_obs[i], episode.obs[t + n])
        assert drawn.terminal[i] == (episode.terminated and t + n == episode.length)
    assert {1, 2, 3} == set(drawn.n_steps.tolist())


def test_labels_of_the_steps_that_follow_are_those_of_these_steps(toy: Callable[..., DecomposedReplay]) -> None:
    def label(state: Any, steps: Steps) -> jax.Array:
        return 10.0 * steps.time + steps.length

    replay = toy(label=label)
    known = by_obs(filled(replay, 20))
    replay.fit(1)
    drawn = replay.draw(100, n_steps=2)
    for i in range(100):
        episode, t = known[drawn.obs[i].tobytes()]
        expected = [10.0 * (t + k) + episode.length if t + k < episode.length else 0.0 for k in range(2)]
        np.testing.assert_array_equal(drawn.reward[i], expected)


def test_the_oldest_episodes_make_room() -> None:
    replay = replay_of("uniform", capacity=2 * (HORIZON + 1))
    added = []
    for seed in range(8):
        added += filled(replay, 3, seed)
        drawn = {obs.tobytes() for obs in replay.sample(200).obs}
        stored = [episode for episode in added if episode.obs[0].tobytes() in drawn]
        assert stored == added[len(added) - len(stored) :]
        assert len(replay) == sum(episode.length for episode in stored) == len(drawn)
        assert replay.is_full == (len(stored) < len(added))
    assert replay.is_full and replay.episodes == 24


# Fitting


def test_any_number_of_updates_needs_two_programs() -> None:
    replay = replay_of("rrd")
    filled(replay)
    for n in (1, 50, 3, 102):
        replay.fit(n)
    assert replay.updates == 156
    assert replay._replay._fit._cache_size() == 2


def test_updates_are_due_by_the_methods_schedule_less_those_that_were_made() -> None:
    replay = replay_of("diaster")
    assert (replay.method.updates, replay.method.every) == (250, 1000)
    filled(replay)
    assert replay.updates_due(200) == 50
    replay.fit(3)
    assert replay.updates_due(200) == 47 and replay.updates_due(4) == 0


def test_no_more_updates_are_due_than_the_method_allows_for_each_episode() -> None:
    replay = replay_of({**SMALL["diaster"], "updates_per_episode": 4})
    assert replay.updates_due(200) == 0
    filled(replay, 10)
    assert replay.updates_due(200) == 40 and replay.updates_due(40) == 10
    replay.fit(3)
    assert replay.updates_due(200) == 37
    filled(replay, 10)
    assert replay.updates_due(200) == 47  # the schedule asks for no more


def test_the_fit_is_judged_by_episodes_before_they_are_learnt_from(toy: Callable[..., DecomposedReplay]) -> None:
    # r̂ is right on whatever it was shown in an update, and 0 elsewhere: here, from the second update on.
    def reward(state: Any, steps: Steps) -> jax.Array:
        return jnp.where(state.updates > 1, steps.episode_return / steps.length, 0.0)

    replay = toy(label=None, reward=reward)
    filled(replay)
    replay.fit(1)
    assert "fit_r2" not in replay.metrics()  # a net that had learnt nothing is no measure
    for n, expected in ((9, lambda fit: fit <= 0.0), (60, lambda fit: fit == pytest.approx(1.0))):
        filled(replay, n, seed=n)
        replay.fit(1)
        assert expected(replay.metrics()["fit_r2"])


def test_metrics_are_means_over_the_last_fit_and_counts(toy: Callable[..., DecomposedReplay]) -> None:
    def update(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        return state._replace(updates=state.updates + 1), {"number": state.updates.astype(jnp.float32)}

    replay = toy(label=None, update=update)
    added = filled(replay)
    replay.fit(2)
    replay.fit(52)
    steps = sum(episode.length for episode in added)
    expected = {"episodes": 10, "steps": steps, "updates": 54, "number": 2 + 51 / 2, "return_scale": 1.0}
    assert {name: value for name, value in replay.metrics().items() if name != "fit_r2"} == pytest.approx(expected)


# Going on exactly


def future(replay: DecomposedReplay) -> list[np.ndarray]:
    """Everything that a replay does next."""
    found: list[Any] = []
    for seed in (7, 8):
        filled(replay, 6, seed)
        replay.fit(3)
        found += [*replay.sample(9), list(replay.metrics().items()), len(replay), replay.updates]
    return [np.array(part) for part in found]


@pytest.mark.parametrize("capacity", [400, 30])
@pytest.mark.parametrize("method", ["base", "difference", "exact", "rudder", "ircr", "uniform", "dense"])
def test_a_replay_goes_on_exactly_from_its_state(method: str, capacity: int) -> None:
    replay, other = (replay_of(method, capacity=capacity) for _ in range(2))
    filled(replay, 14)
    replay.fit(4)
    replay.sample(5)
    replay.fit(2)
    filled(replay, 2, seed=3)
    file = io.BytesIO()
    np.savez(file, **replay.state())
    file.seek(0)
    expected = future(replay)
    other.restore(np.load(file))
    for found, wanted in zip(future(other), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_state_of_a_replay_with_few_steps_is_small() -> None:
    replay = replay_of("uniform", capacity=100_000)
    filled(replay, 3)
    assert sum(array.nbytes for array in replay.state().values()) < 10_000


def test_random_numbers_come_from_the_seed() -> None:
    def drawn(seed: int) -> np.ndarray:
        replay = replay_of("rrd", seed=seed)
        filled(replay)
        replay.fit(1)
        return np.concatenate([replay.sample(8).reward, replay.sample(8).reward])

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert not np.allclose(drawn(1), drawn(2))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"method": {**SMALL["rrd"], "hidden": 5}}, "state.step_reward.0.weight"),
        ({"method": "uniform"}, "state.steps"),
        ({"method": "rrd", "capacity": 500}, "capacity"),
    ],
)
def test_the_state_of_another_kind_of_replay_is_refused_and_nothing_is_taken_over(
    arguments: dict[str, Any], name: str
) -> None:
    replay, other = replay_of("rrd"), replay_of(**arguments)
    filled(replay)
    assert f"whose '{name}' is not that of this replay" in refusal(lambda: other.restore(replay.state()))
    assert other.episodes == len(other) == 0


# Bad input

ONE = next(episodes(1, length=2))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"method": "diastr"}, "Did you mean 'diaster'?"),
        ({"method": {"name": "rrd", "subsets": 3}}, "unknown setting in the call 'method.subsets'"),
        ({"method": {"name": "rrd", "subset": 0}}, "method.subset=0 is too small"),
        ({"method": {"segments": "all", "n_cuts": 6}}, "method.n_cuts=6 exceeds the horizon 6"),
        ({"method": {"n_cuts": 3}}, "method.n_cuts=3 has no effect on sampled segments"),
        (
            {"method": {"segments": "all", "segment_length": 2}},
            "method.segment_length=2 has no effect on whole episodes",
        ),
        ({"method": 3}, "method=3 was given; give its name, or a table of its settings"),
        ({"device": "tpu"}, "the device 'tpu' was given; give 'auto', 'cpu' or 'gpu'"),
        ({"horizon": 0}, "horizon=0 was given"),
        ({"horizon": 2.5}, "horizon=2.5 was given; it has to be a whole number"),
        ({"capacity": 13}, "capacity=13 is too small for episodes of 6 steps; it has to be at least 14"),
        ({"capacity": 10**13}, "use a smaller capacity"),
        ({"seed": -1}, "seed=-1 leaves the range"),
        ({"observation_space": spaces.Dict({"a": OBS})}, "FlattenObservation"),
        ({"observation_space": spaces.Box(0, 255, (4, 4, 3), np.uint8)}, "shows images"),
        ({"action_space": spaces.MultiBinary(11)}, "2,048"),
    ],
)
def test_a_replay_that_cannot_be_made_is_refused_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    usual = {"observation_space": OBS, "action_space": ACTIONS, "horizon": HORIZON, "capacity": 400}
    assert sentence in refusal(lambda: DecomposedReplay(**{**usual, **arguments}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"episode_return": float("nan")}, "an episode with the return nan"),
        ({"episode_return": 1e19}, "at most 1e+18"),
        ({"obs": ONE.obs * np.nan}, "a number that is not finite"),
        ({"action": ONE.action * np.inf}, "a number that is not finite"),
        ({"obs": ONE.obs[1:]}, "2 observations and 2 actions"),
        ({"action": ONE.action[:0], "obs": ONE.obs[:1]}, "at least one action"),
        ({"obs": ONE.obs[:, 1:]}, "observations have 3 and actions 2"),
        ({"obs": np.zeros((9, 3)), "action": np.zeros((8, 2))}, "an episode of 8 steps was given, and horizon=6"),
    ],
)
def test_an_episode_that_would_harm_is_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    replay = replay_of("uniform")
    assert sentence in refusal(lambda: replay.add_episode(ONE._replace(**change)))
    assert replay.episodes == len(replay) == 0


def test_misuse_is_a_sentence() -> None:
    replay = replay_of("rrd")
    assert "make the replay with in_pieces=True" in refusal(lambda: replay.add(ONE.obs, ONE.action, None, True))
    for obs, action, what in (
        ([[1.0, 2.0], [3.0]], ONE.action, "observations"),
        (ONE.obs.astype(str), ONE.action, "observations"),
        (ONE.obs, None, "actions"),
    ):
        assert f"{what} were given that are no table of numbers" in refusal(partial(replay.add, obs, action, 1.0, True))
    assert "those of the environment have the shape (3,)" in refusal(
        lambda: replay.add(np.zeros((3, 2)), [], 1.0, True)
    )
    assert "have the shape (2,)" in refusal(lambda: replay.add(ONE.obs, np.zeros((2, 3)), 1.0, True))
    assert "0 episodes have ended" in refusal(lambda: replay.sample(3))
    filled(replay, 1)
    assert "a fit needs 2" in refusal(lambda: replay.fit(1))
    filled(replay, 1)
    assert "'rrd' has not been fitted yet" in refusal(lambda: replay.sample(3))
    replay.fit(1)
    assert "0 draws" in refusal(lambda: replay.sample(0))
    assert "give next_obs as well" in refusal(lambda: replay.rewards(ONE.obs[:2], ONE.action))
    discrete = DecomposedReplay(OBS, spaces.Discrete(3), HORIZON, SMALL["ircr"], capacity=50)
    assert "it has 0 to 2" in refusal(lambda: discrete.add(ONE.obs, [0, 3], 1.0, True))
    for _ in range(2):
        discrete.add(ONE.obs, [0, 1], 1.0, True)
    assert "does not go with n-step returns" in refusal(lambda: discrete.draw(3, n_steps=2))
    assert "depend on more than a single step" in refusal(lambda: discrete.rewards(ONE.obs[:2], [0, 1]))
    dense = replay_of("dense")
    assert "give hidden_reward" in refusal(lambda: dense.add_episode(ONE._replace(hidden_reward=None)))


def test_a_decomposer_that_has_diverged_is_reported(toy: Callable[..., DecomposedReplay]) -> None:
    replay = toy(label=None, reward=lambda state, steps: jnp.full(steps.time.shape, jnp.nan))
    filled(replay)
    replay.fit(1)
    assert "its nets have diverged" in refusal(lambda: replay.sample(3))

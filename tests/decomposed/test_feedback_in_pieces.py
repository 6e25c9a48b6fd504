"""The replay for other learners where numbers are several per episode, missing, or come later."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from all_settings import refusal
from replays import HORIZON, SMALL, by_obs, episodes, filled, replay_of
from toy_methods import make_counting

from diaster import DecomposedReplay
from diaster.config import METHODS
from diaster.replay.store import Steps
from diaster.types import Episode

METHODS_OF_RETURNS = [name for name in SMALL if name != "dense"]
UNIFORM = {"name": "uniform", "return_scale": 1.0}


def pieces(method: str | dict[str, Any], **arguments: Any) -> DecomposedReplay:
    return replay_of(method, in_pieces=True, **arguments)


def add(replay: DecomposedReplay, episode: Episode, **told: Any) -> int:
    """As a caller does; the return is None unless it is told."""
    action = replay.spec.to_env(episode.action)
    told = {"episode_return": None, **told}
    return replay.add(episode.obs, action, terminated=episode.terminated, **told)


def rewards_by_step(replay: DecomposedReplay, n: int = 600) -> dict[bytes, float]:
    """The rewards of all steps that are drawn, in the environment's units."""
    batch = replay.sample(n)
    return {
        np.float32(obs).tobytes(): reward * replay.scale for obs, reward in zip(batch.obs, batch.reward, strict=True)
    }


# Numbers that come later


@pytest.mark.parametrize("method", METHODS_OF_RETURNS)
def test_numbers_that_come_later_and_out_of_order_do_what_they_do_in_time(method: str) -> None:
    prompt, tardy = pieces(method), pieces(method)
    given = list(episodes(8))
    for episode in given:
        add(prompt, episode, episode_return=episode.episode_return)
    numbers = [add(tardy, episode) for episode in given]
    assert numbers == list(range(8)) and tardy.waiting == [(number, 0) for number in numbers]
    for number in (3, 0, 7, 1, 6, 2, 5, 4):
        assert tardy.give_feedback(number, given[number].episode_return)
    assert tardy.waiting == []
    prompt.fit(2)
    tardy.fit(2)
    one, other = prompt.sample(50), tardy.sample(50)
    if method != "ircr":  # which keeps its elite in the order in which they came
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_allclose(other.reward, one.reward, rtol=1e-3, atol=1e-4)
    assert tardy.scale == pytest.approx(prompt.scale)


@pytest.mark.parametrize("method", ["diaster", "rrd", "rd", "base"])
def test_an_episode_that_waits_feeds_the_learner_and_not_the_decomposer(method: str) -> None:
    def fitted(waiting: Episode) -> DecomposedReplay:
        replay = pieces(method)
        for episode in episodes(6):
            add(replay, episode, episode_return=episode.episode_return)
        add(replay, waiting)
        replay.fit(3)
        return replay

    one, other = (next(episodes(1, seed, 5)) for seed in (50, 51))
    first, second = fitted(one), fitted(other)
    probe = next(episodes(1, 9, 6))
    action = first.spec.to_env(probe.action)
    found = [replay.rewards(probe.obs[:-1], action, probe.obs[1:]) for replay in (first, second)]
    np.testing.assert_array_equal(*found)
    assert {obs.tobytes() for obs in one.obs[:-1]} <= set(rewards_by_step(first))
    before = found[0]
    assert first.give_feedback(6, 40.0)
    first.fit(3)
    second.fit(3)
    after = [replay.rewards(probe.obs[:-1], action, probe.obs[1:]) for replay in (first, second)]
    assert not np.allclose(*after) and not np.allclose(after[0], before)


def test_a_method_that_shares_out_numbers_draws_no_step_that_waits_for_one() -> None:
    replay = pieces(UNIFORM)
    given = list(episodes(3, length=4))
    for episode, told in zip(given, (4.0, 8.0, None), strict=True):
        add(replay, episode, episode_return=told)
    known = by_obs(given)
    assert {known[obs][0].episode_return for obs in rewards_by_step(replay)} == {e.episode_return for e in given[:2]}
    replay.give_feedback(2, 12.0)
    found = rewards_by_step(replay)
    for episode, share in zip(given, (1.0, 2.0, 3.0), strict=True):
        assert [found[obs.tobytes()] for obs in episode.obs[:-1]] == pytest.approx([share] * 4)


def test_feedback_for_an_episode_that_has_left_changes_nothing() -> None:
    replay = pieces(UNIFORM, capacity=2 * (HORIZON + 1))
    first, *others = episodes(3, length=HORIZON)
    assert add(replay, first) == 0
    for episode in others:
        add(replay, episode, episode_return=6.0)
    before = replay.state()
    assert replay.waiting == [] and not replay.give_feedback(0, 100.0)
    for name, array in replay.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_numbers_are_counted_before_there_is_enough_to_learn_from() -> None:
    replay = pieces("rrd")
    for episode in episodes(3, length=3):
        add(replay, episode)
    assert not replay.has_enough
    assert "0 numbers of feedback are stored, and a fit needs 2" in refusal(lambda: replay.fit(1))
    assert "0 numbers of feedback are stored, and rewards" in refusal(lambda: replay.sample(1))
    replay.give_feedback(2, 1.0)
    assert not replay.has_enough
    replay.give_feedback(0, 2.0)
    assert replay.has_enough
    replay.fit(1)
    assert replay.sample(4).reward.shape == (4,)


def test_the_fit_is_judged_by_late_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def reward(state: Any, steps: Steps) -> jax.Array:
        return jnp.where(state.updates > 0, steps.episode_return / steps.length, 0.0)

    factory = METHODS["uniform"]._replace(factory="toy_methods:make_given")
    make = lambda settings, horizon: make_counting(label=None, reward=reward)  # noqa: E731
    monkeypatch.setattr("toy_methods.make_given", make, raising=False)
    monkeypatch.setitem(METHODS, "uniform", factory)
    replay = pieces("uniform")
    for episode in episodes(3):
        add(replay, episode, episode_return=episode.episode_return)
    replay.fit(1)
    numbers = [add(replay, episode) for episode in episodes(6, 1)]
    replay.fit(1)
    assert "fit_r2" not in replay.metrics()
    for number in numbers:
        replay.give_feedback(number, float(number**2))
    replay.fit(1)
    assert replay.metrics()["fit_r2"] == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["rrd", "difference", "exact", "rudder", "ircr", "uniform"])
@pytest.mark.parametrize("capacity", [400, 40])
def test_a_replay_whose_numbers_are_to_come_goes_on_exactly_from_its_state(method: str, capacity: int) -> None:
    replay, other = (pieces(method, capacity=capacity) for _ in range(2))
    for number, episode in enumerate(episodes(12, length=4)):
        marks = [(2, 1.0), (4, None)] if number % 2 else [(4, float(number))]
        add(replay, episode, spans=marks)
    replay.fit(2)
    replay.sample(3)
    file = io.BytesIO()
    np.savez(file, **replay.state())
    file.seek(0)
    other.restore(np.load(file))
    assert other.waiting == replay.waiting and (11, 1) in other.waiting
    found = []
    for each in (replay, other):
        drawn = each.sample(20)
        each.fit(1)
        assert each.give_feedback(11, -3.0, span=1)
        each.fit(2)
        number = add(each, next(episodes(1, 5)))
        assert number == 12
        each.give_feedback(number, 2.0)
        each.fit(1)
        found.append([*drawn, *each.sample(20), list(each.metrics().items()), each.waiting, len(each)])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(two))


def test_a_state_from_before_there_were_pieces_is_taken() -> None:
    replay, other = replay_of("uniform"), replay_of("uniform")
    filled(replay, 5)
    state = replay.state()
    state["counts"] = state["counts"][:3]
    other.restore(state)
    filled(other, 1)
    assert other.episodes == 6 and len(other) > len(replay)


def test_a_state_is_that_of_a_replay_with_feedback_of_the_same_kind() -> None:
    plain, in_pieces, known = replay_of("rrd"), pieces("rrd"), replay_of("rrd", known_rewards=True)
    for replay, other, name in (
        (plain, in_pieces, "store.rated"),
        (in_pieces, plain, "store.rated"),
        (plain, known, "store.known"),
        (known, plain, "store.known"),
    ):
        assert f"whose '{name}' is not that" in refusal(lambda r=replay, o=other: o.restore(r.state()))


# Several numbers per episode, and rewards of which a part is known


def test_each_number_is_for_the_steps_of_its_span() -> None:
    replay = pieces(UNIFORM)
    one, other = episodes(2, length=6)
    add(replay, one, spans=[(2, 8.0), (3, None), (6, 9.0)])
    add(replay, other, spans=[(4, 2.0)])  # nobody has said anything of the last two steps
    assert replay.waiting == [(0, 1), (1, 1)]
    found = rewards_by_step(replay)
    assert [found.get(obs.tobytes()) for obs in one.obs[:-1]] == [4.0, 4.0, None, 3.0, 3.0, 3.0]
    assert [found.get(obs.tobytes()) for obs in other.obs[:-1]] == [0.5, 0.5, 0.5, 0.5, None, None]
    replay.give_feedback(0, -7.0, span=1)
    replay.give_feedback(1, 10.0, span=1)
    found = rewards_by_step(replay)
    assert [found[obs.tobytes()] for obs in one.obs[2:4]] == [-7.0, 3.0]
    assert [found[obs.tobytes()] for obs in other.obs[3:6]] == [0.5, 5.0, 5.0]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_is_known_passes_through_and_the_rest_is_decomposed(in_pieces: bool) -> None:
    replay = replay_of(UNIFORM, in_pieces=in_pieces, known_rewards=True)
    one, other = episodes(2, length=4)
    add(replay, one, episode_return=10.0, known_reward=[1.0, 2.0, 3.0, 0.0])
    add(replay, other, episode_return=None if in_pieces else 8.0, known_reward=np.ones(4))
    if in_pieces:
        replay.give_feedback(1, 8.0)
    found = rewards_by_step(replay)
    assert [found[obs.tobytes()] for obs in one.obs[:-1]] == [2.0, 3.0, 4.0, 1.0]
    assert [found[obs.tobytes()] for obs in other.obs[:-1]] == [2.0] * 4


@pytest.mark.parametrize("method", METHODS_OF_RETURNS)
def test_every_method_takes_spans(method: str) -> None:
    replay = pieces(method)
    for number, episode in enumerate(episodes(6, length=5)):
        add(replay, episode, spans=[(2, float(number)), (5, -1.0)])
    replay.fit(2)
    batch = replay.sample(64)
    assert np.isfinite(batch.reward).all() and batch.reward.std() > 0


# Bad input


def test_feedback_that_cannot_be_taken_is_refused_with_a_sentence_and_changes_nothing() -> None:
    replay = pieces("uniform")
    [episode] = episodes(1, length=4)
    add(replay, episode, spans=[(1, None), (4, 2.0)])
    before = replay.state()
    for arguments, sentence in (
        ((1, 2.0), "feedback for episode 1 was given, and no episode has that number"),
        ((-1, 2.0), "no episode has that number"),
        (("a", 2.0), "no episode has that number"),
        ((0.0, 2.0), "no episode has that number"),
        ((0, 2.0, True), "that has the spans 0 to 1"),
        ((0, "a"), "feedback of 'a' was given"),
        ((0, 2.0, 2), "that has the spans 0 to 1"),
        ((0, 2.0, 1), "span 1 of episode 0 has its feedback already"),
        ((0, float("nan")), "feedback of nan was given; it has to be a finite number"),
        ((0, None), "feedback of None was given"),
        ((0, 1e19), "at most 1e+18"),
    ):
        assert sentence in refusal(lambda given=arguments: replay.give_feedback(*given))
    for name, array in replay.state().items():
        np.testing.assert_array_equal(array, before[name])
    assert replay.give_feedback(0, 2.0)
    assert "give it once" in refusal(lambda: replay.give_feedback(0, 2.0))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"spans": [(3, 1.0), (2, 1.0)]}, "whole numbers that rise"),
        ({"spans": [(0, 1.0)]}, "whole numbers that rise"),
        ({"spans": [(1.5, 1.0)]}, "whole numbers that rise"),
        ({"spans": [(5, 1.0)]}, "the episode has 4"),
        ({"spans": [1.0, 2.0]}, "spans of another form"),
        ({"spans": [(2, "a")]}, "spans of another form"),
        ({"spans": [(4, 1.0)], "episode_return": 1.0}, "give None as its return"),
        ({"spans": [(4, 1e19)]}, "a span with the number 1e+19"),
        ({"episode_return": "a"}, "the return 'a' was given"),
        ({"known_reward": np.ones(4)}, "make the replay with known_rewards=True"),
    ],
)
def test_spans_that_cannot_be_are_refused_with_a_sentence(told: dict[str, Any], sentence: str) -> None:
    replay = pieces("uniform")
    assert sentence in refusal(lambda: add(replay, next(episodes(1, length=4)), **told))
    assert replay.episodes == len(replay) == 0


def test_a_replay_without_pieces_or_known_rewards_says_how_to_have_them() -> None:
    [episode] = episodes(1, length=4)
    plain, known = replay_of("uniform"), replay_of("uniform", known_rewards=True)
    filled(plain, 1)
    assert "the return 'a' was given" in refusal(lambda: add(plain, episode, episode_return="a"))
    how = "make the replay with in_pieces=True"
    for wrong in (
        lambda: add(plain, episode),
        lambda: add(plain, episode, spans=[(4, 1.0)]),
        lambda: plain.give_feedback(0, 1.0),
    ):
        assert how in refusal(wrong)
    assert "give one for each step" in refusal(lambda: add(known, episode, episode_return=1.0))
    for bad in (np.ones(3), np.full(4, np.nan)):
        told = {"episode_return": 1.0, "known_reward": bad}
        assert "a finite number for each step" in refusal(lambda told=told: add(known, episode, **told))
    assert "'ircr' are relative" in refusal(lambda: replay_of("ircr", known_rewards=True))

"""What an update looks at where numbers are for a few steps each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from diaster.config import DiasterConfig, IrcrConfig, RdConfig, RrdConfig, RudderConfig, UniformConfig
from diaster.decomposers import make_decomposer
from diaster.decomposers.spans import MOST_SPANS, settings_for_spans
from diaster.replay import store as replay
from diaster.replay.rated import rated_parts
from diaster.types import EnvSpec, Episode, Feedback, Spans

FITTED: list[Any] = [DiasterConfig(), DiasterConfig(segments="all"), RrdConfig(), RdConfig(), RudderConfig()]


@pytest.mark.parametrize("settings", [*FITTED, IrcrConfig(), UniformConfig()])
@pytest.mark.parametrize("horizon", [1, 10, 1000])
def test_spans_as_long_as_episodes_leave_the_settings_as_they_are(settings: Any, horizon: int) -> None:
    assert settings_for_spans(settings, horizon, horizon) is settings


@pytest.mark.parametrize(
    ("settings", "longest", "spans", "of_each"),
    [
        (DiasterConfig(), 1, 256, (1, 1)),
        (DiasterConfig(), 10, 28, (4, 4)),  # three segments of four steps, or four where the grid cuts one in two
        (DiasterConfig(), 64, 4, (4, 16)),
        (DiasterConfig(), 500, 4, (4, 16)),
        (DiasterConfig(segment_length=8, batch_episodes=1), 3, 43, (3, 2)),
    ],
)
def test_sampled_segments_of_more_spans_make_up_as_many_steps(
    settings: DiasterConfig, longest: int, spans: int, of_each: tuple[int, int]
) -> None:
    found = settings_for_spans(settings, 1000, longest)
    assert (found.batch_episodes, found.segment_length, found.segments_per_episode) == (spans, *of_each)


def test_subsets_of_more_spans_make_up_as_many_steps() -> None:
    found = settings_for_spans(RrdConfig(), 1000, 10)
    assert (found.batch_episodes, found.subset) == (28, 10)
    found = settings_for_spans(RrdConfig(unbiased=True), 1000, 1)
    assert (found.batch_episodes, found.subset) == (256, 2)
    assert settings_for_spans(RrdConfig(), 1000, 100) == RrdConfig()


@pytest.mark.parametrize("settings", [RdConfig(), RudderConfig(), DiasterConfig(segments="all")])
def test_whole_spans_make_up_whole_episodes_up_to_a_limit(settings: Any) -> None:
    assert settings_for_spans(settings, 1000, 500).batch_episodes == 2 * settings.batch_episodes
    assert settings_for_spans(settings, 1000, 999).batch_episodes == 2 * settings.batch_episodes
    assert settings_for_spans(settings, 1000, 1).batch_episodes == MOST_SPANS


def test_a_batch_that_was_larger_stays_so() -> None:
    assert settings_for_spans(RdConfig(batch_episodes=300), 1000, 1).batch_episodes == 300


@pytest.mark.parametrize("settings", FITTED)
@pytest.mark.parametrize("longest", [1, 7, 50, 500])
def test_an_update_costs_about_the_same(settings: Any, longest: int) -> None:
    found = settings_for_spans(settings, 1000, longest)
    # No more cells than before, but for the halves of segments that a grid may cut off, and spans that do not divide.
    assert found.cost(longest).steps <= 2 * settings.cost(1000).steps


def spec(horizon: int) -> EnvSpec:
    return EnvSpec("Made-up", 2, 1, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), horizon)


def test_an_elite_of_spans_makes_up_as_many_episodes() -> None:
    decomposer = make_decomposer(IrcrConfig(elite_episodes=2), 10, longest_span=4)
    elite = decomposer.init(jax.random.key(0), spec(10)).elite
    assert elite.obs.shape == (2 * 3, 4 + 1, 2)
    whole = make_decomposer(IrcrConfig(elite_episodes=2), 10)
    assert whole.init(jax.random.key(0), spec(10)).elite.obs.shape == (2, 10 + 1, 2)


def test_spans_without_a_number_have_no_credit_that_others_are_compared_with() -> None:
    feedback = Feedback("environment")
    spans = Spans(np.array([2, 4, 6]), np.array([6.0, np.nan, 8.0]))  # 3 and 4 for a step
    episode = Episode(np.zeros((7, 2), np.float32), np.zeros((6, 1), np.float32), 0.0, False, spans=spans)
    block = replay.make_block([episode], 16, 15, 2, 1, feedback)
    store = replay.insert(replay.init_store(32, 2, 1, feedback), block)
    decomposer = make_decomposer(IrcrConfig(elite_episodes=1), 6)
    seen = replay.make_block(rated_parts(episode), 16, 15, 2, 1, feedback)
    state = decomposer.ingest(decomposer.init(jax.random.key(0), spec(6)), store, seen)
    assert (float(state.low), float(state.high)) == (3.0, 4.0)
    assert decomposer.sample is not None
    drawn = decomposer.sample(state, store, jax.random.key(1), 64)
    assert set(np.asarray(drawn.episode_return).tolist()) == {6.0, 8.0}


def test_the_variance_penalty_fades_with_the_numbers_that_are_stored() -> None:
    feedback = Feedback("environment")
    spans = Spans(np.array([2, 4, 6]), np.array([1.0, np.nan, 2.0]))
    episode = Episode(np.zeros((7, 2), np.float32), np.zeros((6, 1), np.float32), 0.0, False, spans=spans)
    store = replay.init_store(32, 2, 1, feedback)
    store = replay.insert(store, replay.make_block([episode] * 2, 16, 15, 2, 1, feedback))
    decomposer = make_decomposer(DiasterConfig(hidden=4, penalty_episodes=2), 6)
    assert decomposer.draw is not None
    batch = decomposer.draw(decomposer.init(jax.random.key(0), spec(6)), store, jax.random.key(1))
    assert float(batch.penalty_share) == 0.5  # two by four numbers, not by six spans

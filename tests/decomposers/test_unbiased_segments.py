"""The loss of sampled segments without what their draw adds to it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_precision import float64
from jax import jit

from diaster.config import DiasterConfig, build_config, validate
from diaster.decomposers import sub_trajectory
from diaster.errors import DiasterError
from diaster.nn import nets
from diaster.nn.nets import GRU
from diaster.replay.rows import draw_segments, rows_of_segments

HIDDEN, INPUTS, N_DRAWS = 3, 2, 20_000


def random_net(seed: int) -> sub_trajectory.SubReward:
    rng = np.random.default_rng(seed)

    def layer(n_in: int, n_out: int) -> nets.Linear:
        return nets.Linear(rng.normal(size=(n_in, n_out)), rng.normal(size=n_out))

    return sub_trajectory.SubReward(GRU(layer(INPUTS, 3 * HIDDEN), layer(HIDDEN, 3 * HIDDEN)), layer(HIDDEN, 1))


def losses(config: DiasterConfig, episode: np.ndarray, horizon: int) -> np.ndarray:
    """The loss of many draws of segments of one episode, whose return the net nearly explains."""
    alone = np.ones((1, len(episode)), bool)
    explained = sub_trajectory.reward_differences(random_net(0), "cumulative", jnp.asarray(episode)[None], alone).sum()
    length = np.int32(len(episode))
    n_segments, segment_length = config.segments_per_episode, config.segment_length

    def loss(key: jax.Array) -> jax.Array:
        first, end = draw_segments(key, length, segment_length, n_segments, horizon)
        rows = rows_of_segments(first[None], end[None], segment_length)
        start = np.broadcast_to(np.arange(segment_length)[:, None] == 0, rows.step.shape)
        batch = sub_trajectory.Batch(jnp.asarray(episode)[rows.step], rows, start, explained[None], length[None])
        return sub_trajectory.sub_trajectory_loss(random_net(0), config, batch)[0]

    return np.asarray(jit(jax.vmap(loss))(jax.random.split(jax.random.key(0), N_DRAWS)))


def mean_loss_of_all_segments(config: DiasterConfig, episode: np.ndarray, horizon: int) -> float:
    """What the loss would be if every segment of a grid were looked at, over the phases of the grid."""
    whole = DiasterConfig(**{**vars(config), "segments_per_episode": len(episode) + 1, "unbiased": False})
    return float(losses(whole, episode, horizon).mean())


@pytest.mark.parametrize(("segment_length", "n_segments"), [(1, 4), (2, 3)])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_the_unbiased_loss_is_that_of_all_segments_in_expectation(
    segment_length: int, n_segments: int, loss: str
) -> None:
    episode = np.random.default_rng(1).normal(size=(40, INPUTS))
    settings = {"segment_length": segment_length, "segments_per_episode": n_segments, "loss": loss}
    make = partial(DiasterConfig, hidden=HIDDEN, variance_penalty=0.0, **settings)
    far_off = {}
    with float64():
        whole = mean_loss_of_all_segments(make(), episode, 40)
        for unbiased in (True, False):
            found = losses(make(unbiased=unbiased), episode, 40)
            far_off[unbiased] = abs(found.mean() - whole) / (found.std(ddof=1) / np.sqrt(N_DRAWS))
    assert far_off[True] < 3.0
    assert far_off[False] > 10.0  # the draws are enough to tell a bias


def test_where_all_segments_are_drawn_or_there_is_but_one_nothing_is_taken_out() -> None:
    episode = np.random.default_rng(2).normal(size=(6, INPUTS))
    for steps, n_segments in ((episode, 6), (episode[:1], 4)):
        plain, unbiased = (
            losses(
                DiasterConfig(hidden=HIDDEN, segment_length=2, segments_per_episode=n_segments, unbiased=unbiased),
                steps.astype(np.float32),
                6,
            )[:50]
            for unbiased in (False, True)
        )
        np.testing.assert_allclose(plain, unbiased, rtol=1e-5, atol=1e-6)


def test_it_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(DiasterError, match="no effect on whole episodes"):
        validate(build_config(env="x", method={"segments": "all", "unbiased": True}))
    with pytest.raises(DiasterError, match="at least 2 segments"):
        validate(build_config(env="x", method={"segments_per_episode": 1, "unbiased": True}))

"""RUDDER: return decomposition for delayed rewards (Arjona-Medina et al., NeurIPS 2019).

An LSTM reads an episode of L steps and predicts its return after each of them, g_t from (s_0, a_0) … (s_t, a_t), and
before the first one, g_{−1}, from nothing:

    (g_last − R)² + λ · mean_t (g_t − R)²,    t = −1 … L − 1

What a step changed in the prediction is its reward. What the changes do not add up to is spread evenly, so that the
rewards of an episode sum to its return whatever the net has learnt:

    r̂_t = g_t − g_{t−1} + (R − g_last + g_{−1}) / L

Numbers as in docs/methods/rudder.md:

1. g = unit · (w·h + b), where the unit is the root mean square of the returns seen so far, R/scale. The scale suits
   single steps: without the unit a whole return is far beyond what a head on a bounded state can learn to reach.
2. g_{−1} = unit · b, fitted with the others. With g_{−1} = 0 the first step has all that is expected of an episode.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.config import RudderConfig
from diaster.decomposers import Decomposer, Metrics
from diaster.decomposers.fitting import Average, adam, init_average, n_inputs, net_inputs, with_net
from diaster.decomposers.statistics import (
    Moments,
    Rate,
    add_returns,
    add_rows,
    init_moments,
    init_rate,
    return_scale,
)
from diaster.nn.nets import LSTM, Linear, linear, linear_init, lstm_init, lstm_scan
from diaster.replay.rows import Rows, pack_episodes, sum_by_episode
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_episodes, gather_steps
from diaster.types import EnvSpec


class ReturnNet(NamedTuple):
    """g: a recurrent net and a linear head."""

    cell: LSTM
    head: Linear


class Size(NamedTuple):
    """How large returns are."""

    steps: Array  # [] seen
    square: Array  # [] mean over those steps of their episode's R²


class RudderState(NamedTuple):
    """Everything RUDDER carries between updates."""

    predicted_return: ReturnNet
    optimizer: optax.OptState
    moments: Moments
    rate: Rate
    size: Size
    mean_predicted_return: Average | None = None  # the running average, where there is one


class Batch(NamedTuple):
    """Rows of whole episodes and their returns."""

    inputs: Array  # [T, W, I]
    rows: Rows
    target: Array  # [B] scaled returns
    length: Array  # [B]


def add_sizes(size: Size, block: EpisodeBlock) -> Size:
    """Take in a block's returns. Episodes count by their length, as they are drawn."""
    length = jnp.asarray(block.length)
    steps = size.steps + length.sum()
    gained = (length * (block.episode_return**2 - size.square)).sum()
    return Size(steps, size.square + gained / jnp.maximum(steps, 1.0))


def predict_return(net: ReturnNet, unit: Array, inputs: Array, start: Array) -> Array:
    """g_t, from an episode's steps up to t.  # [T, W]"""
    return unit * linear(net.head, lstm_scan(net.cell, inputs, start))[..., 0]


def predict_before(net: ReturnNet, unit: Array) -> Array:
    """g_{−1}: what the head makes of the state before any step, which is zero.  # []"""
    return unit * net.head.bias[0]


def return_loss(net: ReturnNet, unit: Array, auxiliary_weight: float, batch: Batch) -> tuple[Array, Metrics]:
    """Mean over episodes of (g_last − R)² + λ · mean_t (g_t − R)²: squares are taken before the mean over t."""
    rows = batch.rows
    square = (predict_return(net, unit, batch.inputs, rows.step == 0) - batch.target[rows.episode]) ** 2
    is_last = rows.step == batch.length[rows.episode] - 1
    at_the_end = sum_by_episode(jnp.where(is_last, square, 0.0), rows).mean()
    before = (predict_before(net, unit) - batch.target) ** 2
    on_the_way = ((before + sum_by_episode(square, rows)) / (1 + batch.length)).mean()
    return at_the_end + auxiliary_weight * on_the_way, {"return_loss": at_the_end, "auxiliary_loss": on_the_way}


def redistribute(prediction: Array, at_first: Array, time: Array, length: Array, target: Array) -> Array:
    """Differences of g along each episode, and an even share of what they miss of the return.

    at_first, g_{−1}  # []; all others  # [T, W]
    """
    before = jnp.concatenate([jnp.zeros_like(prediction[:1]), prediction[:-1]])
    difference = prediction - jnp.where(time == 0, at_first, before)
    cell = jnp.arange(prediction.shape[0])[:, None] - time + length - 1  # of the last step of the cell's episode
    final = jnp.take_along_axis(prediction, jnp.clip(cell, 0, prediction.shape[0] - 1), axis=0)
    return difference + (target - final + at_first) / length


def make_rudder(config: RudderConfig, horizon: int) -> Decomposer:
    """RUDDER for episodes of at most `horizon` steps."""
    optimizer, is_averaged = adam(config.learning_rate, config.weight_decay), config.averaging > 0.0

    def init(key: Array, spec: EnvSpec) -> RudderState:
        cell_key, head_key = jax.random.split(key)
        hidden = config.hidden
        net = ReturnNet(
            lstm_init(cell_key, n_inputs(spec.obs_dim, spec.action_dim, config.next_obs), hidden),
            linear_init(head_key, hidden, 1, hidden**-0.5),
        )
        return RudderState(
            predicted_return=net,
            optimizer=optimizer.init(net),
            moments=init_moments(spec.obs_dim),
            rate=init_rate(),
            size=Size(jnp.zeros(()), jnp.zeros(())),
            mean_predicted_return=init_average(net) if is_averaged else None,
        )

    def ingest(state: RudderState, store: EpisodeStore, block: EpisodeBlock) -> RudderState:
        return state._replace(
            moments=add_rows(state.moments, block),
            rate=add_returns(state.rate, block, config.scale_steps),
            size=add_sizes(state.size, block),
        )

    def scale(state: RudderState) -> Array:
        return return_scale(config.return_scale, state.rate)

    def unit(state: RudderState) -> Array:
        return jnp.where(state.size.square > 0.0, jnp.sqrt(state.size.square) / scale(state), 1.0)

    def inputs_of(state: RudderState, steps: Steps) -> Array:
        return net_inputs(state.moments, steps, config.normalize_inputs, config.next_obs)

    def draw(state: RudderState, store: EpisodeStore, key: Array) -> Batch:
        episode = draw_episodes(store, key, config.batch_episodes, config.episode_draw)  # [B]
        length = store.length[episode]
        rows = pack_episodes(length, config.batch_episodes, horizon)  # as many rows as episodes: all find a place
        steps = gather_steps(store, episode[rows.episode], rows.step)
        return Batch(inputs_of(state, steps), rows, store.episode_return[episode] / scale(state), length)

    def update(state: RudderState, batch: Batch) -> tuple[RudderState, Metrics]:
        gradient, metrics = jax.grad(return_loss, has_aux=True)(
            state.predicted_return, unit(state), config.auxiliary_weight, batch
        )
        change, optimizer_state = optimizer.update(gradient, state.optimizer, state.predicted_return)
        net = optax.apply_updates(state.predicted_return, change)
        mean = state.mean_predicted_return
        if mean is not None:
            mean = with_net(mean, net, config.averaging)
        return state._replace(predicted_return=net, optimizer=optimizer_state, mean_predicted_return=mean), metrics

    def label(state: RudderState, steps: Steps) -> Array:
        net = state.predicted_return if state.mean_predicted_return is None else state.mean_predicted_return.net
        prediction = predict_return(net, unit(state), inputs_of(state, steps), steps.time == 0)
        at_first = predict_before(net, unit(state))
        return redistribute(prediction, at_first, steps.time, steps.length, steps.episode_return / scale(state))

    def reward(state: RudderState, steps: Steps) -> Array:
        raise NotImplementedError("RUDDER's rewards depend on the whole episode; `label` has them")

    mean = ["mean_predicted_return"] if is_averaged else []
    saved = ("predicted_return", *mean, "moments", "rate", "size")
    return Decomposer(
        init, ingest, reward, scale, saved, draw, update, label, needs_next_obs=config.next_obs, needs_return=True
    )

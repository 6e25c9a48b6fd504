"""Diaster: difference of implicitly assigned sub-trajectory reward (Lin et al., AAAI 2024).

A recurrent net R̂_sub assigns a reward to any part of an episode so that the parts add up to the return
(eq. 12 of the paper, for any number of cuts),

    (Σ_segments R̂_sub(segment) − R)²,

its differences R̂_d(t) = R̂_sub(τ_{0:t+1}) − R̂_sub(τ_{0:t}), R̂_sub(∅) = 0, are what each step added, and r̂(s, a)
is their regression on the single step (eq. 14).

Generalisations, each with the paper as its neutral setting:

1. `head="cumulative"`: R̂_sub(segment) = Σ_t f(h_t), so that no running total has to live in a bounded state.
   `final` is the paper's w·h_last + b. In both, the differences inside a segment sum to R̂_sub(segment).
2. `segments="sampled"`: a few short segments of an episode stand for all of them; their mean per step is
   compared with R/L. Segments of one step are RRD, all segments are the paper with m ≈ L/segment_length cuts.
3. `variance_penalty`: + λ · Var_t R̂_d over the steps of an episode that were looked at. With `penalty_episodes` = n it
   fades as n / episodes: what many returns determine needs no prior.
4. Inputs are normalised, and returns are divided by a scale taken from those seen so far.
5. `base="linear"`: a reward that is linear in features of a step, in closed form; nets learn what it leaves.
6. `averaging`: r̂ is the running average of the net that is fitted. Batches of a few episodes make the fitted net
   restless, and a policy follows every step reward it is told.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.config import DiasterConfig
from diaster.decomposers import Decomposer, Metrics
from diaster.decomposers.linear_base import (
    EpisodeMeans,
    LinearReward,
    base_metrics,
    init_linear_base,
    linear_and_net,
    returns_for_net,
    with_base_fitted,
)
from diaster.decomposers.statistics import (
    Moments,
    Rate,
    add_returns,
    add_rows,
    init_moments,
    init_rate,
    normalize,
    return_scale,
)
from diaster.errors import DiasterError
from diaster.nn.gru import gru_scan, gru_scan_two_ways
from diaster.nn.nets import GRU, MLP, Linear, gru_init, linear, linear_init, mlp, mlp_init
from diaster.replay.rows import Rows, draw_cuts, draw_segments, pack_episodes, rows_of_segments
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_episodes, gather_steps
from diaster.types import EnvSpec


class SubReward(NamedTuple):
    """R̂_sub: a recurrent net and a linear head."""

    cell: GRU
    head: Linear


class DiasterState(NamedTuple):
    """Everything Diaster carries between updates."""

    sub_reward: SubReward
    step_reward: MLP  # as it is fitted
    mean_step_reward: MLP  # its running average, which is what r̂ is
    updates: Array  # []
    sub_optimizer: optax.OptState
    step_optimizer: optax.OptState
    moments: Moments
    rate: Rate
    base: LinearReward | None = None
    base_means: EpisodeMeans | None = None


class Batch(NamedTuple):
    """Rows of steps and the returns they are measured against."""

    inputs: Array  # [T, W, I]
    rows: Rows
    start: Array  # [T, W] segment starts
    target: Array  # [B] scaled returns, less what the linear base makes of them
    length: Array  # [B]
    penalty_share: Array | None = None  # [] of the variance penalty, where it fades


def reward_differences(net: SubReward, head: str, inputs: Array, start: Array, precision: str = "float32") -> Array:
    """What each step adds to R̂_sub of its segment; a segment's differences sum to its R̂_sub.  # [T, W]"""
    return _differences(net, head, gru_scan(net.cell, inputs, start, precision), start)


def _differences(net: SubReward, head: str, states: Array, start: Array) -> Array:
    values = linear(net.head, states)[..., 0]
    if head == "cumulative":
        return values
    before = jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])
    return values - jnp.where(start, 0.0, before)


def sum_by_episode(values: Array, rows: Rows) -> Array:
    """Sums of values over the valid cells of each episode.  # [B]

    A product with a one-hot matrix and not a scatter: on a GPU a scatter adds in no fixed order.
    """
    one_hot = jax.nn.one_hot(rows.episode, rows.counted.shape[0], dtype=values.dtype)
    return jnp.einsum("tw,twb->b", jnp.where(rows.valid, values, 0.0), one_hot)


def sub_trajectory_loss(net: SubReward, config: DiasterConfig, batch: Batch) -> tuple[Array, Array]:
    """The loss of R̂_sub on a batch, and the differences R̂_d that the step reward is to follow."""
    rows = batch.rows
    if config.segments == "sampled" or config.reward_source == "difference":
        difference = reward_differences(net, config.head, batch.inputs, batch.start, config.precision)
        target = difference  # the very ones that the net is trained on, if any are needed
    else:
        # The paper's differences are those of whole episodes. A step waits for the one before it in its own row only:
        # cut and whole episodes together take the time of one.
        start, whole = batch.start, rows.step == 0
        cut_states, whole_states = gru_scan_two_ways(net.cell, batch.inputs, start, whole, config.precision)
        difference = _differences(net, config.head, cut_states, start)
        target = _differences(net, config.head, whole_states, whole)
    looked_at = jnp.maximum(sum_by_episode(jnp.ones_like(difference), rows), 1.0)
    mean = sum_by_episode(difference, rows) / looked_at
    error = mean - batch.target / batch.length
    if config.loss == "sum":
        error = error * batch.length
    variance = sum_by_episode(difference**2, rows) / looked_at - mean**2
    share = 1.0 if batch.penalty_share is None else batch.penalty_share
    per_episode = error**2 + config.variance_penalty * share * variance
    n_counted = jnp.maximum(rows.counted.sum(), 1)
    return jnp.where(rows.counted, per_episode, 0.0).sum() / n_counted, jax.lax.stop_gradient(target)


def step_loss(net: MLP, batch: Batch, target: Array) -> Array:
    """Mean over all steps of the batch of (r̂(s, a) − R̂_d)²."""
    error = mlp(net, batch.inputs)[..., 0] - target
    return jnp.where(batch.rows.valid, error**2, 0.0).sum() / jnp.maximum(batch.rows.valid.sum(), 1)


def make_diaster(config: DiasterConfig, horizon: int) -> Decomposer:
    """Diaster for episodes of at most `horizon` steps."""
    optimizer = optax.adam(config.learning_rate)
    sampled = config.segments == "sampled"
    n_cuts = 1 if config.n_cuts == "auto" else config.n_cuts
    is_based = config.base == "linear"
    if is_based and config.reward_source == "difference":
        raise DiasterError(
            "method.base=linear goes with rewards of single steps, and method.reward_source=difference has none; "
            "use --method.base none or --method.reward-source step_reward."
        )
    n_rows = max(1, (config.batch_steps or config.batch_episodes * horizon) // horizon)

    def init(key: Array, spec: EnvSpec) -> DiasterState:
        cell_key, head_key, step_key = jax.random.split(key, 3)
        base, base_means = init_linear_base(jax.random.fold_in(key, 3), spec) if is_based else (None, None)
        n_in, hidden = spec.obs_dim + spec.action_dim, config.hidden
        sub_reward = SubReward(gru_init(cell_key, n_in, hidden), linear_init(head_key, hidden, 1, hidden**-0.5))
        step_reward = mlp_init(step_key, (n_in, hidden, hidden, 1))
        return DiasterState(
            sub_reward=sub_reward,
            step_reward=step_reward,
            mean_step_reward=jax.tree.map(jnp.copy, step_reward),  # no array twice: a state may be donated
            updates=jnp.zeros((), jnp.int32),
            sub_optimizer=optimizer.init(sub_reward),
            step_optimizer=optimizer.init(step_reward),
            moments=init_moments(spec.obs_dim),
            rate=init_rate(),
            base=base,
            base_means=base_means,
        )

    def ingest(state: DiasterState, store: EpisodeStore, block: EpisodeBlock) -> DiasterState:
        state = state._replace(moments=add_rows(state.moments, block), rate=add_returns(state.rate, block))
        return with_base_fitted(state, block, lambda steps: net_reward(state, steps) * scale(state), state.updates > 0)

    def scale(state: DiasterState) -> Array:
        return return_scale(config.return_scale, state.rate)

    def inputs_of(state: DiasterState, steps: Steps) -> Array:
        obs = normalize(state.moments, steps.obs) if config.normalize_inputs else steps.obs
        return jnp.concatenate([obs, steps.action], axis=-1)

    def draw(state: DiasterState, store: EpisodeStore, key: Array) -> Batch:
        episode_key, cut_key = jax.random.split(key)
        episode = draw_episodes(store, episode_key, config.batch_episodes, config.episode_draw)  # [B]
        length = store.length[episode]
        keys = jax.random.split(cut_key, config.batch_episodes)
        if sampled:
            first, end = jax.vmap(draw_segments, (0, 0, None, None, None))(
                keys, length, config.segment_length, config.segments_per_episode, horizon
            )
            rows = rows_of_segments(first, end, config.segment_length)
            start = jnp.broadcast_to(jnp.arange(config.segment_length)[:, None] == 0, rows.step.shape)
        else:
            cuts = jax.vmap(draw_cuts, (0, 0, None, None))(keys, length, n_cuts, horizon)  # [B, horizon]
            rows = pack_episodes(length, n_rows, horizon)
            start = cuts[rows.episode, rows.step]
        steps = gather_steps(store, episode[rows.episode], rows.step)
        target = returns_for_net(state.base, store, episode, key) / scale(state)
        share = None
        if config.penalty_episodes:
            share = jnp.minimum(1.0, config.penalty_episodes / jnp.maximum(store.newest, 1))
        return Batch(inputs_of(state, steps), rows, start, target, length, share)

    def corrected(difference: Array, batch: Batch) -> Array:
        """Deviation of the published code: R̂_sub(τ_{0:L}) is replaced by R, so that the targets sum to R."""
        gap = batch.target - sum_by_episode(difference, batch.rows)
        is_last = batch.rows.step == batch.length[batch.rows.episode] - 1
        return difference + jnp.where(is_last, gap[batch.rows.episode], 0.0)

    def update(state: DiasterState, batch: Batch) -> tuple[DiasterState, Metrics]:
        (sub_loss, target), gradient = jax.value_and_grad(sub_trajectory_loss, has_aux=True)(
            state.sub_reward, config, batch
        )
        change, sub_optimizer = optimizer.update(gradient, state.sub_optimizer)
        state = state._replace(sub_reward=optax.apply_updates(state.sub_reward, change), sub_optimizer=sub_optimizer)
        metrics = {"sub_loss": sub_loss}
        if config.reward_source == "step_reward":
            if config.terminal_target == "return" and not sampled:
                target = corrected(target, batch)
            loss, gradient = jax.value_and_grad(step_loss)(state.step_reward, batch, target)
            change, step_optimizer = optimizer.update(gradient, state.step_optimizer)
            step_reward = optax.apply_updates(state.step_reward, change)
            state = state._replace(
                step_reward=step_reward,
                mean_step_reward=_follow(state.mean_step_reward, step_reward, state.updates, config.averaging),
                updates=state.updates + 1,
                step_optimizer=step_optimizer,
            )
            metrics["step_loss"] = loss
        return state, metrics | base_metrics(state.base, state.base_means)

    def net_reward(state: DiasterState, steps: Steps) -> Array:
        return mlp(state.mean_step_reward, inputs_of(state, steps))[..., 0]

    def reward(state: DiasterState, steps: Steps) -> Array:
        return linear_and_net(state.base, net_reward(state, steps), steps, scale(state))

    def label(state: DiasterState, steps: Steps) -> Array:
        # Where the net was trained on short segments, longer prefixes would be extrapolation in length.
        start = steps.time % config.segment_length == 0 if sampled else steps.time == 0
        return reward_differences(state.sub_reward, config.head, inputs_of(state, steps), start)

    nets = ("sub_reward", "step_reward", "mean_step_reward", "updates", "moments", "rate")
    saved = (*nets, *(["base"] if is_based else []))
    needs_history = config.reward_source == "difference"
    return Decomposer(
        init,
        ingest,
        reward,
        scale,
        saved,
        draw,
        update,
        label if needs_history else None,
        needs_next_obs=is_based,
        exact_sum=config.exact_sum,
    )


def _follow(mean: MLP, net: MLP, updates: Array, averaging: float) -> MLP:
    """A running average that forgets its start: over all nets so far until they are many."""
    keep = jnp.minimum(averaging, updates / (updates + 10.0))
    followed: MLP = jax.tree.map(lambda slow, fast: fast + keep * (slow - fast), mean, net)
    return followed

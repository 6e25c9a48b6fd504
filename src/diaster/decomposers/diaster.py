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
   fades as n / episodes: what many returns determine needs no prior. `unbiased` takes what the draw of segments adds
   to the loss out of it, as RRD's variant does.
4. Inputs are normalised, and returns are divided by a scale taken from those seen so far.
5. `base="linear"`: a reward that is linear in features of a step, in closed form; nets learn what it leaves. With
   `mixed` they learn the whole return, and r̂ is a mean of both.
6. `averaging`: r̂ is the running average of the net that is fitted. Batches of a few episodes make the fitted net
   restless, and a policy follows every step reward it is told.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from diaster.config import DiasterConfig
from diaster.decomposers import Decomposer, Metrics
from diaster.decomposers.fitting import adam, follow, n_inputs, net_inputs
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
    return_scale,
)
from diaster.decomposers.sub_trajectory import Batch, SubReward, reward_differences, sub_trajectory_loss
from diaster.nn.nets import MLP, gru_init, linear_init, mlp, mlp_init
from diaster.replay.rows import Rows, draw_cuts, draw_segments, pack_episodes, rows_of_segments, sum_by_episode
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_episodes, gather_steps
from diaster.types import EnvSpec


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


def step_loss(net: MLP, batch: Batch, target: Array) -> Array:
    """Mean over all steps of the batch of (r̂(s, a) − R̂_d)²."""
    error = mlp(net, batch.inputs)[..., 0] - target
    return jnp.where(batch.rows.valid, error**2, 0.0).sum() / jnp.maximum(batch.rows.valid.sum(), 1)


def init_state(
    config: DiasterConfig, optimizer: optax.GradientTransformation, key: Array, spec: EnvSpec
) -> DiasterState:
    """Nets as they begin, and statistics of nothing."""
    cell_key, head_key, step_key = jax.random.split(key, 3)
    is_based = config.base != "none"
    base, base_means = init_linear_base(jax.random.fold_in(key, 3), spec) if is_based else (None, None)
    n_in, hidden = n_inputs(spec.obs_dim, spec.action_dim, config.next_obs), config.hidden
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


def scale_of(config: DiasterConfig, state: DiasterState) -> Array:
    """What returns are divided by.  # []"""
    return return_scale(config.return_scale, state.rate)


def inputs_of(config: DiasterConfig, state: DiasterState, steps: Steps) -> Array:
    """What both nets see of steps.  # […, I]"""
    return net_inputs(state.moments, steps, config.normalize_inputs, config.next_obs)


def net_reward(config: DiasterConfig, state: DiasterState, steps: Steps) -> Array:
    """r̂ of steps by the net alone.  # […]"""
    return mlp(state.mean_step_reward, inputs_of(config, state, steps))[..., 0]


def sampled_segments(config: DiasterConfig, horizon: int, keys: Array, length: Array) -> tuple[Rows, Array]:
    """Some short segments of each episode, a row each, and where segments start.  keys, length  # [B]"""
    first, end = jax.vmap(draw_segments, (0, 0, None, None, None))(
        keys, length, config.segment_length, config.segments_per_episode, horizon
    )
    rows = rows_of_segments(first, end, config.segment_length)
    return rows, jnp.broadcast_to(jnp.arange(config.segment_length)[:, None] == 0, rows.step.shape)


def cut_episodes(config: DiasterConfig, horizon: int, keys: Array, length: Array) -> tuple[Rows, Array]:
    """Whole episodes, end to end in rows of the horizon, and where they are cut.  keys, length  # [B]"""
    n_cuts = 1 if config.n_cuts == "auto" else config.n_cuts
    n_rows = max(1, (config.batch_steps or config.batch_episodes * horizon) // horizon)
    cuts = jax.vmap(draw_cuts, (0, 0, None, None))(keys, length, n_cuts, horizon)  # [B, horizon]
    rows = pack_episodes(length, n_rows, horizon)
    return rows, cuts[rows.episode, rows.step]


def draw_batch(config: DiasterConfig, horizon: int, state: DiasterState, store: EpisodeStore, key: Array) -> Batch:
    """Episodes, the steps of them that an update looks at, and the returns these are measured against."""
    episode_key, cut_key = jax.random.split(key)
    episode = draw_episodes(store, episode_key, config.batch_episodes, config.episode_draw)  # [B]
    length = store.length[episode]
    keys = jax.random.split(cut_key, config.batch_episodes)
    look_at = sampled_segments if config.segments == "sampled" else cut_episodes
    rows, start = look_at(config, horizon, keys, length)
    steps = gather_steps(store, episode[rows.episode], rows.step)
    target = returns_for_net(config.base, state.base, store, episode, key) / scale_of(config, state)
    share = None
    if config.penalty_episodes:
        share = jnp.minimum(1.0, config.penalty_episodes / jnp.maximum(store.n_numbers, 1))
    return Batch(inputs_of(config, state, steps), rows, start, target, length, share)


def ending_in_the_return(difference: Array, batch: Batch) -> Array:
    """Deviation of the published code: R̂_sub(τ_{0:L}) is replaced by R, so that the targets sum to R."""
    gap = batch.target - sum_by_episode(difference, batch.rows)
    is_last = batch.rows.step == batch.length[batch.rows.episode] - 1
    return difference + jnp.where(is_last, gap[batch.rows.episode], 0.0)


def fit_sub_reward(
    config: DiasterConfig, optimizer: optax.GradientTransformation, state: DiasterState, batch: Batch
) -> tuple[DiasterState, Array, Array]:
    """One gradient step of R̂_sub: its loss, and the differences it had before that step, for r̂ to follow."""
    (loss, target), gradient = jax.value_and_grad(sub_trajectory_loss, has_aux=True)(state.sub_reward, config, batch)
    change, sub_optimizer = optimizer.update(gradient, state.sub_optimizer, state.sub_reward)
    sub_reward = optax.apply_updates(state.sub_reward, change)
    return state._replace(sub_reward=sub_reward, sub_optimizer=sub_optimizer), loss, target


def fit_step_reward(
    config: DiasterConfig, optimizer: optax.GradientTransformation, state: DiasterState, batch: Batch, target: Array
) -> tuple[DiasterState, Array]:
    """One gradient step of r̂ towards these differences, and its loss."""
    if config.terminal_target == "return" and config.segments == "all":
        target = ending_in_the_return(target, batch)
    loss, gradient = jax.value_and_grad(step_loss)(state.step_reward, batch, target)
    change, step_optimizer = optimizer.update(gradient, state.step_optimizer, state.step_reward)
    step_reward = optax.apply_updates(state.step_reward, change)
    state = state._replace(
        step_reward=step_reward,
        mean_step_reward=follow(state.mean_step_reward, step_reward, state.updates, config.averaging),
        updates=state.updates + 1,
        step_optimizer=step_optimizer,
    )
    return state, loss


def make_diaster(config: DiasterConfig, horizon: int) -> Decomposer:
    """Diaster for episodes of at most `horizon` steps."""
    assert config.base != "auto", "make_decomposer comes first"
    optimizer = adam(config.learning_rate, config.weight_decay)
    is_based, has_step_reward = config.base != "none", config.reward_source == "step_reward"
    assert has_step_reward or not is_based, "check_together comes first"

    def ingest(state: DiasterState, store: EpisodeStore, block: EpisodeBlock) -> DiasterState:
        state = state._replace(
            moments=add_rows(state.moments, block), rate=add_returns(state.rate, block, config.scale_steps)
        )

        def by_net(steps: Steps) -> Array:
            return net_reward(config, state, steps) * scale_of(config, state)

        return with_base_fitted(config.base, state, block, by_net, state.updates > 0)

    def update(state: DiasterState, batch: Batch) -> tuple[DiasterState, Metrics]:
        state, sub_loss, target = fit_sub_reward(config, optimizer, state, batch)
        metrics = {"sub_loss": sub_loss}
        if has_step_reward:
            state, metrics["step_loss"] = fit_step_reward(config, optimizer, state, batch, target)
        return state, metrics | base_metrics(state.base, state.base_means)

    def reward(state: DiasterState, steps: Steps) -> Array:
        by_net = net_reward(config, state, steps)
        return linear_and_net(config.base, state.base, by_net, steps, scale_of(config, state))

    def label(state: DiasterState, steps: Steps) -> Array:
        # Where the net was trained on short segments, longer prefixes would be extrapolation in length.
        is_short = config.segments == "sampled"
        start = steps.time % config.segment_length == 0 if is_short else steps.time == 0
        return reward_differences(state.sub_reward, config.head, inputs_of(config, state, steps), start)

    nets = ("sub_reward", "step_reward", "mean_step_reward", "updates", "moments", "rate")
    return Decomposer(
        init=partial(init_state, config, optimizer),
        ingest=ingest,
        reward=reward,
        scale=partial(scale_of, config),
        saved=(*nets, *(["base"] if is_based else [])),
        draw=partial(draw_batch, config, horizon),
        update=update,
        label=None if has_step_reward else label,
        needs_next_obs=is_based or config.next_obs,
        exact_sum=config.exact_sum,
    )

"""IRCR: iterative relative credit refinement (Gangwani, Zhou and Peng, NeurIPS 2020).

Nothing is fitted. Every step has the credit c of its episode, relative to all episodes that are kept:

    r̂ = (c − low) / (high − low),    c = R/L  (credit="mean")  or  c = R  (credit="return")

with the bounds over the episodes of the ring and of the elite, the best episodes by return, which outlive the ring.
Half of each of the agent's batches is drawn from the elite.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from diaster.config import IrcrConfig
from diaster.decomposers import Decomposer
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_rated_steps, gather_numbered, rows_of
from diaster.types import EnvSpec

SMALLEST_SPAN = float(np.finfo(np.float32).tiny)  # what is smaller still counts as 0 on some devices


class Elite(NamedTuple):
    """The best episodes so far, whole, best first. Empty places have length 0."""

    obs: Array  # [E, T+1, D]
    action: Array  # [E, T, A]
    length: Array  # [E]
    episode_return: Array  # [E]
    terminated: Array  # [E]


class IrcrState(NamedTuple):
    """Everything IRCR carries between batches."""

    low: Array  # []
    high: Array  # []
    elite: Elite


def init_elite(n_episodes: int, horizon: int, obs_dim: int, action_dim: int) -> Elite:
    """No episode yet, and room for n of them."""
    return Elite(
        obs=jnp.zeros((n_episodes, horizon + 1, obs_dim)),
        action=jnp.zeros((n_episodes, horizon, action_dim)),
        length=jnp.zeros((n_episodes,), jnp.int32),
        episode_return=jnp.zeros((n_episodes,)),
        terminated=jnp.zeros((n_episodes,), bool),
    )


def merge_block(elite: Elite, block: EpisodeBlock) -> Elite:
    """The best of the elite and of a block's episodes; of equal returns the older one stays."""
    n_elite = elite.length.shape[0]
    length = jnp.concatenate([elite.length, jnp.asarray(block.length)])
    episode_return = jnp.concatenate([elite.episode_return, jnp.asarray(block.episode_return)])
    _, chosen = jax.lax.top_k(jnp.where(length > 0, episode_return, -jnp.inf), n_elite)  # [E], equals in their order
    is_new = chosen >= n_elite
    stayed = jax.tree.map(lambda leaf: leaf[jnp.minimum(chosen, n_elite - 1)], elite)
    joined = block_episodes(block, jnp.maximum(chosen - n_elite, 0), elite.action.shape[1])
    merged: Elite = jax.tree.map(
        lambda new, old: jnp.where(is_new.reshape(-1, *(1,) * (old.ndim - 1)), new, old), joined, stayed
    )
    return merged


def block_episodes(block: EpisodeBlock, episode: Array, horizon: int) -> Elite:
    """Some episodes of a block, each with zeros after its end. episode  # [E]"""
    n_actions = jnp.asarray(block.length)
    n_obs = jnp.where(n_actions > 0, n_actions + 1, 0)
    n_rows = rows_of(block)
    first = jnp.cumsum(n_rows) - n_rows
    time = jnp.arange(horizon + 1)
    row = jnp.clip(first[episode, None] + time, 0, block.obs.shape[0] - 1)  # [E, T+1]

    def inside(values: Array, count: Array) -> Array:
        return jnp.where((time < count[episode, None])[..., None], values[row], 0.0)

    return Elite(
        obs=inside(jnp.asarray(block.obs), n_obs),
        action=inside(jnp.asarray(block.action), n_actions)[:, :-1],
        length=n_actions[episode],
        episode_return=jnp.asarray(block.episode_return)[episode],
        terminated=jnp.asarray(block.terminated)[episode],
    )


def draw_elite(elite: Elite, key: Array, n: int) -> Steps:
    """Steps of the elite, each equally likely.  # [n]"""
    end = jnp.cumsum(elite.length)  # [E]
    number = jax.random.randint(key, (n,), 0, jnp.maximum(end[-1], 1))
    episode = jnp.searchsorted(end, number, side="right", method="compare_all")
    episode = jnp.minimum(episode, end.shape[0] - 1)  # only an elite without a step needs it
    length = elite.length[episode]
    time = number - (end - elite.length)[episode]
    return Steps(
        obs=elite.obs[episode, time],
        action=elite.action[episode, time],
        next_obs=elite.obs[episode, time + 1],
        terminal=elite.terminated[episode] & (time == length - 1),
        time=time,
        length=length,
        episode_return=elite.episode_return[episode],
    )


def relative(credit: Array, low: Array, high: Array) -> Array:
    """Credit within its bounds, in [0, 1]; 0 where all credits are alike. Those of episodes not kept are clipped."""
    span = high - low
    differ = span >= SMALLEST_SPAN
    return jnp.where(differ, jnp.clip((credit - low) / jnp.where(differ, span, 1.0), 0.0, 1.0), 0.0)


def make_ircr(config: IrcrConfig, horizon: int) -> Decomposer:
    """IRCR for episodes of at most `horizon` steps."""

    def init(key: Array, spec: EnvSpec) -> IrcrState:
        n_episodes = config.elite_episodes
        if n_episodes == "auto":
            n_episodes = 50 if spec.id.startswith("Humanoid") else 10
        n_episodes *= -(-spec.horizon // horizon)  # of spans, as many as make up these episodes
        elite = init_elite(n_episodes, horizon, spec.obs_dim, spec.action_dim)
        return IrcrState(jnp.zeros(()), jnp.zeros(()), elite)

    def credit_of(episode_return: Array, length: Array) -> Array:
        return episode_return if config.credit == "return" else episode_return / jnp.maximum(length, 1)

    def ingest(state: IrcrState, store: EpisodeStore, block: EpisodeBlock) -> IrcrState:
        elite = merge_block(state.elite, block)
        slots = store.length.shape[0]
        is_live = (jnp.arange(slots) - store.oldest) % slots < store.n_episodes
        if store.rated is not None:
            is_live &= store.rated.is_rated
        is_kept = jnp.concatenate([is_live, elite.length > 0])
        credit = jnp.concatenate(
            [credit_of(store.episode_return, store.length), credit_of(elite.episode_return, elite.length)]
        )
        low = jnp.where(is_kept, credit, jnp.inf).min()
        high = jnp.where(is_kept, credit, -jnp.inf).max()
        is_any = is_kept.any()
        return IrcrState(jnp.where(is_any, low, 0.0), jnp.where(is_any, high, 0.0), elite)

    def reward(state: IrcrState, steps: Steps) -> Array:
        return relative(credit_of(steps.episode_return, steps.length), state.low, state.high)

    def scale(state: IrcrState) -> Array:
        return jnp.ones(())  # r̂ is relative: no number brings it into the environment's units

    def sample(state: IrcrState, store: EpisodeStore, key: Array, n: int) -> Steps:
        elite_key, ring_key = jax.random.split(key)
        best = draw_elite(state.elite, elite_key, n // 2)
        rest = gather_numbered(store, draw_rated_steps(store, ring_key, n - n // 2))
        batch: Steps = jax.tree.map(lambda *parts: jnp.concatenate(parts), best, rest)
        return batch

    return Decomposer(init, ingest, reward, scale, saved=("low", "high"), sample=sample, needs_return=True)

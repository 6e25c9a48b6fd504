"""A step reward that is linear in features of a step, by ridge regression in closed form.

The mean of a linear reward over an episode is the reward of the episode's mean features. So returns per step are
regressed on these means,

    R/L ≈ w · mean_t φ_t + c,    φ = [(s + s′)/2, a, a²],

with more weight on longer episodes, and a penalty λ|w|² on features of deviation 1. A few tens of episodes determine w
where nets need hundreds; what w cannot say is left to a net.

1. Observations enter as the mean of before and after the step. A reward for a distance is one for the mean speed on the
   way; and over an episode the means of s and of s′ hardly differ, so no regression could choose between them.
2. λ is the one with the least error of leave-one-out. "No weights at all" is one of the choices.
3. With `base="linear"`, how much a net adds is measured on episodes before the net has seen them.

With `base="mixed"` nets are fitted to whole returns, as without a base, and r̂ is a weighted mean of both rewards: the
linear one has half of what it explains, the nets have the rest, or more where that would have predicted recent episodes
better before they were seen. The linear one tells which steps pay at once. What a net has learnt from whole episodes
also tells which states good episodes go through, which a discounted sum of right rewards may not see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from diaster.config.fitted import Base
from diaster.decomposers import Metrics
from diaster.decomposers.statistics import INPUT_CLIP, Moments
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, gather_steps, rows_of
from diaster.types import EnvSpec

MOST_EPISODES = 1024  # the last ones; w is fitted to these
MOST_FEATURES = 512  # more are projected to this number, at random
STRENGTHS = tuple(10.0**power for power in range(-6, 2))  # λ per episode
LEAST_FREEDOM = 1e-3  # of a prediction that leaves its episode out; 32 bits cannot tell less
LARGEST_ERROR = 0.95  # of weights that are used, as a share of the error without any
ACTION_DEVIATION = 0.5  # of actions in [−1, 1], roughly, and of their squares
FORGETTING = 0.98  # per episode, whatever its spans, of how well a net adds to w
MIXED = 0.5  # weight of a linear reward that explains everything, beside nets that are fitted to whole returns
LOOKED_AT = 128  # steps of an episode that stand for its mean
EXACT = jax.lax.Precision.HIGHEST  # a GPU would keep 11 bits of the factors

State = TypeVar("State", bound=Any)  # of a method: with `base`, `base_means` and `moments`


class LinearReward(NamedTuple):
    """w and c, and how far a net is to be trusted: all that a step's reward needs."""

    centre: Array  # [F] of features
    deviation: Array  # [F]
    weight: Array  # [F] of features with deviation 1
    constant: Array  # [] the reward at the centre
    net_share: Array  # [] how much of a net's reward is added, or with `mixed` its weight (`share_of_net`)
    projection: Array | None  # [F', F] where there are many features


class EpisodeMeans(NamedTuple):
    """The last episodes, which w is fitted to, and how good it was on them before it knew them."""

    features: Array  # [N, F]
    rate: Array  # [N] returns per step
    length: Array  # [N] 0 where there is none yet
    episodes: Array  # [] ever seen
    explained: Array  # [] share of the variance of R/L that leave-one-out explains
    agreement: Array  # [] of a net's means with what w leaves, and
    power: Array  # [] of a net's means with themselves, over recent episodes


def init_linear_base(key: Array, spec: EnvSpec) -> tuple[LinearReward, EpisodeMeans]:
    """Of no episodes: the reward is 0."""
    n_raw = spec.obs_dim + 2 * spec.action_dim
    n = min(n_raw, MOST_FEATURES)
    reward = LinearReward(
        centre=jnp.zeros(n),
        deviation=jnp.ones(n),
        weight=jnp.zeros(n),
        constant=jnp.zeros(()),
        net_share=jnp.ones(()),
        projection=jax.random.normal(key, (n_raw, n)) * n**-0.5 if n_raw > MOST_FEATURES else None,
    )
    means = EpisodeMeans(
        features=jnp.zeros((MOST_EPISODES, n)),
        rate=jnp.zeros(MOST_EPISODES),
        length=jnp.zeros(MOST_EPISODES),
        episodes=jnp.zeros((), jnp.int32),
        explained=jnp.zeros(()),
        agreement=jnp.zeros(()),
        power=jnp.zeros(()),
    )
    return reward, means


def features_of(reward: LinearReward, steps: Steps) -> Array:
    """φ of steps.  # […, F]"""
    raw = jnp.concatenate([0.5 * (steps.obs + steps.next_obs), steps.action, steps.action**2], axis=-1)
    return raw if reward.projection is None else jnp.matmul(raw, reward.projection, precision=EXACT)


def linear_reward(reward: LinearReward, steps: Steps) -> Array:
    """w · φ + c of steps, in the environment's units.  # […]"""
    return _predicted(reward, features_of(reward, steps))


def linear_and_net(kind: Base, base: LinearReward | None, by_net: Array, steps: Steps, scale: Array) -> Array:
    """r̂ of steps, in the agent's scale: that of the net alone, or of both.  # […]"""
    if base is None:
        return by_net
    linear_share = 1.0 - base.net_share if kind == "mixed" else 1.0
    return linear_share * linear_reward(base, steps) / scale + base.net_share * by_net


def returns_for_net(kind: Base, base: LinearReward | None, store: EpisodeStore, episode: Array, key: Array) -> Array:
    """The returns of stored episodes; with `linear`, less what the linear reward makes of them.  # [B]

    Its mean comes from steps evenly spaced over an episode, with a random phase, and not from those that a net's update
    looks at: the net would learn to make up for which ones were drawn.
    """
    returns, length = store.episode_return[episode], store.length[episode]
    if base is None or kind == "mixed":
        return returns
    phase = jax.random.uniform(jax.random.fold_in(key, 2), (*episode.shape, 1))
    time = jnp.floor((jnp.arange(LOOKED_AT) + phase) * length[..., None] / LOOKED_AT).astype(int)
    steps = gather_steps(store, episode[..., None], jnp.minimum(time, length[..., None] - 1))
    return returns - length * linear_reward(base, steps).mean(axis=-1)


def with_base_fitted(
    kind: Base, state: State, block: EpisodeBlock, net_reward: Callable[[Steps], Array], has_learnt: Array
) -> State:
    """A method's state that has taken in a block's episodes; one without a base as it is.

    net_reward is the net's alone, in the environment's units; moments of the state have these episodes already.
    """
    if state.base is None:
        return state
    steps = steps_of_block(block)[0]
    by_net = net_reward(steps)
    if kind == "mixed":  # what the net adds to the linear reward is how it differs from it
        by_net = by_net - linear_reward(state.base, steps)
    base, means = add_episodes(state.base, state.base_means, block, state.moments, by_net, has_learnt)
    base = base._replace(net_share=share_of_net(kind, means))
    fitted: State = state._replace(base=base, base_means=means)
    return fitted


def share_of_net(kind: Base, means: EpisodeMeans) -> Array:
    """How much of a net's reward is added to the linear one, or with `mixed` its weight: 0 to 1.  # []

    What would have predicted recent episodes best before they were seen. Before any could be judged by it, a net that
    learns what the linear reward leaves is added in full. A mixed one has at least what the linear reward leaves it.
    """
    is_judged = means.power > 0.0
    best = jnp.clip(means.agreement / means.power, 0.0, 1.0)
    if kind == "mixed":
        return jnp.maximum(1.0 - MIXED * means.explained, jnp.where(is_judged, best, 0.0))
    return jnp.where(is_judged, best, 1.0)


def with_net_share(state: State, share: float) -> State:
    """A method's state in whose reward the net has this share; one without a base as it is."""
    if getattr(state, "base", None) is None:
        return state
    net_share = jnp.full_like(state.base.net_share, share)  # of an ensemble each member has one
    shared: State = state._replace(base=state.base._replace(net_share=net_share))
    return shared


def base_metrics(base: LinearReward | None, means: EpisodeMeans | None) -> Metrics:
    """What a run logs of it."""
    return {} if base is None or means is None else {"base_r2": means.explained, "net_share": base.net_share}


def steps_of_block(block: EpisodeBlock) -> tuple[Steps, Array]:
    """Every row of a block as a step, and which rows are steps: the last row of an episode is none."""
    obs, row_episode = jnp.asarray(block.obs), jnp.asarray(block.row_episode)
    length = jnp.asarray(block.length)[jnp.maximum(row_episode, 0)]
    time = jnp.asarray(block.row_step)
    per_episode = jnp.asarray(block.episode_return)[jnp.maximum(row_episode, 0)]
    terminal = jnp.zeros(time.shape, bool)
    steps = Steps(obs, jnp.asarray(block.action), jnp.roll(obs, -1, axis=0), terminal, time, length, per_episode)
    return steps, (row_episode >= 0) & (time < length)


def episode_means(block: EpisodeBlock, values: Array, is_step: Array) -> Array:
    """Means over the steps of each episode of a block. values  # [R, …]; returns  # [E, …]"""
    # Differences of sums so far, and not a scatter: on a GPU a scatter adds in no fixed order. With the mean taken off,
    # the sums keep their digits.
    is_step = is_step.reshape(-1, *[1] * (values.ndim - 1))
    mean = jnp.where(is_step, values, 0.0).sum(axis=0) / jnp.maximum(is_step.sum(), 1)
    so_far = jnp.cumsum(jnp.where(is_step, values - mean, 0.0), axis=0)
    so_far = jnp.concatenate([jnp.zeros_like(so_far[:1]), so_far])
    length = jnp.asarray(block.length)
    n_rows = rows_of(block)
    first = jnp.cumsum(n_rows) - n_rows  # rows of episodes lie end to end
    total = so_far[first + length] - so_far[first]
    return mean + total / jnp.maximum(length, 1).reshape(-1, *[1] * (values.ndim - 1))


def add_episodes(
    reward: LinearReward,
    seen: EpisodeMeans,
    block: EpisodeBlock,
    moments: Moments,
    net_reward: Array,
    has_learnt: Array | bool,
) -> tuple[LinearReward, EpisodeMeans]:
    """Take in a block's episodes, and fit anew.

    moments are those of all observations so far, these included. net_reward  # [R] is that of the block's rows, in the
    environment's units, by a net that has not learnt from them, and that is judged by it once it `has_learnt` at all.
    """
    steps, is_step = steps_of_block(block)
    means = episode_means(block, features_of(reward, steps), is_step)  # [E, F]
    length = jnp.asarray(block.length, jnp.float32)
    is_episode = length > 0
    rate = jnp.asarray(block.episode_return) / jnp.maximum(length, 1.0)
    left = rate - _predicted(reward, means)
    is_judged = is_episode & has_learnt & (seen.episodes > 0)
    is_end = is_judged if block.goes_on is None else is_judged & ~jnp.asarray(block.goes_on)
    seen = _with_net_judged(seen, left, episode_means(block, net_reward, is_step), is_judged, is_end)
    order, n_new = jnp.cumsum(is_episode) - 1, is_episode.sum()
    is_kept = is_episode & (order >= n_new - MOST_EPISODES)
    place = jnp.where(is_kept, (seen.episodes + order) % MOST_EPISODES, MOST_EPISODES)  # beyond the end: dropped
    seen = seen._replace(
        features=seen.features.at[place].set(means, mode="drop"),
        rate=seen.rate.at[place].set(rate, mode="drop"),
        length=seen.length.at[place].set(length, mode="drop"),
        episodes=seen.episodes + n_new.astype(jnp.int32),
    )
    return _fitted(reward, seen, _deviations(reward, moments))


def _predicted(reward: LinearReward, features: Array) -> Array:
    scaled = jnp.clip((features - reward.centre) / reward.deviation, -INPUT_CLIP, INPUT_CLIP)
    return jnp.matmul(scaled, reward.weight, precision=EXACT) + reward.constant


def _with_net_judged(seen: EpisodeMeans, left: Array, net: Array, is_judged: Array, is_end: Array) -> EpisodeMeans:
    """With new episodes: what w leaves of each, and what the net says of it.  # [E]

    Where they are spans, `is_end` says which are the last of their episodes: fifty single steps judge no net.
    """
    later = is_end.sum() - jnp.cumsum(is_end) - ~is_end  # episodes after that of each
    weight = jnp.where(is_judged, FORGETTING**later, 0.0)
    kept = FORGETTING ** is_end.sum()
    return seen._replace(
        agreement=kept * seen.agreement + (weight * left * net).sum(),
        power=kept * seen.power + (weight * net**2).sum(),
    )


def _deviations(reward: LinearReward, moments: Moments) -> Array:
    """Of features over steps, not over episodes: a feature whose means hardly differ is not to have a large weight."""
    obs = jnp.sqrt(moments.deviation / jnp.maximum(moments.rows, 1.0) + 1e-8)
    n_raw = reward.weight.shape[0] if reward.projection is None else reward.projection.shape[0]
    raw = jnp.concatenate([obs, jnp.full(n_raw - obs.shape[0], ACTION_DEVIATION)])
    if reward.projection is None:
        return raw
    return jnp.sqrt(jnp.matmul(raw**2, reward.projection**2, precision=EXACT))


def _fitted(reward: LinearReward, seen: EpisodeMeans, deviation: Array) -> tuple[LinearReward, EpisodeMeans]:
    """w by ridge regression, with the strength that leave-one-out finds best."""
    share = seen.length / jnp.maximum(seen.length.sum(), 1.0)  # [N] weights of episodes, adding up to 1
    n = jnp.maximum((seen.length > 0).sum(), 1)
    centre, constant = (jnp.matmul(share, part, precision=EXACT) for part in (seen.features, seen.rate))
    root = jnp.sqrt(share * n)
    x = root[:, None] * (seen.features - centre) / deviation  # [N, F]
    y = root * (seen.rate - constant)  # [N]
    gram, moment = jnp.matmul(x.T, x, precision=EXACT), jnp.matmul(y, x, precision=EXACT)

    def fit(strength: Array) -> tuple[Array, Array]:
        """w, and the squared error of predictions that each leave out the episode they are for."""
        factor = jax.scipy.linalg.cholesky(gram + strength * n * jnp.eye(gram.shape[0]), lower=True)
        weight = jax.scipy.linalg.cho_solve((factor, True), moment)
        spread = jax.scipy.linalg.solve_triangular(factor, x.T, lower=True)  # [F, N]
        freedom = 1.0 - (spread**2).sum(axis=0) - share
        error = ((y - jnp.matmul(x, weight, precision=EXACT)) / freedom) ** 2
        is_sound = jnp.isfinite(error).all() & (jnp.where(seen.length > 0, freedom, 1.0).min() > LEAST_FREEDOM)
        return weight, jnp.where(is_sound, error.sum(), jnp.inf)

    weights, errors = jax.vmap(fit)(jnp.array(STRENGTHS))
    without = ((y / jnp.maximum(1.0 - share, LEAST_FREEDOM)) ** 2).sum()
    best = errors.argmin()
    pays = errors[best] < LARGEST_ERROR * without
    explained = jnp.where(pays, 1.0 - errors[best] / jnp.maximum(without, 1e-30), 0.0)
    fitted = reward._replace(
        centre=centre,
        deviation=deviation,
        weight=jnp.where(pays, weights[best], 0.0),
        constant=constant,
    )
    return fitted, seen._replace(explained=explained)

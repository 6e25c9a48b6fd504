"""Environments that show vectors or images and take Box or discrete actions, with their rewards delayed."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec

from diaster.envs.creating import Env, created
from diaster.envs.delayed import DelayedReward, delays_of
from diaster.envs.images import SMALLEST, SmallImages, image_of, is_image
from diaster.envs.planar import make_lean
from diaster.envs.source import EnvSource, find_source
from diaster.envs.vector import FirstOf
from diaster.errors import DiasterError
from diaster.types import EPISODIC, EnvSpec, Feedback

MOST_COMBINATIONS = 1000  # of choices that are made at once


def make_env(env: str | GymSpec | EnvSource, horizon: int, feedback: Feedback = EPISODIC, **kwargs: Any) -> Env:
    """The environment as training and evaluation see it: flat observations, a time limit, rewards at the spans' ends.

    Images are small ones, the last few together, also laid flat.

    Where it marks its spans itself, its own rewards are delayed to the end: nothing but evaluation looks at them.
    Further arguments (`render_mode`) go to what makes it.
    """
    if isinstance(env, GymSpec):
        env = EnvSource(env.id, env)
    source = find_source(env) if isinstance(env, str) else env
    made = created(source, horizon, **kwargs)
    make_lean(made)
    return as_learnt(made, source, feedback)


def as_learnt(env: Env, source: EnvSource, feedback: Feedback = EPISODIC) -> Env:
    """An environment with flat observations and rewards at the spans' ends."""
    if is_image(env.observation_space):
        env = SmallImages(env, source.image.side, source.image.frames, source.image.colour)
    else:
        _refuse_unseen(source.name, env.observation_space)
    if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    every = feedback.every if isinstance(feedback.every, int) else None
    return DelayedReward(env, every) if every is not None or None not in delays_of(env) else env


def raw_observation_space(env: Env) -> spaces.Space[Any]:
    """What the environment itself shows, before `make_env` made it flat."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.FlattenObservation | SmallImages):
            return inner.env.observation_space
        inner = inner.env
    return env.observation_space


def describe_env(env: Env, env_id: str, horizon: int) -> EnvSpec:
    """What agents and decomposers have to know of it, or an error if it cannot be learnt here."""
    lanes = env.unwrapped.vector.num_envs if isinstance(env.unwrapped, FirstOf) else 0
    spec = describe_spaces(env.observation_space, env.action_space, env_id, horizon)
    return spec._replace(lanes=lanes, image=image_of(env))


def describe_spaces(observations: spaces.Space[Any], actions: spaces.Space[Any], env_id: str, horizon: int) -> EnvSpec:
    """The same, of an environment of which only the spaces are at hand."""
    obs_dim = int(np.prod(observations.shape or (1,)))
    if obs_dim == 0:
        raise DiasterError(f"'{env_id}' shows nothing; let it show at least one number, which may be always the same.")
    if isinstance(actions, spaces.Discrete):
        return discrete_spec(env_id, obs_dim, int(actions.n), horizon)._replace(first_action=int(actions.start))
    if isinstance(actions, spaces.MultiDiscrete | spaces.MultiBinary):
        return _combined_spec(env_id, obs_dim, actions, horizon)
    if not isinstance(actions, spaces.Box):
        raise DiasterError(
            f"'{env_id}' has actions of the kind {actions}; Box, Discrete, MultiDiscrete and MultiBinary are "
            "supported. Wrap it with gymnasium.wrappers.TransformAction so that it takes one of these."
        )
    low, high = actions.low.astype(np.float32).reshape(-1), actions.high.astype(np.float32).reshape(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise DiasterError(
            f"'{env_id}' has actions without finite bounds ({actions}); wrap it so that low < high are finite numbers, "
            f"e.g. with gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, {actions.shape}))."
        )
    kind = actions.dtype.name if np.issubdtype(actions.dtype, np.integer) else "float32"
    return EnvSpec(env_id, obs_dim, low.size, low, high, tuple(actions.shape), horizon, action_type=kind)


def discrete_spec(env_id: str, obs_dim: int, n_actions: int, horizon: int) -> EnvSpec:
    """An environment with n actions, 0 to n − 1."""
    bounds = np.zeros(n_actions, np.float32), np.ones(n_actions, np.float32)
    return EnvSpec(env_id, obs_dim, n_actions, *bounds, (), horizon, discrete=True)


def _combined_spec(
    env_id: str, obs_dim: int, actions: spaces.MultiDiscrete | spaces.MultiBinary, horizon: int
) -> EnvSpec:
    """Several choices at once: nets choose one of all combinations, where there are not too many."""
    if isinstance(actions, spaces.MultiDiscrete):
        sizes, first = actions.nvec.ravel().tolist(), actions.start.ravel().tolist()
    else:
        sizes, first = [2] * math.prod(actions.shape), [0] * math.prod(actions.shape)
    n_actions = math.prod(sizes)
    if n_actions > MOST_COMBINATIONS:
        raise DiasterError(
            f"'{env_id}' has actions of the kind {actions}, which can be combined in {n_actions:,} ways; at most "
            f"{MOST_COMBINATIONS:,} can be learnt as one choice. Wrap it with gymnasium.wrappers.TransformAction so "
            "that it takes fewer, or a Box with a number for each choice, which the wrapper rounds."
        )
    return discrete_spec(env_id, obs_dim, n_actions, horizon)._replace(
        action_shape=actions.shape, parts=tuple(sizes), first_parts=tuple(first), action_type=actions.dtype.name
    )


def _refuse_unseen(env_id: str, space: spaces.Space[Any]) -> None:
    """Refuse observations that are neither vectors nor a single image."""
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            _refuse_unseen(env_id, part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            _refuse_unseen(env_id, part)
    elif isinstance(space, spaces.Box) and (len(space.shape) > 2 or (space.dtype == np.uint8 and len(space.shape) > 1)):
        raise DiasterError(
            f"'{env_id}' shows {space}; an image is supported where it is all that is shown, as rows × columns or rows "
            f"× columns × 1, 3 or 4 channels of 8 bits with sides of at least {SMALLEST} pixels. Wrap it with "
            "gymnasium.wrappers.TransformObservation so that it shows that, or a vector of numbers."
        )
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise DiasterError(
            f"'{env_id}' has observations of the kind {space}; only vectors and dicts are "
            "supported. Wrap it with gymnasium.wrappers.TransformObservation so that it shows one of these."
        )

"""Environments as their makers give them: created, limited in time, let go; and why one cannot be created."""

from __future__ import annotations

import importlib.metadata
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec

from diaster.config import PAPER_TASKS
from diaster.envs.source import EnvSource, find_source
from diaster.envs.vector import FirstOf, vector_limit
from diaster.errors import DiasterError, one_line
from diaster.signals import interrupts_raise

Env = gym.Env[Any, Any]
HANDED_OUT = "_diaster_has_it"  # on an environment that a function of the user has returned


def created(source: EnvSource, horizon: int | None = None, **kwargs: Any) -> Env:
    """An environment as its maker gives it, but for the time limit; a sentence where it cannot be made.

    Of a vector it is the first one. Further arguments go to those makers that know them.
    """
    creator = source.creator
    try:
        if isinstance(creator, GymSpec):
            return gym.make(creator, horizon, disable_env_checker=True, **{**source.kwargs, **kwargs})
        made: Any = creator(**{**source.kwargs, **_known(creator, kwargs)})
    except Exception as error:  # whatever the environment's own code raises
        raise DiasterError(f"the environment '{source.name}' cannot be made: {_reason(error)}.") from error
    _refuse_what_is_no_environment(source.name, made)
    env: Env = FirstOf(made, source.name) if isinstance(made, gym.vector.VectorEnv) else made
    limit = time_limit(env)
    if horizon is not None and (limit is None or limit > horizon):
        if isinstance(env, FirstOf) and limit is not None:
            raise DiasterError(
                f"'{source.name}' is a vector, which ends its episodes itself, after {limit} steps; leave horizon="
                f"{horizon} out, or let what makes it limit them: gymnasium.make_vec(…, max_episode_steps={horizon})."
            )
        env = gym.wrappers.TimeLimit(env, horizon)
    return env


def _known(creator: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that a function takes; one that takes no `render_mode` may draw all the same."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):  # it tells nobody
        return {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in kwargs.items() if takes_all or name in names}


def _refuse_what_is_no_environment(name: str, env: Any) -> None:
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        raise DiasterError(
            f"what makes '{name}' returned {type(env).__module__}.{type(env).__name__}, which is no environment of "
            "Gymnasium (gymnasium.Env); let it return one."
        )
    inner = env.unwrapped
    if inner.__dict__.get(HANDED_OUT):
        raise DiasterError(
            f"what makes '{name}' returned the same environment twice; training needs several (one for each seed, and "
            "others for evaluation), so let it make a new one whenever it is called: lambda: MyEnv(…)."
        )
    inner.__dict__[HANDED_OUT] = True


def _reason(error: BaseException) -> str:
    """Why an environment cannot be made, in its own words; where those are missing and we know better, in ours."""
    where = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, AssertionError) and "gymnasium_robotics" in where[-1] and _mujoco_compares_otherwise():
        versions = {name: importlib.metadata.version(name) for name in ("gymnasium-robotics", "mujoco")}
        return (
            f"Gymnasium-Robotics {versions['gymnasium-robotics']} does not know the joints of MuJoCo "
            f"{versions['mujoco']} (since MuJoCo 3.12 its names of kinds are unlike NumPy's numbers); install MuJoCo "
            "3.11: pip install 'mujoco<3.12'"
        )
    return one_line(error)


def _mujoco_compares_otherwise() -> bool:
    """Whether what Gymnasium-Robotics asserts of a joint is false of any: `number in (mjJNT_HINGE, mjJNT_SLIDE)`."""
    try:
        hinge = importlib.import_module("mujoco").mjtJoint.mjJNT_HINGE
        return np.int32(int(hinge)) not in (hinge,)
    except Exception:  # another version has no such thing
        return False


def find_horizon(env: str | EnvSource, horizon: int | str) -> int:
    """The longest episode: what was asked for, else the paper's, else the environment's own."""
    source = find_source(env) if isinstance(env, str) else env
    if isinstance(horizon, int):
        return horizon
    if source.name in PAPER_TASKS:
        return PAPER_TASKS[source.name].horizon
    own = source.creator.max_episode_steps if isinstance(source.creator, GymSpec) else _limit_of_one(source)
    if own is None:
        raise DiasterError(
            f"'{source.name}' has no time limit of its own; give one with --horizon, e.g. --horizon 1000 (in Python, "
            "horizon=1000)."
        )
    return own


def _limit_of_one(source: EnvSource) -> int | None:
    """What limits the episodes of an environment that no registration describes; it is made to be looked at."""
    env = created(source)
    try:
        return time_limit(env)
    finally:
        close_env(env)


def time_limit(env: Env) -> int | None:
    """After how many steps an environment ends its episodes, if it says so."""
    if isinstance(env.unwrapped, FirstOf):
        return vector_limit(env.unwrapped.vector)
    limits = [env.spec.max_episode_steps if env.spec is not None else None]
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        limits.append(inner._max_episode_steps if isinstance(inner, gym.wrappers.TimeLimit) else None)
        inner = inner.env
    return min((limit for limit in limits if limit is not None), default=None)


def close_env(env: Any) -> None:
    """Let an environment go. One that cannot be closed is let go all the same; only Ctrl-C is passed on."""
    try:
        env.close()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and interrupts_raise():
            raise

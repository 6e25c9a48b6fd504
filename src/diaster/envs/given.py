"""What `diaster.train` was given as its environment, as the settings of a run can keep it.

An id is kept as it is, a function that a module has by its name, an instance by its Gymnasium spec. A lambda, or a
function of a script or a notebook, has no name that leads back to it: a placeholder stands in the settings, and the
user is told that the run needs it again.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as GymSpec

from diaster.config import as_kept, unkept
from diaster.envs.creating import close_env, created
from diaster.envs.source import Creator, EnvSource, find_source, gym_spec, importable_name
from diaster.envs.vector import FirstOf
from diaster.errors import DiasterError

GivenEnv = str | gym.Env[Any, Any] | Callable[..., Any]
SINGLE = "an instance is a single environment, and training needs several (one for each seed, others for evaluation)"
INSTEAD = "give what makes it: diaster.train(lambda: MyEnv(…), …)"


class Given(NamedTuple):
    """An environment as it was given."""

    settings: dict[str, Any]
    """What a run keeps of it: `env`, `env_kwargs`, `horizon`."""
    creator: Creator | None = None
    """What makes the environments where the settings do not say it."""
    remarks: tuple[str, ...] = ()
    """What the user has to know."""


def keep_env(env: Any, kwargs: Mapping[str, Any] | None = None) -> Given:
    """An id, a function or an instance, with the arguments that go with it."""
    kwargs = {} if kwargs is None else as_kept(kwargs)
    if isinstance(env, str):
        return _kept_id(env, kwargs)
    _refuse_vector(env)
    if isinstance(env, gym.Env):
        if kwargs:
            raise DiasterError(f"env_kwargs go to what makes an environment, and an instance was given; {INSTEAD}.")
        return _kept_instance(env)
    if callable(env):
        return _kept_function(env, kwargs)
    raise DiasterError(
        f"{env!r} was given as the environment; give a Gymnasium id, or what makes it: diaster.train(lambda: MyEnv(…))."
    )


def creator_of(env: Any) -> Creator | None:
    """What makes the environments of a run whose environment is given again; None if nothing was given."""
    if env is None:
        return None
    _refuse_vector(env)
    if isinstance(env, str):
        return find_source(env).creator
    if isinstance(env, gym.Env):
        return _spec_of(env)
    creator: Creator = env
    return creator


def _kept_id(env: str, kwargs: dict[str, Any]) -> Given:
    bad = unkept(kwargs)
    if not bad:
        return Given({"env": env, "env_kwargs": kwargs})
    if ":" in env:
        raise DiasterError(
            f"{_arguments(bad)} nothing that a run can keep beside '{env}'; give a function that has them: "
            "diaster.train(lambda: MyEnv(…), …)."
        )
    spec = copy.copy(gym_spec(env))
    spec.kwargs = {**spec.kwargs, **kwargs}
    return _placeholder(env, spec, {}, f"{_arguments(bad)} nothing that a file can hold")


def _kept_function(function: Callable[..., Any], kwargs: dict[str, Any]) -> Given:
    inner: Any = function
    if isinstance(function, functools.partial) and not function.args:
        inner, kwargs = function.func, {**as_kept(function.keywords), **kwargs}
    name, bad = importable_name(inner), unkept(kwargs)
    if name is not None and not bad:
        return Given({"env": name, "env_kwargs": kwargs})
    shown = getattr(inner, "__name__", type(inner).__name__)
    if shown == "<lambda>":
        shown = _what_is_made_by(functools.partial(inner, **kwargs))
    if bad:
        return _placeholder(shown, functools.partial(inner, **kwargs), {}, f"{_arguments(bad)} nothing a file can hold")
    return _placeholder(shown, inner, kwargs, "no module has it under a name to import it by (my_module:make_env)")


def _kept_instance(env: gym.Env[Any, Any]) -> Given:
    """More like it are made from its spec; of an instance without one there can be no more."""
    spec = _spec_of(env)
    remark = f"{SINGLE}; others like this one are made from its spec ({spec.id}), without what was changed on it since."
    registered = gym.registry.get(spec.id)
    same = ("entry_point", "additional_wrappers")
    if registered is None or any(getattr(spec, name) != getattr(registered, name) for name in same):
        kept = _placeholder(spec.id, spec, {}, "its id says nothing of its wrappers" if registered else "")
        return kept._replace(remarks=(remark, *kept.remarks))
    kwargs = as_kept({name: value for name, value in spec.kwargs.items() if registered.kwargs.get(name, spec) != value})
    kept = _kept_id(spec.id, kwargs)
    if spec.max_episode_steps not in (None, registered.max_episode_steps):
        kept.settings["horizon"] = spec.max_episode_steps
    return kept._replace(remarks=(remark, *kept.remarks))


def _spec_of(env: gym.Env[Any, Any]) -> GymSpec:
    if env.spec is None:
        raise DiasterError(f"{SINGLE}; this {type(env.unwrapped).__name__} has no spec of Gymnasium, so {INSTEAD}.")
    spec = copy.deepcopy(env.spec)
    nameless = [wrapper.name for wrapper in spec.additional_wrappers if wrapper.kwargs is None]
    if nameless:
        raise DiasterError(f"{SINGLE}; its wrapper {nameless[0]} does not tell how it was made, so {INSTEAD}.")
    spec.kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    return spec


def _placeholder(name: str, creator: Creator, kwargs: dict[str, Any], why: str) -> Given:
    remark = (
        f"the run cannot keep what makes {name}{f': {why}' if why else ''}; diaster.load(path, env=…) and "
        "diaster.resume(path, env=…) will need it again."
    )
    return Given({"env": f"<{name}>", "env_kwargs": kwargs}, creator, (remark,))


def _what_is_made_by(creator: Callable[..., Any]) -> str:
    """A lambda has no name; what it makes has one."""
    env = created(EnvSource("lambda", creator))
    try:
        inner = env.unwrapped
        made = inner.vector.unwrapped if isinstance(inner, FirstOf) else inner
        return type(made).__name__ if made.spec is None else made.spec.id
    finally:
        close_env(env)


def _refuse_vector(env: Any) -> None:
    if isinstance(env, gym.vector.VectorEnv):
        raise DiasterError(
            "a vector environment was given, and training needs one for each seed and others for evaluation; give what "
            f"makes it: diaster.train(lambda: gymnasium.make_vec('MyEnv-v0', num_envs={env.num_envs}), …)."
        )


def _arguments(names: list[str]) -> str:
    return f"the argument {names[0]} is" if len(names) == 1 else f"the arguments {', '.join(names)} are"

"""Where environments come from: an id of Gymnasium, a function that a module names, or what was given in Python.

The settings `env` and `env_kwargs` name a source. Where they cannot, because a function has no name that could be
imported, `env` is a placeholder, and whoever loads the run gives the function again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator

from diaster.config import ImageConfig, RunConfig, is_placeholder
from diaster.errors import DiasterError, one_line, unknown

Creator = GymSpec | Callable[..., Any]
ATARI = "ALE/"
ROBOTICS = ("PointMaze", "AntMaze", "Fetch", "Hand", "Adroit", "FrankaKitchen")


class EnvSource(NamedTuple):
    """What makes the environments of a run."""

    name: str  # as in the settings
    creator: Creator
    kwargs: Mapping[str, Any] = {}
    imports: tuple[str, ...] = ()  # modules that another process needs first
    image: ImageConfig = ImageConfig()  # how images are seen, if it shows them


class PackedSource(NamedTuple):
    """A source on its way to another process of ours; it is never written to a file."""

    imports: tuple[str, ...]
    content: bytes

    def unpack(self) -> EnvSource:
        import_modules(self.imports)
        try:
            source: EnvSource = pickle.loads(self.content)
        except Exception as error:  # a module that is not found there, and whatever else
            raise DiasterError(
                f"the environment cannot be made in another process ({one_line(error)}); use --workers 0 without "
                "--isolate-envs (in Python, workers=0), or put what makes it into a module that can be imported."
            ) from error
        return source


def source_of(config: RunConfig, given: Creator | None = None) -> EnvSource:
    """The source of a run's environments: what its settings name, or what was given in Python instead."""
    # What is given in the place of another environment has none of its arguments.
    kwargs = config.env_kwargs if given is None or is_placeholder(config.env) else {}
    return find_source(config.env, kwargs, config.imports, given)._replace(image=config.image)


def find_source(
    name: str, kwargs: Mapping[str, Any] | None = None, imports: Sequence[str] = (), given: Creator | None = None
) -> EnvSource:
    """The source that a name stands for; its modules are imported, and the working directory is searched for them."""
    import_modules(imports)
    return EnvSource(name, _named(name) if given is None else given, dict(kwargs or {}), tuple(imports))


def _named(name: str) -> Creator:
    if is_placeholder(name):
        raise DiasterError(
            f"the environment '{name[1:-1]}' was given in Python and is not kept in the run; give it again: "
            "diaster.load(path, env=…) or diaster.resume(path, env=…), with what diaster.train was given."
        )
    module, colon, what = name.partition(":")
    if not colon:
        return gym_spec(name)
    _import(module, f"'{name}'")
    if what in gym.registry:
        return gym_spec(what)
    found: Any = sys.modules[module]
    for part in what.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise DiasterError(
            f"'{name}' names nothing that makes environments: the module '{module}' neither registers '{what}' with "
            f"Gymnasium nor has a function or class of this name."
        )
    creator: Creator = found
    return creator


def pack(source: EnvSource) -> PackedSource:
    """The source for another process of ours, or an error where it cannot go there."""
    import cloudpickle  # Gymnasium sends environments to its own processes with it

    creator = source.creator
    if isinstance(creator, GymSpec) and str(creator.entry_point).startswith("__main__:"):  # another one over there
        creator = copy.copy(creator)
        creator.entry_point = cast(Any, load_env_creator(str(creator.entry_point)))
    try:
        return PackedSource(source.imports, cloudpickle.dumps(source._replace(creator=creator)))
    except Exception as error:  # whatever the parts of a function raise that cannot be sent
        raise DiasterError(
            f"'{source.name}' cannot be made in other processes ({one_line(error)}); use --workers 0 without "
            "--isolate-envs (in Python, workers=0), or let the function make all it needs itself."
        ) from error


def is_portable(source: EnvSource) -> bool:
    """Whether another process can make the environment."""
    try:
        pack(source)
    except DiasterError:
        return False
    return True


def importable_name(creator: Any) -> str | None:
    """`module:function` where that leads to this very function or class, also in another process."""
    module, path = getattr(creator, "__module__", None), getattr(creator, "__qualname__", "")
    if not module or module == "__main__" or module not in sys.modules or "<" in path:
        return None
    found: Any = sys.modules[module]
    with contextlib.suppress(AttributeError):
        found = functools.reduce(getattr, path.split("."), found)
    return f"{module}:{path}" if found is creator else None


def import_modules(modules: Sequence[str]) -> None:
    """Import the packages whose environments the user wants; the working directory is searched too."""
    for module in modules:
        _import(module, f"--import {module}")


def _import(module: str, asked: str) -> None:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DiasterError(
            f"the module '{error.name}' (from {asked}) was not found; "
            "install it, or start from the folder that holds it."
        ) from None
    except (Exception, SystemExit) as error:  # whatever the module's own code raises; some end the interpreter
        raise DiasterError(f"the module '{module}' cannot be imported (from {asked}): {one_line(error)}.") from error


def gym_spec(env_id: str) -> GymSpec:
    """Gymnasium's record of an id; those of Gymnasium-Robotics are registered on first use."""
    if env_id not in gym.registry and env_id.startswith(ROBOTICS):
        try:
            register_robotics()
        except ImportError:
            raise DiasterError(
                f"'{env_id}' comes with Gymnasium-Robotics; install it with pip install 'diaster[robotics]'."
            ) from None
    try:
        return gym.spec(env_id)
    except (gym.error.Error, ValueError):  # the latter for a version of thousands of digits
        raise unknown_env(env_id) from None
    except ModuleNotFoundError as error:
        raise DiasterError(
            f"'{env_id}' needs the module '{error.name}', which was not found; install it, or check the name."
        ) from None


def register_robotics() -> None:
    """Make the environments of Gymnasium-Robotics known; it prints remarks on tasks nobody asked for."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        gym.register_envs(importlib.import_module("gymnasium_robotics"))


def unknown_env(env_id: str) -> DiasterError:
    """The error for an id that Gymnasium does not have, with the nearest one it has."""
    if env_id.startswith(ATARI) and not any(known.startswith(ATARI) for known in gym.registry):
        return DiasterError(
            f"'{env_id}' comes with ale-py; install it with pip install ale-py, and add --import ale_py (in Python, "
            "import ale_py first)."
        )
    text = str(unknown("environment", env_id, gym.registry))
    hint = text[text.index(" Did you mean") :] if "Did you mean" in text else ""
    return DiasterError(
        f"unknown environment '{env_id}'.{hint} Environments of other packages need --import PACKAGE (in Python, "
        "import it first); 'diaster list envs' shows what is registered."
    )

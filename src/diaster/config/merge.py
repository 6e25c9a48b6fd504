"""Settings laid over settings, with names and types checked."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from diaster.config.env_kwargs import GROUP, as_kept, overlaid, unkept
from diaster.config.run import expand_seeds
from diaster.errors import DiasterError, unknown


def merge(config: Any, settings: Mapping[str, Any], source: str, prefix: str = "") -> Any:
    """A copy of a (nested) configuration with some settings replaced; names and types are checked."""
    hints = typing.get_type_hints(type(config))  # without Annotated
    known = [field.name for field in dataclasses.fields(config)]
    changes = {}
    for name, value in settings.items():
        dotted = prefix + name
        if name not in known:
            raise unknown(f"setting in {source}", dotted, [prefix + one for one in known])
        if dataclasses.is_dataclass(getattr(config, name)):
            if not isinstance(value, Mapping):
                raise DiasterError(f"'{dotted}' in {source} is a group of settings and takes a table, not {value!r}.")
            changes[name] = merge(getattr(config, name), value, source, dotted + ".")
        elif dotted == "seeds":
            changes[name] = expand_seeds(value)
        elif dotted == GROUP:
            changes[name] = overlaid(config.env_kwargs, _env_kwargs(value, source))
        else:
            changes[name] = _checked(value, hints[name], dotted, source)
    return dataclasses.replace(config, **changes)


def _env_kwargs(value: Any, source: str) -> dict[str, Any]:
    """Arguments that a file can hold, in the form in which it gives them back."""
    if not isinstance(value, Mapping):
        raise DiasterError(f"'{GROUP}' in {source} is {value!r}; it has to be a table of arguments by their names.")
    kwargs: dict[str, Any] = as_kept(value)
    if unkept(kwargs):
        raise DiasterError(
            f"'{GROUP}' in {source} has {', '.join(unkept(kwargs))}, which a file of settings cannot hold; give texts, "
            "numbers, true, false, or lists and tables of them."
        )
    return kwargs


def _checked(value: Any, hint: Any, name: str, source: str) -> Any:
    """The value if it fits the annotated type (an int is a float, a list a tuple), else an error."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal and value in arguments and isinstance(value, str):
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _checked(value, option, name, source)
            except DiasterError:
                continue
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, arguments[0], name, source) for item in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise DiasterError(f"'{name}' in {source} is {value!r}; it has to be {_described(hint)}.")


def _described(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(f"'{argument}'" for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is tuple:
        return f"a list, each item {_described(arguments[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]

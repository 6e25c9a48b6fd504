"""The arguments of an environment: from a command line, and as a file of settings can hold them.

TOML has texts, numbers, true and false, lists and tables of them. An environment gets the very values that a file gives
back, so that a run that is loaded has the environment it was trained in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diaster.config.run import RunConfig
from diaster.config.toml import parse_toml, toml_table, toml_value
from diaster.errors import DiasterError

FLAG, FLAGS = "--env-kwargs.", ("--env-kwargs.", "--env_kwargs.")
GROUP = "env_kwargs"
PYTHONS = {"True": True, "False": False}  # as texts both would be true


def is_placeholder(env: str) -> bool:
    """Whether the name of an environment stands for something that was given in Python and has no name of its own."""
    return env.startswith("<") and env.endswith(">")


def task_name(config: RunConfig) -> str:
    """The environment of a run, with its arguments where it was given any: runs with others are not comparable."""
    given = [f"{name}={_on_one_line(value)}" for name, value in config.env_kwargs.items()]
    return f"{config.env} ({', '.join(given)})" if given else config.env


def _on_one_line(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else toml_value(value).replace("\n", " ")


def as_kept(value: Any) -> Any:
    """A value as a file gives it back: lists where there were tuples, Python's numbers where there were NumPy's."""
    if isinstance(value, Mapping):
        return {name: as_kept(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_kept(item) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # NumPy's, which is not imported here
        return value.item()
    return value


def unkept(kwargs: Mapping[str, Any]) -> list[str]:
    """The names of the arguments that no file of settings can hold; the others come back as they are."""
    return [name for name, value in kwargs.items() if not _comes_back({name: value})]


def _comes_back(kwargs: Mapping[str, Any]) -> bool:
    try:
        found = parse_toml(toml_table(GROUP, kwargs).encode(), Path(GROUP))
    except (DiasterError, TypeError, UnicodeEncodeError):
        return False
    return repr(found) == repr({GROUP: dict(kwargs)})  # not a number is none, and 1 is not 1.0


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments laid over arguments, table by table."""
    found = dict(below)
    for name, value in above.items():
        under = found.get(name)
        found[name] = overlaid(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return found


def take_env_kwargs(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """A command line without `--env-kwargs.NAME VALUE`, and these arguments; dots lead into tables."""
    rest, found = list[str](), dict[str, Any]()
    items = iter(argv)
    for item in items:
        if not item.startswith(FLAGS):
            rest.append(item)
            continue
        flag, has_value, text = item.partition("=")
        value = text if has_value else next(items, None)
        names = flag[len(FLAG) :].replace("-", "_").split(".")
        is_flag = not has_value and value is not None and value.startswith("--")  # the next setting
        if value is None or is_flag or not all(names):
            raise DiasterError(f"'{item}' needs a name and a value, e.g. {FLAG}difficulty hard.")
        nested: Any = as_scalar(value)
        for name in reversed(names):
            nested = {name: nested}
        found = overlaid(found, nested)
    return rest, found


def as_scalar(text: str) -> Any:
    """What a person has typed: a number, true or false, a list in brackets; all else is a text."""
    if text in PYTHONS:
        return PYTHONS[text]
    if text == "None":
        raise DiasterError(
            "None is nothing that a file of settings can hold; leave the argument out, or give the environment in "
            "Python: diaster.train(lambda: MyEnv(difficulty=None), …)."
        )
    try:
        [value] = tomllib.loads(f"value = {text}").values()
    except ValueError:
        return text
    return value if unkept({"value": value}) == [] else text


def as_typed(value: Any) -> str:
    """The inverse of `as_scalar`."""
    is_plain = isinstance(value, str) and value != "None" and as_scalar(value) == value
    return str(value) if is_plain else toml_value(value).replace("\n", " ")

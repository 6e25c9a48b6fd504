"""A sweep's file: axes and fixed settings in TOML, and the cells they span. Typos are found before anything starts.

record_episodes = 10                # optional: rollouts to record of each cell once it is trained

[settings]                          # of every cell, in the words of a run's config.toml
seeds = 5

[axes]                              # every combination is a cell; several [[axes]] add up
env = ["Hopper-v5", "Swimmer-v5"]
"method.n_cuts" = [0, 1, 5]

[env."Hopper-v5"]                   # of the cells with this environment; also [method.…], [agent.…], [preset.…]
steps = 500_000
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from diaster.config import DEFAULT_METHOD, RunConfig, combine, present_name, usual_agent, validate
from diaster.config.toml import parse_toml, read_content
from diaster.errors import DiasterError, unknown

MOST_CELLS = 1000
# A cell's value of each of these selects the tables that apply to it; later ones override earlier ones.
NAMED = "preset", "method", "agent", "env"
ENTRIES = ("record_episodes", "settings", "axes", *NAMED)
Settings = dict[str, Any]


class Cell(NamedTuple):
    """One run of a sweep, all of its seeds together."""

    name: str
    config: RunConfig


class Grid(NamedTuple):
    """What a sweep's file asks for."""

    content: bytes
    record_episodes: int
    cells: tuple[Cell, ...]


def read_grid(path: Path) -> Grid:
    """The cells of a sweep's file; each has been built and checked as a run's settings are."""
    content = read_content(path)
    entries = _named_alike(parse_toml(content, path))
    for name in entries:
        if name not in ENTRIES:
            raise unknown(f"entry in {path}", name, ENTRIES)
    fixed = _settings(_table(entries.get("settings", {}), "settings", path))
    tables = {
        name: {value: _settings(_table(table, f"{name}.{value}", path)) for value, table in of_name.items()}
        for name in NAMED
        for of_name in [_table(entries.get(name, {}), name, path)]
    }
    cells: dict[str, Cell] = {}
    met: dict[str, set[str]] = {name: set() for name in NAMED}
    for point in _points(entries.get("axes", {}), path):
        own = _settings(point)
        chosen = {name: _chosen(name, own, fixed) for name in NAMED}
        settings = fixed
        for name, value in chosen.items():
            met[name].add(value)
            settings = _overlaid(settings, tables[name].get(value, {}))
        cell = _cell(point, _overlaid(settings, own), path)
        _add(cells, cell, path)
    for name, values in met.items():
        for value in tables[name]:
            if value not in values:
                raise unknown(f"{name} in the tables of {path}, since no cell has it:", value, values)
    return Grid(content, _count(entries.get("record_episodes", 0), path), tuple(cells.values()))


def _points(axes: Any, path: Path) -> Iterable[Settings]:
    """Every combination of the axes' values, table by table; without axes a single one."""
    blocks = axes if isinstance(axes, list) else [axes]
    lists = [
        {name: _values(name, value, path) for name, value in _named_alike(_table(block, "axes", path)).items()}
        for block in blocks
    ]
    n_cells = sum(math.prod(map(len, block.values())) for block in lists)
    if n_cells > MOST_CELLS:
        raise DiasterError(f"the axes of {path} span {n_cells:,} cells; at most {MOST_CELLS:,} are allowed.")
    return (dict(zip(block, values, strict=True)) for block in lists for values in itertools.product(*block.values()))


def _values(name: str, given: Any, path: Path) -> list[Any]:
    if name in ("seeds", "imports"):
        raise DiasterError(
            f"'{name}' in {path} is an axis, but it is a list in every cell (seeds train together); "
            "put it under [settings]."
        )
    values = given if isinstance(given, list) else [given]
    for value in values:
        if not isinstance(value, str | int | float):
            raise DiasterError(f"axis '{name}' in {path} has the value {value!r}; give texts, numbers, true or false.")
    if not values or len(set(map(repr, values))) < len(values):
        what = "one value twice" if values else "no values"
        raise DiasterError(f"axis '{name}' in {path} has {what}; give a list of different ones.")
    return values


def _cell(point: Settings, settings: Settings, path: Path) -> Cell:
    if not settings.get("env"):
        raise DiasterError(f"{path} names no environment; give env a list under [axes], or a name under [settings].")
    name = cell_name(settings, point)
    try:
        config = combine(None, {"keep_checkpoint": 0, **settings}, str(path))  # there may be a thousand of them
        validate(config)
    except DiasterError as error:
        raise DiasterError(f"cell '{name}': {error}") from None
    return Cell(name, config)


def _add(cells: dict[str, Cell], cell: Cell, path: Path) -> None:
    """A cell of several tables is added once; two cells with the same settings are an error."""
    other = cells.get(cell.name)
    if other is not None and other.config != cell.config:
        raise DiasterError(f"two cells of {path} are called '{cell.name}' and differ; name what differs in their axes.")
    twin = next((one for one in cells.values() if one.config == cell.config), cell)
    if twin.name != cell.name:
        raise DiasterError(f"the cells '{twin.name}' and '{cell.name}' of {path} are the same run; leave one out.")
    cells[cell.name] = cell


def cell_name(settings: Settings, point: Settings) -> str:
    """Environment, method, and the value on every other axis: it stays the same when axes get more values."""
    parts = [settings["env"], _chosen("method", settings)]
    others = {present_name(axis): value for axis, value in point.items() if axis not in ("env", "method")}
    parts += [f"{_short(axis)}-{value}" for axis, value in others.items()]
    return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", str(part)).strip(".") for part in parts)


def _short(axis: str) -> str:
    """An axis in the name of a cell, without 'method.', 'env_kwargs.' and '.name'."""
    return axis.removeprefix("method.").removeprefix("env_kwargs.").removesuffix(".name").replace("_", "-")


def _chosen(name: str, *settings: Settings) -> str:
    """The method, agent, preset or environment of a cell; of several settings the first that names one counts."""
    for table in settings:
        value = table.get(name)
        value = value.get("name") if isinstance(value, dict) else value
        if value is not None:
            return str(value)
    if name == "agent":
        return usual_agent(_chosen("preset", *settings))
    return {"preset": "default", "method": DEFAULT_METHOD, "env": ""}[name]


def _settings(table: Settings) -> Settings:
    """Names with dots as tables: 'method.n_cuts' is n_cuts of method, and 'method' alone is its name."""
    found: Settings = {}
    for given, value in _named_alike(table).items():
        name = present_name(given, is_table=isinstance(value, dict))
        nested = _named_alike(value) if isinstance(value, dict) else value
        for part in reversed(name.split(".")):
            nested = {part: nested}
        found = _overlaid(found, nested)
    return found


def _overlaid(below: Settings, above: Settings) -> Settings:
    """Settings laid over settings, table by table."""
    found = dict(below)
    for name, value in above.items():
        under = found.get(name)
        found[name] = _overlaid(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return found


def _named_alike(table: Mapping[str, Any]) -> Settings:
    """Names of settings with underscores; hyphens, as on the command line, are allowed too."""
    return {name.replace("-", "_"): value for name, value in table.items()}


def _table(value: Any, name: str, path: Path) -> Settings:
    if not isinstance(value, dict):
        raise DiasterError(f"'{name}' in {path} is {value!r}; it has to be a table, headed [{name}].")
    return value


def _count(value: Any, path: Path) -> int:
    if type(value) is not int or value < 0:
        raise DiasterError(f"'record_episodes' in {path} is {value!r}; it has to be a whole number, 0 or more.")
    return value

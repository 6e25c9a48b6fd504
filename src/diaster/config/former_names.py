"""Names that settings had in earlier versions: files with them are still read.

A run's method was `method = "rrd"` with its settings in `[decomposer]`, its agent `agent = "sac"` with `[learner]`.
Now each is one table, `[method]` and `[agent]`, with its `name`; a name alone may stand for the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER = {"decomposer": "method", "learner": "agent"}
# Of a run that names none: at first there were no others, and later these were the defaults.
FORMER_DEFAULTS = {"method": "diaster", "agent": "sac"}
# Settings that came later, with a default that changes a run, and what the runs had that do not know them.
CAME_LATER: Mapping[str, Mapping[str, Any]] = {
    "method": {"diaster": {"base": "none"}},
    "agent": {"xqc": {"potential": False}},
}


def present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings under the names they have now; what is no table of settings is left for others to refuse."""
    present = {name: value for name, value in settings.items() if name not in FORMER}
    for name in FORMER.values():
        if isinstance(present.get(name), str):
            present[name] = {"name": present[name]}
    for former, name in FORMER.items():
        if former not in settings:
            continue
        table = settings[former]
        if isinstance(table, Mapping) and isinstance(present.get(name, {}), Mapping):
            present[name] = {**table, **present.get(name, {})}
        else:
            present[former] = table
    return present


def present_name(dotted: str, is_table: bool = False) -> str:
    """The same for the dotted name of one setting, or of a table; of 'method' and 'agent' alone, the name is set."""
    first, dot, rest = dotted.partition(".")
    first = FORMER.get(first, first)
    if first in FORMER.values() and not dot and not is_table:
        return f"{first}.name"
    return f"{first}{dot}{rest}"


def as_they_were(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that an earlier version may have written: what it does not know stays as it was then.

    What is no table of settings is left for others to refuse.
    """
    present = present_names(settings)
    for group, default in FORMER_DEFAULTS.items():
        table = present.get(group, {})
        if isinstance(table, Mapping):
            name = table.get("name", default)
            later = CAME_LATER[group].get(name, {}) if isinstance(name, str) else {}
            present[group] = {"name": name, **later, **table}
    return present

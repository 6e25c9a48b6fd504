"""What the columns of a data set are called, in every format."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from diaster.errors import DiasterError
from diaster.offline.faults import Faults

PER_STEP = (
    "observations",
    "actions",
    "next_observations",
    "rewards",
    "original_rewards",
    "terminals",
    "timeouts",
)
PER_EPISODE = ("lengths", "returns", "groups", "terminated")
# A file has one reward per row, or one list of rewards per line: the singular is as good a name as the plural.
SYNONYMS = {
    "observation": "observations",
    "action": "actions",
    "next_observation": "next_observations",
    "reward": "rewards",
    "original_reward": "original_rewards",
    "terminal": "terminals",
    "timeout": "timeouts",
    "length": "lengths",
    "return": "returns",
    "outcome": "returns",
    "outcomes": "returns",
    "group": "groups",
}


def columns_of(
    names: Iterable[str], where: str, faults: Faults, others: tuple[str, ...] = (), absent: tuple[str, ...] = ()
) -> dict[str, str]:
    """The stored name of every known column. `others` are known too, and `absent` are not, in this format."""
    known = [name for name in (*PER_STEP, *PER_EPISODE, *others) if name not in absent]
    found: dict[str, str] = {}
    for name in names:
        meant = SYNONYMS.get(name, name)
        if meant not in known:
            near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}"
            faults.unused_column(name, f"{where} has an unknown column '{name}' ({hint})")
        elif meant in found:
            raise DiasterError(f"{where} has two columns for one thing, '{found[meant]}' and '{name}'; remove one.")
        else:
            found[meant] = name
    return found


def required(columns: dict[str, str], names: Iterable[str], where: str) -> None:
    """Refuse a data set that lacks a column."""
    missing = [name for name in names if name not in columns]
    if missing:
        there = ", ".join(sorted(columns)) or "none that is known"
        raise DiasterError(f"{where} has no column '{missing[0]}'; it has {there}.")

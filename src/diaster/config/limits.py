"""What a setting may be, said where the setting stands: `Annotated[int, at_least(1)]`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Limit:
    """A condition on a number, the end of the sentence for a number that breaks it, and its short form for lists."""

    holds: Callable[[float], bool]
    sentence: str
    short: str


def at_least(least: float) -> Limit:
    """No smaller than this."""
    return Limit(lambda value: value >= least, f"is too small; it has to be at least {least}", f"at least {least}")


def at_most(most: float) -> Limit:
    """No larger than this."""
    return Limit(lambda value: value <= most, f"is too large; it has to be at most {most}", f"at most {most}")


FINITE = Limit(
    lambda value: abs(value) < math.inf, "is no finite number; give one", "finite"
)  # whole numbers of any size too
ABOVE_ZERO = Limit(
    lambda value: value > 0 and math.isfinite(value),
    "is out of range; it has to be a finite number above 0",
    "above 0",
)
ODD = Limit(lambda value: value % 2 == 1, "is even; give an odd number", "odd")
FRACTION = Limit(lambda value: 0.0 <= value <= 1.0, "is out of range; it has to lie between 0 and 1", "from 0 to 1")

MOST = 2**53  # every count below it is a float too, and TOML and JSON hold it
Count = Annotated[int, at_least(1), at_most(MOST)]
CountOrNone = Annotated[int, at_least(0), at_most(MOST)]
# Of arrays that an update works on: larger ones fit into no machine, and a file could claim any number.
Size = Annotated[int, at_least(1), at_most(10_000_000)]
SizeOrNone = Annotated[int, at_least(0), at_most(10_000_000)]
# A net of more units fits into no machine, and a file could claim any number.
Units = Annotated[int, at_least(1), at_most(65_536)]
Positive = Annotated[float, ABOVE_ZERO]
NotNegative = Annotated[float, at_least(0.0), FINITE]
Fraction = Annotated[float, FRACTION]


def broken_limit(name: str, value: Any, limits: tuple[Any, ...]) -> str | None:
    """The sentence for a value outside its limits; words such as 'auto' have none."""
    if isinstance(value, str):
        return None
    for limit in limits:
        if isinstance(limit, Limit) and not limit.holds(value):
            return f"{name}={value} {limit.sentence}."
    return None

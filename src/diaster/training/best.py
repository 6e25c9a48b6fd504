"""The best policy of every seed so far, by the mean return of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.rundir.files import Form
from diaster.rundir.results import ResultRow

PREFIX = "best."  # of their names in a checkpoint
RETURN = "return"

Arrays = dict[str, NDArray[Any]]


class BestPolicies:
    """Of equal returns the earlier one stays."""

    def __init__(self) -> None:
        self.policy: Arrays = {}  # [S, …]; nothing before the first evaluation
        self._returns: NDArray[np.float64] | None = None  # [S]

    def add(self, rows: Sequence[ResultRow], policy: Mapping[str, NDArray[Any]]) -> bool:
        """Take in an evaluation of all seeds: whether any of them has become better."""
        found = np.array([row["return_mean"] for row in rows], np.float64)
        if self._returns is None:
            self._returns, self.policy = found, {name: array.copy() for name, array in policy.items()}
            return True
        is_better = found > self._returns
        self._returns = np.where(is_better, found, self._returns)
        self.policy = {  # new arrays: a thread may be writing the old ones
            name: np.where(is_better.reshape(-1, *[1] * (array.ndim - 1)), array, self.policy[name])
            for name, array in policy.items()
        }
        return bool(is_better.any())

    def arrays(self) -> Arrays:
        """For a checkpoint."""
        if self._returns is None:
            return {}
        return {PREFIX + RETURN: self._returns, **{f"{PREFIX}policy.{name}": a for name, a in self.policy.items()}}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse; a checkpoint of an earlier version has none of them."""
        if arrays:
            self._returns = arrays[PREFIX + RETURN]
            policy = f"{PREFIX}policy."
            self.policy = {name.removeprefix(policy): a for name, a in arrays.items() if name.startswith(policy)}


def best_forms(policy: Mapping[str, Form]) -> dict[str, Form]:
    """What `BestPolicies.arrays` has, for policies of this form  # [S, …]"""
    n_seeds = next(iter(policy.values()))[0][0]
    return {
        PREFIX + RETURN: ((n_seeds,), np.dtype(np.float64)),
        **{f"{PREFIX}policy.{k}": v for k, v in policy.items()},
    }

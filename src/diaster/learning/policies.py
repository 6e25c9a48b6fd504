"""The policies of all seeds on their way from the device.

Whoever reads them waits until the learning has ended that they come of; whoever only holds them does not, and may
launch more learning meanwhile. How a policy acts is in `acting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.actors.acting import HostParameters
from diaster.agents import Acting


class SentPolicies(Protocol):
    """The face of what one learner has sent, or several."""

    @property
    def are_here(self) -> bool:
        """Whether reading them takes no waiting."""

    @property
    def times_back(self) -> NDArray[np.int32]:
        """How often each seed had diverged and gone back by then  # [S]"""

    @property
    def tree(self) -> Acting:
        """The parameters that act  # [S, …]"""

    @property
    def of_seeds(self) -> list[HostParameters]:
        """The same, seed by seed."""


class PoliciesOfLearner:
    """All parameters of a seed as one array, because each array costs a journey from the device."""

    def __init__(self, flat: Array, times_back: Array, unflatten: Callable[[NDArray[Any]], Acting]) -> None:
        self._flat, self._times_back, self._unflatten = flat, times_back, unflatten
        times_back.copy_to_host_async()
        flat.copy_to_host_async()

    @property
    def are_here(self) -> bool:
        parts: Sequence[Any] = (self._flat, self._times_back)  # JAX does not tell a type checker of `is_ready`
        return all(part.is_ready() for part in parts)

    @cached_property
    def times_back(self) -> NDArray[np.int32]:
        return np.asarray(self._times_back)

    @cached_property
    def tree(self) -> Acting:
        return self._unflatten(np.asarray(self._flat))

    @cached_property
    def of_seeds(self) -> list[HostParameters]:
        layers, exploration = self.tree
        return [
            HostParameters(
                tuple((np.asarray(layer.weight[s]), np.asarray(layer.bias[s])) for layer in layers),
                float(exploration[s]),
            )
            for s in range(len(self._flat))
        ]


class PoliciesOfLearners:
    """Those of neighbouring seeds, one after the other."""

    def __init__(self, parts: Sequence[SentPolicies]) -> None:
        self._parts = parts

    @property
    def are_here(self) -> bool:
        return all(part.are_here for part in self._parts)

    @cached_property
    def times_back(self) -> NDArray[np.int32]:
        return np.concatenate([part.times_back for part in self._parts])

    @cached_property
    def tree(self) -> Acting:
        tree: Acting = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part.tree for part in self._parts])
        return tree

    @cached_property
    def of_seeds(self) -> list[HostParameters]:
        return [policy for part in self._parts for policy in part.of_seeds]

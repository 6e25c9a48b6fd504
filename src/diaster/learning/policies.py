"""The policies of all seeds on their way from the device to the host.

Who reads them waits until the learning has ended that they come from; who only holds them does not, and may launch
more learning meanwhile. How a policy acts is in `actors/acting.py`.
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
from diaster.actors.encoding import HostEncoder
from diaster.agents import Acting, Agent
from diaster.decomposers import Decomposer
from diaster.nn.nets import Linear
from diaster.types import FloatArray


class SentPolicies(Protocol):
    """What one learner has sent, or several."""

    @property
    def rollbacks(self) -> NDArray[np.int32]:
        """How often each seed had diverged and been rolled back by then  # [S]"""

    @property
    def tree(self) -> Acting:
        """The parameters that act  # [S, …]"""

    @property
    def of_seeds(self) -> list[HostParameters]:
        """The same, seed by seed."""


class LearnerPolicies:
    """Those of one learner: all parameters of a seed as one array, because each array costs a trip from the device."""

    def __init__(self, flat: Array, rollbacks: Array, unflatten: Callable[[NDArray[Any]], Acting]) -> None:
        self._flat, self._rollbacks, self._unflatten = flat, rollbacks, unflatten
        rollbacks.copy_to_host_async()
        flat.copy_to_host_async()

    @cached_property
    def rollbacks(self) -> NDArray[np.int32]:
        return np.asarray(self._rollbacks)

    @cached_property
    def tree(self) -> Acting:
        return self._unflatten(np.asarray(self._flat))

    @cached_property
    def of_seeds(self) -> list[HostParameters]:
        return [
            host_parameters(jax.tree.map(lambda leaf, seed=seed: leaf[seed], self.tree))
            for seed in range(len(self._flat))
        ]


def acting_of(agent: Agent, decomposer: Decomposer, agent_state: Any, decomposer_state: Any) -> Acting:
    """What acts: the agent's policy, and before it the encoder where observations are images."""
    acting, features = agent.policy(agent_state), decomposer.features
    return acting if features is None else acting._replace(encoder=features.net(decomposer_state))


def host_parameters(acting: Acting) -> HostParameters:
    """The parameters of one seed as the host acts with them."""

    def on_host(layers: Sequence[Linear]) -> tuple[tuple[FloatArray, FloatArray], ...]:
        return tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in layers)

    net = acting.encoder
    encoder = None if net is None else HostEncoder(on_host(net.convolutions), on_host([net.last])[0])
    return HostParameters(on_host(acting.layers), float(acting.exploration), encoder)


class JoinedPolicies:
    """Those of several learners, one after the other."""

    def __init__(self, parts: Sequence[SentPolicies]) -> None:
        self._parts = parts

    @cached_property
    def rollbacks(self) -> NDArray[np.int32]:
        return np.concatenate([part.rollbacks for part in self._parts])

    @cached_property
    def tree(self) -> Acting:
        tree: Acting = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part.tree for part in self._parts])
        return tree

    @cached_property
    def of_seeds(self) -> list[HostParameters]:
        return [policy for part in self._parts for policy in part.of_seeds]

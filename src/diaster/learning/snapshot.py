"""What learning changes: its state on the device, a copy of it on the host, and the nets that a rollback returns to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.nn.trees import leaf_names

LABELS = "labels"  # their name among the arrays
OPTIMIZER = "optimizer"  # ends the name of every field of a state that only the next gradient step needs
ELITE = "elite"  # episodes, kept by IRCR: like a replay, they belong to one run


Nets = TypeVar("Nets", bound=Any)


class LearnerState(NamedTuple):
    """What learning changes; [S, …]"""

    decomposer: Any
    agent: Any


class LearnerSnapshot(NamedTuple):
    """What learning has changed, on the host; the replay is apart, because of its size."""

    arrays: dict[str, NDArray[Any]]  # nets, and labels where there are any
    good: dict[str, NDArray[Any]]  # the nets that a rollback returns to
    rollbacks: list[int]
    label_age: int


@jax.jit
def copied(tree: Any) -> Any:
    """Another copy on the device: learning takes over the memory of the first."""
    return jax.tree.map(jnp.copy, tree)


@jax.jit
def sound_nets(nets: LearnerState, before: LearnerState) -> LearnerState:
    """The nets; those of a seed in which a number is lost as they were before."""
    floats = [leaf for leaf in jax.tree.leaves(nets) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # End to end, because a reduction of each leaf of its own takes seconds to compile.
    numbers = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in floats], axis=1)
    return with_earlier(jnp.isnan(numbers).any(axis=1), nets, before)


def with_earlier(is_earlier: Array | NDArray[np.bool_], nets: Nets, before: Nets) -> Nets:
    """The nets; those of some seeds from another record of them."""

    def choose(leaf: Array, earlier: Array) -> Array:
        return jnp.where(is_earlier.reshape(-1, *[1] * (leaf.ndim - 1)), earlier, leaf)

    chosen: Nets = jax.tree.map(choose, nets, before)
    return chosen


def net_arrays(nets: LearnerState) -> dict[str, NDArray[Any]]:
    """Nets, optimisers and statistics on the host, by name. Waits for the learning that runs."""
    # Copies: on a CPU what JAX hands out may be the very memory that the next update takes over.
    return {name: np.array(leaf) for name, leaf in leaf_names({"state": jax.device_get(nets)})}


def lasting_arrays(nets: LearnerState) -> dict[str, NDArray[Any]]:
    """The same without optimisers and episodes: what another run can begin with."""
    return {
        name: np.array(jax.device_get(leaf))
        for name, leaf in leaf_names({"state": nets})
        if not any(part.endswith((OPTIMIZER, ELITE)) for part in name.split("."))
    }


def nets_of(arrays: Mapping[str, NDArray[Any]], like: LearnerState) -> LearnerState:
    """The inverse of both, on a device; what is not among the arrays is as in `like`."""
    tree = {"state": like}
    leaves = [jnp.asarray(arrays.get(name, leaf)) for name, leaf in leaf_names(tree)]
    nets: LearnerState = jax.tree.unflatten(jax.tree.structure(tree), leaves)["state"]
    return nets

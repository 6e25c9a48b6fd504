"""Observations and actions, as an environment has them and as nets see them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.envs.making import describe_spaces
from diaster.errors import DiasterError
from diaster.types import EnvSpec, FloatArray


class EnvTerms:
    """Translates between the two, of an environment of which only the spaces are known."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], name: str, horizon: int
    ) -> None:
        self._box = _box_of_numbers(observation_space, name)
        self.spec: EnvSpec = describe_spaces(observation_space, action_space, name, horizon)

    def flat(self, obs: Any) -> FloatArray:
        """Observations in any batch shape, as vectors.  # […, D]"""
        array = array_of(obs, "observations")
        n = array.ndim - len(self._box.shape)
        if n < 0 or array.shape[n:] != self._box.shape:
            raise DiasterError(
                f"observations of shape {array.shape} were given; those of {self.spec.id} have the shape "
                f"{self._box.shape}, with any dimensions before it."
            )
        return array.reshape(*array.shape[:n], self.spec.obs_dim).astype(np.float32)

    def shown(self, flat: FloatArray) -> NDArray[Any]:
        """The inverse; numbers with a fraction stay in 32 bits.  # […, …]"""
        dtype = np.float32 if np.issubdtype(self._box.dtype, np.floating) else self._box.dtype
        return flat.reshape(*flat.shape[:-1], *self._box.shape).astype(dtype, copy=False)

    def seen(self, action: Any) -> FloatArray:
        """Actions in any batch shape, in [−1, 1] or one-hot.  # […, A]"""
        array, spec = array_of(action, "actions"), self.spec
        n = array.ndim - len(spec.action_shape)
        if n < 0 or array.shape[n:] != spec.action_shape:
            raise DiasterError(
                f"actions of shape {array.shape} were given; those of {spec.id} have the shape {spec.action_shape}, "
                "with any dimensions before it."
            )
        if spec.discrete:
            first, last = spec.numbers
            if not ((array % 1 == 0) & (array >= first) & (array <= last)).all():
                raise DiasterError(
                    f"an action was given that {spec.id} does not have; it has {first.tolist()} to {last.tolist()}."
                )
        return spec.from_env(array)


def array_of(values: Any, what: str) -> NDArray[Any]:
    """What a caller has given as an array of numbers."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of other lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise DiasterError(f"{what} were given that are no table of numbers; give an array, with rows of one length.")
    return array


def _box_of_numbers(space: spaces.Space[Any], name: str) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise DiasterError(
            f"{name} has observations of the kind {type(space).__name__}, and only vectors of numbers can be learnt "
            "from; wrap it in gymnasium.wrappers.FlattenObservation."
        )
    if len(space.shape) > 2 or (space.dtype == np.uint8 and len(space.shape) > 1):
        raise DiasterError(
            f"{name} shows images (observations of shape {space.shape}), and only vectors of numbers can be learnt "
            "from; choose state observations, or wrap it with an encoder."
        )
    return space

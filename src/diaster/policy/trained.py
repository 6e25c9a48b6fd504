"""The policy of one seed of a run: a function with the parameters it acts with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.actors.acting import HostParameters, HostPolicy
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically
from diaster.types import EnvSpec, FloatArray, Observation

Which = Literal["last", "best"]


@dataclass(frozen=True)
class Policy:
    """The deterministic policy of one seed: observation → action of the environment.

    An observation may be as the environment shows it, or flat; flat ones may come in batches.

    Examples:
        >>> policy = run.policy(seed=0)
        >>> action = policy(obs)
        >>> policy.export("policy.onnx")
    """

    spec: EnvSpec
    """The environment, as nets see it."""
    seed: int
    which: Which
    """Of the last evaluation, or of the one with the largest mean return."""
    observation_space: spaces.Space[Any]
    """What the environment shows."""
    _acting: HostPolicy = field(repr=False)
    _parameters: HostParameters = field(repr=False)

    def __repr__(self) -> str:
        return f"Policy({self.spec.id}, seed {self.seed}, {self.which})"

    def __call__(self, obs: Any) -> Any:
        """The action for an observation, or those for a batch of flat ones."""
        return self.spec.to_env(self.act(flat_observation(obs, self.spec, self.observation_space)))

    def act(self, obs: Observation) -> FloatArray:
        """The same in the terms of the nets: flat observation → action in [−1, 1], or one-hot."""
        return self._acting.act(self._parameters, obs, None)

    def export(self, path: str | Path) -> Path:
        """Write an ONNX file that maps a batch of flat observations to the environment's actions (extra onnx).

        Input `obs` is float32 [batch, n], or uint8 where observations are images; output `action` is what the policy
        itself returns for them, scaled into the environment's bounds, or the number of a discrete action. What
        normalises observations is part of the net.
        """
        from diaster.policy.onnx_model import policy_model

        path = Path(path)
        if path.suffix.lower() != ".onnx":
            raise DiasterError(f"'{path}' is no name of an ONNX file; choose one that ends in .onnx.")
        if not path.parent.is_dir():
            raise DiasterError(f"the folder '{path.parent}' for '{path.name}' does not exist; make it first.")
        write_atomically(path, policy_model(self._acting, self._parameters, self.spec))
        return path


def flat_observation(obs: Any, spec: EnvSpec, space: spaces.Space[Any]) -> Observation:
    """Observations as the nets see them: flat ones in any batch shape, or one as the environment shows it."""
    if not isinstance(obs, dict | tuple):
        array = np.asarray(obs, spec.obs_dtype)
        if array.shape[-1:] == (spec.obs_dim,):
            return array
    if spec.image is not None:
        raise DiasterError(
            f"an observation of shape {np.shape(obs)} was given; the policy sees the last images of '{spec.id}' "
            f"together, small and flat ({spec.obs_dim} numbers): take observations from the environment run.make_env()."
        )
    try:
        return np.asarray(spaces.flatten(space, obs), np.float32).reshape(spec.obs_dim)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise DiasterError(
            f"an observation of shape {np.shape(obs)} was given; '{spec.id}' shows {space}, "
            f"{spec.obs_dim} numbers when flat."
        ) from None


def flat_action(action: Any, spec: EnvSpec) -> NDArray[np.float32]:
    """Actions of the environment as the nets see them; what cannot be one is refused."""
    array = np.asarray(action)
    if array.shape[array.ndim - len(spec.action_shape) :] != spec.action_shape:
        raise DiasterError(
            f"an action of shape {array.shape} was given; '{spec.id}' has actions of shape {spec.action_shape}."
        )
    if spec.discrete:
        first, last = spec.numbers
        if not ((array >= first) & (array <= last)).all():
            raise DiasterError(f"the action {action} was given; '{spec.id}' has the actions {first} to {last}.")
    return spec.from_env(array)


def refuse_other_batches(*flat: Observation) -> None:
    """Refuse observations and actions that do not belong together, each as the nets see it  # [..., n]"""
    batches = [part.shape[:-1] for part in flat]
    try:
        np.broadcast_shapes(*batches)
    except ValueError:
        counts = " and ".join(str(shape[0] if len(shape) == 1 else shape) for shape in dict.fromkeys(batches))
        raise DiasterError(
            f"observations and actions of {counts} steps were given together; give as many of one as of the other."
        ) from None

"""Policies on the host: NumPy only, one observation at a time, no device in the loop.

The parameters are the agent's own, copied once per chunk. A matrix-vector product of this size costs a
few microseconds here, a round trip to an accelerator several hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from diaster.actors.encoding import HostEncoder, encode
from diaster.types import EnvSpec, FloatArray, Observation

HostLayers = Sequence[tuple[FloatArray, FloatArray]]  # (weight [I, O], bias [O]) per layer

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class HostParameters(NamedTuple):
    """What a policy acts with."""

    layers: HostLayers
    exploration: float
    """How much it explores, in its own terms; it has no meaning for deterministic actions."""
    encoder: HostEncoder | None = None
    """What turns images into the features that the layers see."""


class HostPolicy(NamedTuple):
    """How an agent's parameters act. Functions of a module: worker processes find them by name."""

    name: str
    draw: Callable[[np.random.Generator, int, EnvSpec], FloatArray]
    """The random numbers of n steps  # [n, …]"""
    act: Callable[[HostParameters, Observation, FloatArray | None], FloatArray]
    """An action as the nets see it, from an observation and its random numbers; the deterministic one without them."""


def mlp(layers: HostLayers, x: Any) -> FloatArray:
    """The ReLU perceptron of `nets.mlp`, in NumPy."""
    for number, (weight, bias) in enumerate(layers, 1):
        x = np.dot(x, weight)  # takes less time to be called than @
        np.add(x, bias, out=x)
        if number < len(layers):
            np.maximum(x, 0.0, out=x)
    return np.asarray(x, np.float32)


def outputs_of(parameters: HostParameters, obs: Observation) -> FloatArray:
    """The net's outputs for an observation; an image is encoded first."""
    seen = obs if parameters.encoder is None else encode(parameters.encoder, obs)
    return mlp(parameters.layers, seen)


def random_actions(random: np.random.Generator, n: int, spec: EnvSpec) -> FloatArray:
    """Actions of no policy: uniform over all there are.  # [n, A]"""
    if spec.discrete:
        return _one_hot(random.integers(spec.action_dim, size=n), spec.action_dim)
    return random.uniform(-1.0, 1.0, (n, spec.action_dim)).astype(np.float32)


def tanh_gaussian(parameters: HostParameters, obs: Observation, noise: FloatArray | None) -> FloatArray:
    """SAC's policy: tanh(mean + exp(log_std) · noise); without noise, its deterministic action."""
    outputs = outputs_of(parameters, obs)
    n_actions = outputs.shape[-1] // 2
    mean = outputs[..., :n_actions]
    action: FloatArray
    if noise is None:
        action = np.tanh(mean)
    else:
        # np.split and np.clip take longer than all arithmetic here.
        log_std = np.minimum(np.maximum(outputs[..., n_actions:], LOG_STD_MIN), LOG_STD_MAX)
        action = np.tanh(mean + np.exp(log_std) * noise)
    return action


def noisy_tanh(parameters: HostParameters, obs: Observation, noise: FloatArray | None) -> FloatArray:
    """A deterministic policy, tanh of the net, with Gaussian noise of a fixed size while it collects."""
    action: FloatArray = np.tanh(outputs_of(parameters, obs))
    if noise is None:
        return action
    noisy: FloatArray = np.clip(action + np.float32(parameters.exploration) * noise, -1.0, 1.0)
    return noisy


def epsilon_greedy(parameters: HostParameters, obs: Observation, draw: FloatArray | None) -> FloatArray:
    """The action of the largest value or, with a probability, any action."""
    values = outputs_of(parameters, obs)
    n_actions = values.shape[-1]
    if draw is None or draw[0] >= parameters.exploration:
        return _one_hot(np.argmax(values, axis=-1), n_actions)
    return _one_hot(np.asarray(min(int(draw[1] * n_actions), n_actions - 1)), n_actions)


def categorical(parameters: HostParameters, obs: Observation, gumbel: FloatArray | None) -> FloatArray:
    """A draw from softmax of the net's outputs (by Gumbel's trick), or the most likely action."""
    logits = outputs_of(parameters, obs)
    return _one_hot(np.argmax(logits if gumbel is None else logits + gumbel, axis=-1), logits.shape[-1])


def _one_hot(index: np.ndarray, n: int) -> FloatArray:
    rows: FloatArray = np.eye(n, dtype=np.float32)[index]
    return rows


def _normal(random: np.random.Generator, n: int, spec: EnvSpec) -> FloatArray:
    return random.standard_normal((n, spec.action_dim), dtype=np.float32)


def _two_uniform(random: np.random.Generator, n: int, spec: EnvSpec) -> FloatArray:
    return random.random((n, 2), dtype=np.float32)


def _gumbel(random: np.random.Generator, n: int, spec: EnvSpec) -> FloatArray:
    return random.gumbel(size=(n, spec.action_dim)).astype(np.float32)


TANH_GAUSSIAN = HostPolicy("tanh_gaussian", _normal, tanh_gaussian)
NOISY_TANH = HostPolicy("noisy_tanh", _normal, noisy_tanh)
EPSILON_GREEDY = HostPolicy("epsilon_greedy", _two_uniform, epsilon_greedy)
CATEGORICAL = HostPolicy("categorical", _gumbel, categorical)

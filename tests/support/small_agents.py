"""What the tests of agents share: nets that are straight lines, batches, and policies taken to the host."""

from __future__ import annotations

import jax
import numpy as np

from diaster.actors.acting import HostParameters
from diaster.agents import Acting, Agent, Transition
from diaster.nn.nets import Linear
from diaster.types import EnvSpec

OBS, BATCH, HIDDEN = 2, 32, 16


def continuous_spec(action_dim: int = 1) -> EnvSpec:
    bound = np.ones(action_dim, np.float32)
    return EnvSpec("Made-up", OBS, action_dim, -bound, bound, (action_dim,), 10)


def discrete_spec(n_actions: int) -> EnvSpec:
    zeros, ones = np.zeros(n_actions, np.float32), np.ones(n_actions, np.float32)
    return EnvSpec("Made-up", OBS, n_actions, zeros, ones, (), 10, discrete=True)


def straight(weight, bias, hidden: int = HIDDEN):
    """A perceptron with two hidden layers that computes x @ weight + bias: z = relu(z) − relu(−z)."""
    weight, bias = np.array(weight, np.float32), np.array(bias, np.float32)
    n_in, n_out = weight.shape
    first = np.zeros((n_in, hidden), np.float32)
    first[:, :n_out], first[:, n_out : 2 * n_out] = weight, -weight
    last = np.zeros((hidden, n_out), np.float32)
    last[:n_out], last[n_out : 2 * n_out] = np.eye(n_out), -np.eye(n_out)
    zeros = np.zeros(hidden, np.float32)
    return Linear(first, zeros), Linear(np.eye(hidden, dtype=np.float32), zeros.copy()), Linear(last, bias)


def constant(n_in: int, *outputs: float, hidden: int = HIDDEN):
    """A perceptron that gives the same outputs whatever its input."""
    return straight(np.zeros((n_in, len(outputs))), outputs, hidden)


def normed_constant(net, outputs):
    """A normed net with a head that gives the same outputs whatever its input."""
    head = net.head._replace(weight=np.zeros_like(net.head.weight), bias=np.array(outputs, np.float32))
    return net._replace(head=head)


def kernels_of(net):
    """Every kernel of a normed net."""
    return [*(layer.kernel for layer in net.layers), net.head.weight]


def one_hot(actions, n_actions: int):
    return np.eye(n_actions, dtype=np.float32)[np.resize(actions, BATCH)]


def batch_of(action, reward=(0.0,), terminal=(False,), obs=None, next_obs=None) -> Transition:
    """These rewards and ends over and over: means over the batch are means over them. action  # [B, A]"""
    rng = np.random.default_rng(0)
    random_obs = rng.normal(size=(2, BATCH, OBS)).astype(np.float32)
    return Transition(
        obs=random_obs[0] if obs is None else np.resize(np.array(obs, np.float32), (BATCH, OBS)),
        action=action,
        reward=np.resize(np.array(reward, np.float32), BATCH),
        next_obs=random_obs[1] if next_obs is None else np.resize(np.array(next_obs, np.float32), (BATCH, OBS)),
        terminal=np.resize(np.array(terminal), BATCH),
    )


def first_gradient(optimizer_state):
    """The gradient of the first update, from what Adam remembers of it: a tenth."""
    return jax.tree.map(lambda moment: np.asarray(moment) / 0.1, optimizer_state[0].mu)


def on_host(acting: Acting) -> HostParameters:
    layers = tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in acting.layers)
    return HostParameters(layers, float(acting.exploration))


def greedy(agent: Agent, state, obs):
    """The deterministic action on the host.  # [A]"""
    return agent.acting.act(on_host(agent.policy(state)), np.array(obs, np.float32), None)


def changed(one, other) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(a, b) for a, b in leaves)


def projected_one_by_one(mass, values, atoms):
    """Mass at values moved to atoms, one value after the other: what `categorical.project` does for all at once."""
    spacing, found = atoms[1] - atoms[0], np.zeros(mass.shape)
    for row, (of_row, values_of_row) in enumerate(zip(mass, values, strict=True)):
        for own, value in zip(of_row, values_of_row, strict=True):
            place = np.clip((value - atoms[0]) / spacing, 0, len(atoms) - 1)
            lower = min(int(place), len(atoms) - 2)
            found[row, lower] += own * (lower + 1 - place)
            found[row, lower + 1] += own * (place - lower)
    return found

"""Agents: any off-policy algorithm that can be updated on transitions with a reward.

An agent is a record of pure functions over an explicit state. Its policy acts on the host, in NumPy, with a
copy of `policy(state)`; `acting` is what understands those parameters there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from diaster.actors.acting import HostPolicy
from diaster.config import AGENTS
from diaster.config.agents import AgentConfig
from diaster.config.methods import imported
from diaster.errors import DiasterError
from diaster.nn.encoder import Encoder
from diaster.nn.nets import MLP
from diaster.types import EnvSpec

State = Any
Metrics = dict[str, Array]


class Acting(NamedTuple):
    """The parameters of a policy; `acting.HostParameters` on the host."""

    layers: MLP
    exploration: Array  # []
    encoder: Encoder | None = None  # where observations are images; learning adds it to what an agent returns


class Transition(NamedTuple):
    """What an agent learns from. The reward is a decomposer's; nothing else ever fills it."""

    obs: Array  # [B, D]
    action: Array  # [B, A]
    reward: Array  # [B]
    next_obs: Array  # [B, D]
    terminal: Array  # [B]


class WorkingForm(NamedTuple):
    """Another form of a state, in which updates have fewer and larger operations; for an accelerator."""

    pack: Callable[[State], Any]
    unpack: Callable[[Any], State]


class Agent(NamedTuple):
    """What training needs of an agent. All functions are for one seed; the caller adds `vmap`."""

    init: Callable[[Array, EnvSpec], State]
    noise: Callable[[Array, Transition], Array]
    """The random numbers an update on such a batch needs."""
    update: Callable[[State, Transition, Array, Any], tuple[State, Metrics]]
    """One gradient step on a batch, with its noise and its number. The number is the same for all seeds, so that
    a branch on it stays a branch under `vmap`."""
    policy: Callable[[State], Acting]
    """The parameters that act."""
    acting: HostPolicy
    """How they act, on the host."""
    working_form: WorkingForm | None = None
    """What `update` is given on an accelerator, for the time of a chunk, instead of the state itself."""
    watch: Callable[[State, Array, Array], State] | None = None
    """Look, before a chunk of updates, at the rewards of stretches of stored steps, one after the other in a column,
    and at which of them end an episode  # [T, W]. None: the size of rewards does not matter."""
    cycle: int = 1
    """Where the first of this many updates does more than the others: the caller may then number updates from 0 in
    each cycle and give plain numbers, which a compiled program can branch on before it runs."""
    survey: Callable[[State, Transition, Array, Array], State] | None = None
    """Look, before a chunk of updates, at stretches of stored steps with their rewards  # [T, W], at first
    observations of episodes  # [M, D], and at how many steps are stored. None: nothing is to be learnt there."""
    rewards: Callable[[State, Transition], Array] | None = None
    """The rewards that the agent makes of those of steps  # […]. None: it takes them as they are."""


def make_agent(settings: AgentConfig, spec: EnvSpec) -> Agent:
    """The agent that settings are of, in its form for the environment's actions."""
    check_pair(settings.name, spec)
    agent: Agent = AGENTS[settings.name].make(settings, spec.discrete)
    if not getattr(settings, "potential", False):
        return agent
    with_potential: Callable[[Agent], Agent] = imported("diaster.agents.potential:with_potential")
    return with_potential(agent)


def check_pair(agent: str, spec: EnvSpec) -> None:
    """Refuse an agent that cannot act in the environment, and name those that can."""
    fitting = [name for name, kind in AGENTS.items() if kind.factory(spec.discrete) is not None]
    if agent not in fitting:
        kind = f"{spec.action_dim} discrete actions" if spec.discrete else "continuous actions"
        names = " or ".join(f"--agent {name}" for name in sorted(fitting))
        raise DiasterError(f"the agent '{agent}' cannot act in '{spec.id}', which has {kind}; use {names}.")

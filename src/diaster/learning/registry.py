"""The methods and the learners there are, by name. `config` holds their settings and a line of help for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diaster.agents import Agent
from diaster.agents.ddpg import make_ddpg
from diaster.agents.dqn import make_dqn
from diaster.agents.sac import make_sac
from diaster.agents.sac_discrete import make_sac_discrete
from diaster.agents.td3 import make_td3
from diaster.config import RunConfig
from diaster.decomposers import Decomposer
from diaster.decomposers.controls import make_dense, make_episodic, make_uniform
from diaster.decomposers.diaster import make_diaster
from diaster.decomposers.ircr import make_ircr
from diaster.decomposers.rd import make_rd
from diaster.decomposers.rrd import make_rrd
from diaster.decomposers.rudder import make_rudder
from diaster.errors import DiasterError
from diaster.types import EnvSpec

METHODS: dict[str, Callable[[Any, int], Decomposer]] = {
    "diaster": make_diaster,
    "rrd": make_rrd,
    "rd": make_rd,
    "rudder": make_rudder,
    "ircr": make_ircr,
    "uniform": make_uniform,
    "episodic": make_episodic,
    "dense": make_dense,
}
CONTINUOUS_AGENTS: dict[str, Callable[[Any], Agent]] = {"sac": make_sac, "td3": make_td3, "ddpg": make_ddpg}
DISCRETE_AGENTS: dict[str, Callable[[Any], Agent]] = {"dqn": make_dqn, "sac": make_sac_discrete}


def make_decomposer(config: RunConfig, horizon: int) -> Decomposer:
    """The method a configuration names."""
    return METHODS[config.method](config.decomposer, horizon)


def make_agent(config: RunConfig, spec: EnvSpec) -> Agent:
    """The learner a configuration names, in its form for the environment's actions."""
    check_pair(config.agent, spec)
    return (DISCRETE_AGENTS if spec.discrete else CONTINUOUS_AGENTS)[config.agent](config.learner)


def check_pair(agent: str, spec: EnvSpec) -> None:
    """Refuse a learner that cannot act in the environment, and name those that can."""
    fitting = DISCRETE_AGENTS if spec.discrete else CONTINUOUS_AGENTS
    if agent not in fitting:
        kind = f"{spec.action_dim} discrete actions" if spec.discrete else "continuous actions"
        names = " or ".join(f"--agent {name}" for name in sorted(fitting))
        raise DiasterError(f"the agent '{agent}' cannot act in '{spec.id}', which has {kind}; use {names}.")

"""Which kind of actions an agent can take; the wrong kind is refused with the names of the agents for it."""

from __future__ import annotations

from diaster.errors import DiasterError
from diaster.types import EnvSpec


def need_continuous(agent: str, spec: EnvSpec, instead: str = "dqn, sac or xqc") -> None:
    """Refuse an environment with discrete actions."""
    if spec.discrete:
        raise DiasterError(
            f"the agent '{agent}' takes continuous actions and '{spec.id}' has {spec.action_dim} discrete ones; "
            f"use {instead}."
        )


def need_discrete(agent: str, spec: EnvSpec, instead: str = "sac, xqc, td3 or ddpg") -> None:
    """Refuse an environment with continuous actions."""
    if not spec.discrete:
        raise DiasterError(
            f"the agent '{agent}' takes discrete actions and '{spec.id}' has continuous ones; use {instead}."
        )

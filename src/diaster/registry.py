"""The methods and the learners there are, by name. `config.py` holds a line of help for each."""

from __future__ import annotations

from diaster.agents import Agent
from diaster.agents.sac import make_sac
from diaster.config import RunConfig
from diaster.decompose import Decomposer
from diaster.decompose.diaster import make_diaster

METHODS = {"diaster": make_diaster}
AGENTS = {"sac": make_sac}


def make_decomposer(config: RunConfig, horizon: int) -> Decomposer:
    """The method a configuration names."""
    return METHODS[config.method](config.decomposer, horizon)


def make_agent(config: RunConfig) -> Agent:
    """The learner a configuration names."""
    return AGENTS[config.agent](config.learner)

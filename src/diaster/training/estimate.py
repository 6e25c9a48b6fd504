"""How long a run will take and how much memory it needs, before it begins: rough figures.

The figures were measured with nets of 256 units on two machines (docs/explanation/performance.md) and are scaled by
the number of updates, by the steps of an update and by the size of the nets. They tell an hour from a day, and no more:
a run that learns measures its own pace (`pace.py`), and a sweep uses that of its finished cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diaster.config import RunConfig, XqcConfig, updates_due
from diaster.config.agents import AgentConfig
from diaster.config.fitted import NO_UPDATES
from diaster.replay.store import store_bytes
from diaster.training.schedule import ring_rows
from diaster.types import EnvSpec

# Interpreter, JAX, compiled programs and environments; 620 MB were seen with one seed and a small replay.
PROCESS_BYTES = 700 << 20
# Numbers kept for each unit and step of a decomposer's update until its gradient is known.
NUMBERS_PER_UNIT = 8
# What a step costs a perceptron, as a share of what it costs a recurrent net.
PERCEPTRON = 0.25


class Speed(NamedTuple):
    """Seconds that the parts of a run take on a kind of machine, with nets of 256 units."""

    start: float  # imports and compilation
    env_step: float
    transition: float  # of an agent's update, for one of its batch
    looked_at: float  # of a decomposer's update, for one step of an episode
    scanned: float  # the same, for one step of its longest sequence; on a GPU it is these that count
    seeds_for_one: float  # how many seeds take as long as one
    pixel: float  # of an image, each time that it is encoded; not measured on a GPU


TWO_CORES = Speed(10.0, 0.15e-3, 4.3e-3 / 256, 17e-6, 0.0, 1.0, 60e-9)
ONE_CORE = Speed(15.0, 0.2e-3, 6.6e-3 / 256, 27e-6, 0.0, 1.0, 110e-9)
GPU = Speed(30.0, 0.05e-3, 0.25e-3 / 256, 0.1e-6, 13e-6, 5.0, 0.5e-9)


class Need(NamedTuple):
    """What a run is expected to take."""

    seconds: float
    memory: int  # bytes, on the device that learns


def estimate(config: RunConfig, spec: EnvSpec, cores: float, is_on_gpu: bool) -> Need:
    """From settings alone."""
    speed = GPU if is_on_gpu else TWO_CORES if cores >= 2 else ONE_CORE
    looked_at, scanned = config.method.cost(spec.horizon) if config.method.updates else NO_UPDATES
    per_image = 0.0 if spec.image is None else spec.image.side**2 * speed.pixel
    per_agent_update = config.agent.batch_size * (speed.transition * _share_of_agent(config.agent) + 2 * per_image)
    size = _share(getattr(config.method, "hidden", 0)) * (PERCEPTRON if scanned == 1 else 1.0)
    per_fit = looked_at * (speed.looked_at * size + per_image) + scanned * speed.scanned
    per_step = speed.env_step + per_agent_update * config.agent.updates / config.agent.every
    fits = per_fit * updates_due(config.method, config.steps)
    evaluated = -(-config.steps // config.evaluation.every) * config.evaluation.episodes * spec.horizon
    n_seeds = len(config.seeds)
    seconds = speed.start + max(1.0, n_seeds / speed.seeds_for_one) * (
        config.steps * per_step + fits + evaluated * speed.env_step
    )
    replay = store_bytes(ring_rows(config), spec.obs_dim, spec.action_dim, config.feedback, spec.obs_dtype)
    activations = 4 * NUMBERS_PER_UNIT * looked_at * getattr(config.method, "hidden", 0)
    held_out = 0 if is_on_gpu else _held_out_bytes(config, spec)  # these stay on the host
    return Need(seconds, PROCESS_BYTES + n_seeds * (replay + activations + held_out))


def _held_out_bytes(config: RunConfig, spec: EnvSpec) -> int:
    """Of the observations that one seed keeps to measure the decomposition on, if its episodes last to the horizon."""
    each = config.evaluation.episodes
    most = max(each, config.evaluation.held_out)
    n_episodes = min(most, -(-config.steps // config.evaluation.every) * each)
    return n_episodes * (spec.horizon + 1) * spec.obs_dim * np.dtype(spec.obs_dtype).itemsize


def _share_of_agent(agent: AgentConfig) -> float:
    """Of the work of SAC with nets of 256 units."""
    if not isinstance(agent, XqcConfig):
        return _share(agent.hidden)
    critic = agent.sizes.critic  # it sees two batches as one
    return len(critic) * _share(critic[0])


def _share(hidden: int) -> float:
    """Of the work of nets with 256 units; small nets do not become free."""
    return 0.1 + 0.9 * (hidden / 256) ** 2

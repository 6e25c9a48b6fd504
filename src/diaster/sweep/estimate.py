"""How long a cell will take and how much memory it needs: rough figures, corrected by cells that are finished.

The figures were measured with nets of 256 units on two machines (docs/performance.md) and are scaled by the number of
updates, by the steps of an update and by the size of the nets. They tell an hour from a day, and no more; once cells
of a method are done, their speed is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from diaster.config import RunConfig, XqcConfig
from diaster.config.agents import AgentConfig
from diaster.config.methods import NO_UPDATES
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


TWO_CORES = Speed(10.0, 0.15e-3, 4.3e-3 / 256, 17e-6, 0.0, 1.0)
ONE_CORE = Speed(15.0, 0.2e-3, 6.6e-3 / 256, 27e-6, 0.0, 1.0)
GPU = Speed(30.0, 0.05e-3, 0.25e-3 / 256, 0.1e-6, 13e-6, 5.0)


class Need(NamedTuple):
    """What a cell is expected to take."""

    seconds: float
    memory: int  # bytes, on the device that learns


class Finished(NamedTuple):
    """A cell that is done: what it was expected to take, and what it took."""

    method: str
    expected: float
    taken: float


def estimate(config: RunConfig, spec: EnvSpec, cores: float, is_on_gpu: bool) -> Need:
    """From settings alone."""
    speed = GPU if is_on_gpu else TWO_CORES if cores >= 2 else ONE_CORE
    looked_at, scanned = config.method.cost(spec.horizon) if config.method.updates else NO_UPDATES
    per_agent_update = config.agent.batch_size * speed.transition * _share_of_agent(config.agent)
    size = _share(getattr(config.method, "hidden", 0)) * (PERCEPTRON if scanned == 1 else 1.0)
    per_fit = looked_at * speed.looked_at * size + scanned * speed.scanned
    per_step = (
        speed.env_step
        + per_agent_update * config.agent.updates / config.agent.every
        + per_fit * config.method.updates / config.method.every
    )
    evaluated = -(-config.steps // config.evaluation.every) * config.evaluation.episodes * spec.horizon
    n_seeds = len(config.seeds)
    seconds = speed.start + max(1.0, n_seeds / speed.seeds_for_one) * (
        config.steps * per_step + evaluated * speed.env_step
    )
    replay = store_bytes(ring_rows(config), spec.obs_dim, spec.action_dim)
    activations = 4 * NUMBERS_PER_UNIT * looked_at * getattr(config.method, "hidden", 0)
    return Need(seconds, PROCESS_BYTES + n_seeds * (replay + activations))


def correction(method: str, finished: Iterable[Finished]) -> tuple[float, int]:
    """What to multiply expectations by, and how many finished cells say so: those of the method, else all."""
    found = [cell for cell in finished if cell.expected > 0 and cell.taken > 0]
    same = [cell for cell in found if cell.method == method] or found
    return (median(cell.taken / cell.expected for cell in same), len(same)) if same else (1.0, 0)


def _share_of_agent(agent: AgentConfig) -> float:
    """Of the work of SAC with nets of 256 units."""
    if not isinstance(agent, XqcConfig):
        return _share(agent.hidden)
    critic = agent.sizes.critic  # it sees two batches as one
    return len(critic) * _share(critic[0])


def _share(hidden: int) -> float:
    """Of the work of nets with 256 units; small nets do not become free."""
    return 0.1 + 0.9 * (hidden / 256) ** 2

"""When things happen in a run. It counts steps, never seconds: a run depends on its settings and seeds alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diaster.config import RunConfig, Schedule


class Chunk(NamedTuple):
    """The steps of every seed between two exchanges with the learner: collected, then stored, then learnt from."""

    number: int
    start: int
    end: int

    @property
    def n_steps(self) -> int:
        return self.end - self.start


def chunks(config: RunConfig) -> Iterator[Chunk]:
    """All chunks of a run. The last one may be shorter; so may the one that ends with the warm-up."""
    size, warm = config.chunk_steps, warmup(config)
    number = start = 0
    while start < config.steps:
        end = min((start // size + 1) * size, config.steps)
        if start < warm < end:
            end = warm
        yield Chunk(number, start, end)
        number, start = number + 1, end


def n_chunks(config: RunConfig) -> int:
    """How many chunks a run has."""
    ends_within = warmup(config) % config.chunk_steps != 0 and warmup(config) < config.steps
    return -(-config.steps // config.chunk_steps) + ends_within


def crosses(every: int, before: int, end: int) -> bool:
    """Whether a multiple of `every` lies in (before, end]."""
    return end // every > before // every


def is_evaluated(config: RunConfig, chunk: Chunk) -> bool:
    """Whether the policies are evaluated when a chunk has been learnt from."""
    return chunk.end == config.steps or crosses(config.evaluation.every, chunk.start, chunk.end)


def updates_due(schedule: Schedule, n_steps: int) -> int:
    """How many updates a schedule asks for in n steps."""
    return n_steps * schedule.updates // schedule.every


def warmup(config: RunConfig) -> int:
    """Steps before learning, once resolved."""
    assert isinstance(config.warmup_steps, int)
    return config.warmup_steps


def ring_rows(config: RunConfig) -> int:
    """Rows to set aside: the capacity, or less where the run cannot fill it."""
    assert isinstance(config.horizon, int)
    return min(config.replay.capacity, 2 * (config.steps + config.envs * config.horizon + config.chunk_steps))

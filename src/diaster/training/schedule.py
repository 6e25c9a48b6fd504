"""When things happen in a run. It counts steps, never seconds: a run depends on its settings and seeds alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.config import RunConfig, updates_due


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


def last_shared_chunk(config: RunConfig) -> int:
    """The number of the last chunk that a run of more steps has too: the very last may be shorter than it is there."""
    return n_chunks(config) - 1 - (config.steps % config.chunk_steps != 0)


def crosses(every: int, before: int, end: int) -> bool:
    """Whether a multiple of `every` lies in (before, end]."""
    return end // every > before // every


def is_evaluated(config: RunConfig, chunk: Chunk) -> bool:
    """Whether the policies are evaluated when a chunk has been learnt from."""
    return chunk.end == config.steps or crosses(config.evaluation.every, chunk.start, chunk.end)


def n_evaluations(config: RunConfig, step: int) -> int:
    """How many evaluations are due after this step, the end of a chunk."""
    if step >= config.steps:
        return 0
    size, every = config.chunk_steps, config.evaluation.every
    last = max(step, (config.steps - 1) // size * size)  # where the last chunk begins, and the run's end is evaluated
    before = last // every - step // every if every >= size else (last - step) // size
    return before + 1


def fits_due(config: RunConfig, made: int, step: int) -> list[int]:
    """How many updates of the decomposer each call makes at the end of a chunk, after those made so far.

    A program is compiled for each size of a call, so there are few. Where updates grow rarer, every chunk has another
    number of them: they wait until a whole call is due.
    """
    due, at_once = updates_due(config.method, step) - made, max(1, updates_due(config.method, config.chunk_steps))
    rest = 0 if getattr(config.method, "fewer_after", 0) else due % at_once
    return [at_once] * (due // at_once) + [rest] * (rest > 0)


def may_fit(
    method: object, ready: NDArray[np.bool_], made: NDArray[Any], n: int, episodes: NDArray[Any]
) -> NDArray[Any]:
    """Which seeds that are ready may make n more updates of the decomposer: as many as their episodes so far allow."""
    most: int = getattr(method, "updates_per_episode", 0)
    allowed: NDArray[np.bool_] = ready & (made + n <= most * episodes) if most else ready
    return allowed


def warmup(config: RunConfig) -> int:
    """Steps before learning, once resolved."""
    assert isinstance(config.warmup_steps, int)
    return config.warmup_steps


def ring_rows(config: RunConfig) -> int:
    """Rows to set aside: the capacity, or less where the run cannot fill it."""
    assert isinstance(config.horizon, int)
    return min(config.replay.capacity, 2 * (config.steps + config.envs * config.horizon + config.chunk_steps))

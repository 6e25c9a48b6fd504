"""When things happen in a run. It counts steps, never seconds: a run depends on its settings and seeds alone."""

from __future__ import annotations

from diaster.config import RunConfig, Schedule


def chunk_ends(config: RunConfig) -> list[int]:
    """The steps at which collection and learning meet. The last chunk may be shorter; so may one at the warm-up."""
    ends = {*range(config.chunk_steps, config.steps, config.chunk_steps), warmup(config), config.steps}
    return sorted(ends)


def crosses(every: int, before: int, end: int) -> bool:
    """Whether a multiple of `every` lies in (before, end]."""
    return end // every > before // every


def updates_due(schedule: Schedule, steps: int) -> int:
    """How many updates a schedule asks for in so many steps."""
    return steps * schedule.updates // schedule.every


def warmup(config: RunConfig) -> int:
    """Steps before learning, once resolved."""
    assert isinstance(config.warmup_steps, int)
    return config.warmup_steps


def ring_rows(config: RunConfig) -> int:
    """Rows to set aside: the capacity, or less where the run cannot fill it."""
    assert isinstance(config.horizon, int)
    return min(config.replay.capacity, 2 * (config.steps + config.envs * config.horizon + config.chunk_steps))

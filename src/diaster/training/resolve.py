"""From settings to a run that can be trained: every 'auto' that can be known becomes a number, the rest is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from diaster.agents import check_pair
from diaster.config import PAPER_TASKS, RunConfig, XqcConfig, check_longest, validate
from diaster.config.methods import with_base
from diaster.decomposers import make_decomposer
from diaster.envs.isolation import describe
from diaster.envs.source import Creator, source_of
from diaster.errors import DiasterError
from diaster.types import EnvSpec


def resolve(config: RunConfig, given: Creator | None = None) -> tuple[RunConfig, EnvSpec]:
    """Turn every 'auto' that can be known now into a number, and refuse what cannot be run.

    `given` makes the environments where the settings cannot say what does.
    """
    validate(config)
    # Before an environment is made: one may change the working directory.
    from_run = str(Path(config.from_run).absolute()) if config.from_run else ""
    spec, _ = describe(source_of(config, given), config.horizon, config.isolate_envs, config.step_seconds)
    horizon = spec.horizon
    if spec.lanes:
        config = _with_lanes(config, spec)
    agent, warmup_steps = config.agent, _warmup_steps(config, horizon)
    if isinstance(agent, XqcConfig) and agent.annealing_updates == "auto":
        n_updates = max(config.steps - warmup_steps, 0) * agent.updates // agent.every  # the warm-up has none
        agent = dataclasses.replace(agent, annealing_updates=n_updates)
    resolved = dataclasses.replace(
        config,
        horizon=horizon,
        warmup_steps=warmup_steps,
        from_run=from_run,
        method=with_base(config.method, spec.image is not None),
        agent=agent,
    )
    validate(resolved)
    check_pair(config.agent.name, spec)
    longest = config.feedback.longest_span(horizon)
    check_longest(config.method, longest, "the horizon" if longest == horizon else "feedback_every")
    make_decomposer(resolved.method, horizon, longest, spec.image is not None)  # it refuses what cannot see images
    needed = 2 * (config.envs * horizon + 2 * config.chunk_steps)
    if config.replay.capacity < needed:
        shared = f" in {config.envs} environments" if config.envs > 1 else ""
        raise DiasterError(
            f"replay.capacity={config.replay.capacity} is too small for episodes of {horizon} steps{shared}; "
            f"it has to be at least {needed}."
        )
    return resolved, spec


def _with_lanes(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """Of a vector the environments of a seed are its lanes."""
    if config.envs not in (1, spec.lanes):
        raise DiasterError(
            f"envs={config.envs} were asked for, and what makes '{spec.id}' gives vectors of {spec.lanes}; leave envs "
            "out, or let it give as many."
        )
    if config.isolate_envs:
        raise DiasterError(
            f"isolate_envs steps each environment in a process of its own, and '{spec.id}' is a vector; leave it out, "
            "and use gymnasium.vector.AsyncVectorEnv for processes."
        )
    return dataclasses.replace(config, envs=spec.lanes)


def _warmup_steps(config: RunConfig, horizon: int) -> int:
    if config.warmup_steps != "auto":
        return config.warmup_steps
    own = PAPER_TASKS[config.env].warmup_steps if config.env in PAPER_TASKS else 5000
    steps = max(1, min(own, config.steps // 10))
    if config.envs > 1:  # then episodes that last as long as they may have all ended
        steps = max(steps, min(config.envs * horizon, config.steps // 2))
    return steps

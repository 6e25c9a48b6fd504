"""From settings to a run that can be trained: every 'auto' that can be known becomes a number, the rest is refused."""

from __future__ import annotations

import dataclasses

from diaster.agents import check_pair
from diaster.config import PAPER_TASKS, DiasterConfig, RunConfig, XqcConfig, validate
from diaster.envs.isolation import describe
from diaster.envs.making import find_horizon, import_modules
from diaster.errors import DiasterError
from diaster.types import EnvSpec


def resolve(config: RunConfig) -> tuple[RunConfig, EnvSpec]:
    """Turn every 'auto' that can be known now into a number, and refuse what cannot be run."""
    validate(config)
    import_modules(config.imports)
    horizon = find_horizon(config.env, config.horizon)
    spec, _ = describe(config.env, horizon, config.imports, config.isolate_envs, config.step_seconds)
    agent, warmup_steps = config.agent, _warmup_steps(config, horizon)
    if isinstance(agent, XqcConfig) and agent.annealing_updates == "auto":
        n_updates = max(config.steps - warmup_steps, 0) * agent.updates // agent.every  # the warm-up has none
        agent = dataclasses.replace(agent, annealing_updates=n_updates)
    resolved = dataclasses.replace(config, horizon=horizon, warmup_steps=warmup_steps, agent=agent)
    validate(resolved)
    check_pair(config.agent.name, spec)
    if isinstance(config.method, DiasterConfig):
        _check_horizon(config.method, horizon)
    needed = 2 * (config.envs * horizon + 2 * config.chunk_steps)
    if config.replay.capacity < needed:
        shared = f" in {config.envs} environments" if config.envs > 1 else ""
        raise DiasterError(
            f"replay.capacity={config.replay.capacity} is too small for episodes of {horizon} steps{shared}; "
            f"it has to be at least {needed}."
        )
    return resolved, spec


def _warmup_steps(config: RunConfig, horizon: int) -> int:
    if config.warmup_steps != "auto":
        return config.warmup_steps
    own = PAPER_TASKS[config.env].warmup_steps if config.env in PAPER_TASKS else 5000
    steps = max(1, min(own, config.steps // 10))
    if config.envs > 1:  # then episodes that last as long as they may have all ended
        steps = max(steps, min(config.envs * horizon, config.steps // 2))
    return steps


def _check_horizon(settings: DiasterConfig, horizon: int) -> None:
    cuts, budget = settings.n_cuts, settings.batch_steps
    if isinstance(cuts, int) and cuts > max(1, horizon - 1):
        raise DiasterError(f"method.n_cuts={cuts} exceeds the horizon {horizon}; at most {horizon - 1} cuts exist.")
    if settings.segments == "all" and 0 < budget < horizon:
        raise DiasterError(
            f"method.batch_steps={budget} cannot hold an episode of the horizon {horizon}; give at least that many."
        )

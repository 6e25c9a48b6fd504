"""Settings that have an effect only together with others, and what new runs and fits are told that give them alone.

A run that is there keeps such a setting: it changes nothing. So these are asked for where something new begins, and
`validate`, which is also for what is read back, does not know them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from diaster.config.agents import XqcConfig
from diaster.config.fitted import FittedConfig, NetConfig
from diaster.config.methods import DiasterConfig, MethodConfig, with_base
from diaster.config.run import RunConfig
from diaster.config.tasks import preset_settings
from diaster.errors import DiasterError


class Need(NamedTuple):
    """Where a setting has no effect, and how it gets one; both are parts of a sentence."""

    of: type[Any]
    setting: str
    is_idle: Callable[[Any], bool]
    where: str
    remedy: str


def _is_sampled(method: DiasterConfig) -> bool:
    return method.segments == "sampled"


def _is_whole(method: DiasterConfig) -> bool:
    return method.segments == "all"


NEEDS = (
    Need(
        DiasterConfig, "n_cuts", _is_sampled, "on sampled segments", "add --method.segments all to cut whole episodes"
    ),
    Need(DiasterConfig, "terminal_target", _is_sampled, "on sampled segments", "add --method.segments all"),
    Need(
        DiasterConfig,
        "precision",
        _is_sampled,
        "on sampled segments, which are short",
        "add --method.segments all",
    ),
    Need(DiasterConfig, "batch_steps", _is_sampled, "on sampled segments", "add --method.segments all"),
    Need(DiasterConfig, "segment_length", _is_whole, "on whole episodes", "use --method.segments sampled"),
    Need(DiasterConfig, "segments_per_episode", _is_whole, "on whole episodes", "use --method.segments sampled"),
    Need(
        DiasterConfig,
        "penalty_episodes",
        lambda method: method.variance_penalty == 0.0,
        "with method.variance_penalty=0, where nothing can fade",
        "give a penalty above 0",
    ),
    Need(
        XqcConfig,
        "final_learning_rate",
        # Where there are no updates, `auto` stands for 0 too.
        lambda agent: agent.annealing_updates == 0 and agent.updates > 0,
        "with agent.annealing_updates=0, where the step size stays as it is",
        "give --agent.annealing-updates auto",
    ),
    Need(RunConfig, "step_seconds", lambda run: not run.isolate_envs, "without isolate_envs", "add --isolate-envs"),
    Need(
        RunConfig,
        "restart_agent_at",
        lambda run: run.method.updates == 0 and not isinstance(run.method, NetConfig),
        "with a method that fits nothing, whose rewards become no better",
        "use --method diaster, say",
    ),
)


def check_new(config: RunConfig) -> None:
    """Refuse what no new run should have, whatever older ones have."""
    usual = preset_settings(config.preset, config.method.name, config.agent.name, config.env)
    refuse_idle(config, usual)
    refuse_idle(config.method, usual.get("method", {}), "method.")
    refuse_idle(config.agent, usual.get("agent", {}), "agent.")
    _refuse_untrained_nets(config)
    agent = config.agent
    if (
        isinstance(agent, XqcConfig)
        and agent.annealing_updates != 0
        and agent.final_learning_rate > agent.learning_rate
    ):
        raise DiasterError(
            f"agent.final_learning_rate={agent.final_learning_rate:g} is larger than agent.learning_rate="
            f"{agent.learning_rate:g}, from which the step size falls; give --agent.final-learning-rate "
            f"{agent.learning_rate / 10:g}, say, or --agent.annealing-updates 0, and it stays as it is."
        )


def refuse_idle(settings: Any, usual: Mapping[str, Any] | None = None, prefix: str = "") -> None:
    """Refuse settings without effect; those that have their default, or what is usual here, were not asked for."""
    defaults = {field.name: field.default for field in dataclasses.fields(settings)} | dict(usual or {})
    for need in NEEDS:
        if not isinstance(settings, need.of) or not need.is_idle(settings):
            continue
        value = getattr(settings, need.setting)
        if value == defaults[need.setting]:
            continue
        given = f"{prefix}{need.setting}={value}"
        raise DiasterError(f"{given} has no effect {need.where}; {need.remedy}, or leave it out.")


def _refuse_untrained_nets(config: RunConfig) -> None:
    """Without updates r̂ is that of nets as they begin, unless they are another run's or there is a base."""
    method: MethodConfig = with_base(config.method)
    if not isinstance(method, NetConfig) or method.updates > 0 or config.from_run:
        return
    if isinstance(method, FittedConfig) and method.base != "none":
        return
    may_have_base = isinstance(method, FittedConfig) and getattr(method, "reward_source", "") != "difference"
    base = ", --method.base linear, which needs none," if may_have_base else ""
    raise DiasterError(
        f"method.updates=0 leaves the nets of '{method.name}' as they begin, and the policy would follow noise; give "
        f"--method.updates 1 or more{base} or --from a run whose nets are to stay."
    )

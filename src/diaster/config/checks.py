"""Everything that can be known to be wrong with settings before an environment is made."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from diaster.config.agents import AGENTS
from diaster.config.limits import broken_limit
from diaster.config.methods import METHODS, DiasterConfig, IrcrConfig, MethodConfig, RrdConfig
from diaster.config.needs import refuse_idle
from diaster.config.run import RunConfig
from diaster.config.tasks import PRESETS
from diaster.errors import DiasterError, unknown


def validate(config: RunConfig) -> None:
    """Refuse what no run can have. The limits of single settings stand at the settings."""
    if not config.env:
        raise DiasterError("no environment was named; give a Gymnasium id, e.g. diaster train Hopper-v5.")
    for what, settings, known in (("method", config.method, METHODS), ("agent", config.agent, AGENTS)):
        if settings.name not in known:
            raise unknown(what, settings.name, known)
        if not isinstance(settings, known[settings.name].settings):
            raise DiasterError(
                f"{what} '{settings.name}' was given the settings of another one ({type(settings).__name__}); "
                "let build_config choose them."
            )
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    if not config.seeds:
        raise DiasterError("no seeds were given; give --seeds 5 for seeds 0 to 4, or --seeds 3,7,11.")
    if len(set(config.seeds)) < len(config.seeds):
        raise DiasterError(f"seeds {_listed(config.seeds)} name one twice; give each seed once.")
    if min(config.seeds) < 0 or max(config.seeds) >= 2**32:
        raise DiasterError(f"seeds {_listed(config.seeds)} leave the range 0 to 2^32 - 1; choose others.")
    check_limits(config)
    check_together(config.method)
    if config.known_rewards and isinstance(config.method, IrcrConfig):
        raise DiasterError(
            "the rewards of the method 'ircr' are relative, and known rewards cannot be added to them; "
            "use another method, or leave --known-rewards out."
        )
    if config.envs > config.chunk_steps:
        raise DiasterError(
            f"envs={config.envs} are more than the steps they share, chunk_steps={config.chunk_steps}; "
            "give fewer environments or longer chunks."
        )
    if config.agent.batch_size > config.replay.capacity:
        raise DiasterError(
            f"agent.batch_size={config.agent.batch_size} is larger than replay.capacity={config.replay.capacity}; "
            "make the batch smaller or the replay larger."
        )
    if isinstance(config.warmup_steps, int) and config.warmup_steps >= config.steps:
        raise DiasterError(
            f"warmup_steps={config.warmup_steps} leaves nothing to learn from in steps={config.steps}; "
            f"give --steps {config.warmup_steps + config.chunk_steps} or more, or a shorter --warmup-steps."
        )


def refuse_exact_sum(method: Any) -> None:
    """What to say where a method is given a setting that is every other's, and it has none."""
    if isinstance(method, str) and method in METHODS and (why := METHODS[method].no_exact_sum):
        raise DiasterError(f"method.exact_sum was given, and the rewards of the method '{method}' {why}.")


def check_method(settings: MethodConfig, horizon: int) -> None:
    """Refuse settings of a method alone, without a run, for episodes of at most `horizon` steps."""
    check_limits(settings, "method.")
    check_together(settings)
    refuse_idle(settings, prefix="method.")
    check_longest(settings, horizon, "the horizon")


def check_longest(settings: MethodConfig, longest: int, name: str) -> None:
    """Refuse what a method cannot do in so many steps, the most that a number is for; `name` is that of the limit."""
    if not isinstance(settings, DiasterConfig):
        return
    cuts, budget = settings.n_cuts, settings.batch_steps
    if isinstance(cuts, int) and cuts > max(1, longest - 1):
        raise DiasterError(f"method.n_cuts={cuts} exceeds {name} {longest}; at most {longest - 1} cuts exist.")
    if settings.segments == "all" and 0 < budget < longest:
        raise DiasterError(
            f"method.batch_steps={budget} cannot hold the steps of {name} {longest}; give at least that many."
        )


def check_limits(settings: Any, prefix: str = "") -> None:
    """Refuse numbers outside the limits that stand at their settings."""
    for name, value, limits in limited_settings(settings, prefix):
        complaint = broken_limit(name, value, limits)
        if complaint:
            raise DiasterError(complaint)


def limited_settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Every setting by its dotted name, with its value and what its annotation says of it."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from limited_settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value, tuple(_metadata(hints[field.name]))


def _metadata(hint: Any) -> Iterator[Any]:
    """What stands in `Annotated[…]`, also where that is one of several types."""
    yield from getattr(hint, "__metadata__", ())
    for argument in typing.get_args(hint):
        yield from _metadata(argument)


def check_together(settings: MethodConfig) -> None:
    """Settings of a method that contradict each other."""
    if getattr(settings, "careful", 0.0) > 0.0 and getattr(settings, "ensemble", 1) == 1:
        raise DiasterError(
            "method.careful goes by how much the members of an ensemble differ, and there is one; "
            "add --method.ensemble 5, or leave it out."
        )
    scale = getattr(settings, "return_scale", "auto")
    if scale != "auto" and getattr(settings, "scale_steps", 0):
        raise DiasterError(
            f"method.scale_steps is for the automatic scale, which follows returns, and method.return_scale={scale:g} "
            "never does; leave one of them out."
        )
    if isinstance(settings, RrdConfig) and settings.unbiased and settings.subset < 2:
        raise DiasterError(
            f"method.subset={settings.subset} has no variance to take out of the loss; "
            "draw at least 2 steps, or give --method.no-unbiased."
        )
    if not isinstance(settings, DiasterConfig):
        return
    if settings.base not in ("none", "auto") and settings.reward_source == "difference":
        raise DiasterError(
            f"method.base={settings.base} goes with rewards of single steps, and method.reward_source=difference has "
            "none; use --method.base none or --method.reward-source step_reward."
        )
    if settings.unbiased and settings.segments == "all":
        raise DiasterError(
            "method.unbiased has no effect on whole episodes, where nothing is left to chance; "
            "leave it out, or leave --method.segments sampled."
        )
    if settings.unbiased and settings.segments_per_episode < 2:
        raise DiasterError(
            f"method.segments_per_episode={settings.segments_per_episode} has no variance to take out of the loss; "
            "draw at least 2 segments, or leave --method.unbiased out."
        )
    if settings.terminal_target == "return" and settings.reward_source == "difference":
        raise DiasterError(
            "method.terminal_target=return shapes the targets of the step reward, and reward_source=difference has "
            "none; leave one of the two out."
        )


def _listed(seeds: tuple[int, ...]) -> str:
    return ",".join(map(str, seeds))

"""Everything that can be known to be wrong with settings before an environment is made."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from diaster.config.agents import AGENTS
from diaster.config.limits import broken_limit
from diaster.config.methods import METHODS, DiasterConfig
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
    for name, value, limits in limited_settings(config):
        complaint = broken_limit(name, value, limits)
        if complaint:
            raise DiasterError(complaint)
    if isinstance(config.method, DiasterConfig):
        _validate_diaster(config.method)
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
            "give more steps or a shorter warm-up."
        )


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


def _validate_diaster(settings: DiasterConfig) -> None:
    if settings.segments == "sampled":
        if settings.n_cuts != "auto":
            raise DiasterError(
                f"method.n_cuts={settings.n_cuts} has no effect on sampled segments; "
                "add --method.segments all to cut whole episodes, or leave n_cuts out."
            )
        if settings.terminal_target == "return":
            raise DiasterError("method.terminal_target=return needs whole episodes; add --method.segments all.")
        if settings.precision != "float32":
            raise DiasterError(
                f"method.precision={settings.precision} has no effect on sampled segments, which are short; "
                "add --method.segments all, or leave it out."
            )
    if settings.terminal_target == "return" and settings.reward_source == "difference":
        raise DiasterError(
            "method.terminal_target=return shapes the targets of the step reward, and reward_source=difference has "
            "none; leave one of the two out."
        )


def _listed(seeds: tuple[int, ...]) -> str:
    return ",".join(map(str, seeds))

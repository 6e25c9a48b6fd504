"""The settings of a fit to a data set, with those of its method inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from diaster.config.checks import check_limits, check_together
from diaster.config.limits import Count, CountOrNone, at_least, at_most
from diaster.config.merge import merge
from diaster.config.methods import DEFAULT_METHOD, METHODS, DiasterConfig, MethodConfig
from diaster.errors import DiasterError, unknown

Outcome = Literal["sum", "binary"]
HiddenShare = Annotated[float, at_least(0.01), at_most(0.9)]

# What held-out episodes of data sets prefer, where it is not the default of a run.
FIT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "diaster": {"base": "linear", "penalty_episodes": 10},
    "rrd": {"base": "linear", "unbiased": True, "normalize_inputs": True},
    "rd": {"base": "linear", "normalize_inputs": True},
}

# A turn's embedding has to be judged as it is, by itself, and by more than a linear reward; see docs/lab/data-sets.md.
METHOD_OF_TURNS = "rrd"


@dataclass(frozen=True)
class FitConfig:
    """How a data set is fitted; together with the data these settings determine the result on a given machine."""

    outcome: Outcome = "sum"
    """What an episode's number is: sum, of rewards (squared error); binary, 0 or 1 (cross-entropy)."""
    exact_sum: bool = False
    """Add to rewards an even share of what they miss of their episode's return. Turns always have it."""
    held_out: HiddenShare = 0.2
    """Share of the episodes that is not fitted to: half of it to stop on, half to measure fit_r2 on."""
    updates: CountOrNone = 20_000
    """Updates at most; fewer if the held-out error stops falling. 0: a linear base alone."""
    check_every: Count = 500
    """Updates between two looks at the held-out error."""
    patience: Count = 10
    """Looks without a smaller error after which the fit stops."""
    memory: Annotated[int, at_least(16), at_most(1_000_000)] = 400
    """Megabytes for the episodes that are fitted to; where there are more, a random part of them is taken."""
    seed: Annotated[int, at_least(0), at_most(2**32 - 1)] = 0
    """Of the nets, of batches, and of which episodes are held out."""
    method: MethodConfig = field(default_factory=lambda: DiasterConfig(**FIT_SETTINGS["diaster"]))


def default_fit(method: str = DEFAULT_METHOD) -> FitConfig:
    """The defaults of a fit with a method."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return FitConfig(method=METHODS[method].settings(**FIT_SETTINGS.get(method, {})))


def build_fit(**settings: Any) -> FitConfig:
    """The settings of a fit: defaults < settings. A method is a name, or a table with a name."""
    method = settings.get("method", DEFAULT_METHOD)
    table = dict(method) if isinstance(method, Mapping) else {"name": method}
    name = table.get("name", DEFAULT_METHOD)
    if not isinstance(name, str):
        raise DiasterError(f"method={method!r} is neither a name nor a table with a name; give method='diaster'.")
    config: FitConfig = merge(default_fit(name), {**settings, "method": table}, "the call")
    check_fit(config)
    return config


def check_fit(config: FitConfig) -> None:
    """Refuse what no fit can have."""
    check_limits(config)
    check_together(config.method)
    if METHODS[config.method.name].settings is METHODS["dense"].settings:
        raise DiasterError("the method 'dense' takes the hidden rewards as they are; there is nothing to fit.")


def fit_config_type(method: str) -> type[FitConfig]:
    """FitConfig with the settings of one method in the place of "any": what a parser needs."""
    default = default_fit(method)
    kind = type(default.method)
    body: dict[str, Any] = {
        "__annotations__": {"method": kind},
        "__doc__": FitConfig.__doc__,
        "__module__": FitConfig.__module__,
        "method": field(default_factory=lambda: default.method),
    }
    return dataclass(frozen=True)(type("FitConfig", (FitConfig,), body))

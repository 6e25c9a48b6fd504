"""What the settings of all methods have in common, and those of methods whose step reward is a net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from diaster.config.limits import Count, CountOrNone, Fraction, NotNegative, Positive, Size, Units, at_least, at_most

Auto = Literal["auto"]
Members = Annotated[int, at_least(1), at_most(100)]
Base = Literal["none", "linear", "mixed", "auto"]
EpisodeDraw = Literal["length", "uniform"]


class UpdateCost(NamedTuple):
    """How many steps an update looks at, and how many of them one after another."""

    steps: int
    sequential: int


NO_UPDATES = UpdateCost(0, 0)


@dataclass(frozen=True)
class NetConfig:
    """Settings of every method that fits nets. What differs between them stands at each."""

    name: str = ""
    """How returns are decomposed: 'diaster list methods' explains them."""
    hidden: Units = 256
    """Units of each of the two hidden layers of the step reward (Diaster: and of the GRU)."""
    batch_episodes: Size = 4
    """Episodes per update."""
    learning_rate: Positive = 3e-4
    """Adam's step size."""
    weight_decay: NotNegative = 0.0
    """How much of the nets' weights decays (AdamW): this times learning_rate in each update."""
    averaging: Fraction = 0.0
    """How much of the step reward's running average is kept in each update, early on less; 0 uses the net as it is."""
    next_obs: bool = True
    """Give the nets s − s′ as well as s and a (Diaster's paper does not)."""
    normalize_inputs: bool = False
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: Positive | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    scale_steps: CountOrNone = 0
    """With return_scale=auto: environment steps after which the scale stays as it is; 0: it always follows returns."""
    episode_draw: EpisodeDraw = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: CountOrNone = 250
    """Updates per `every` environment steps."""
    every: Count = 1000
    """See updates."""
    fewer_after: CountOrNone = 0
    """Environment steps n after which updates grow rarer, by √(n / steps so far); 0: they never do."""
    updates_per_episode: CountOrNone = 0
    """Most updates so far, for each episode so far; keeps few early ones from being learnt by heart. 0: no limit."""
    relabel_every: Count = 1000
    """Where rewards are stored (reward_source=difference, exact_sum): renewed before they are this many updates old."""


@dataclass(frozen=True)
class FittedConfig(NetConfig):
    """Settings of Diaster, RRD and RD, whose nets reward single steps."""

    base: Base = "none"
    """Reward linear in (s + s′)/2, a, a². linear: nets learn the rest; mixed: a mean of both; auto: mixed, or none."""
    ensemble: Members = 1
    """Decomposers side by side; r̂ is their mean, and how much they differ is logged as disagreement."""
    careful: NotNegative = 0.0
    """With an ensemble: r̂ is the mean less this times the members' deviation."""
    exact_sum: bool = False
    """Add to the agent's rewards an even share of what r̂ misses of their episode's return, so that they sum to it."""

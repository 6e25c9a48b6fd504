"""The methods there are: the settings of each, and one table with all else that a name stands for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import tyro

from diaster.config.fitted import NO_UPDATES, Auto, Base, FittedConfig, NetConfig, UpdateCost
from diaster.config.limits import (
    Count,
    CountOrNone,
    Fraction,
    NotNegative,
    Positive,
    Size,
    SizeOrNone,
    Units,
    at_least,
    at_most,
)


@dataclass(frozen=True)
class DiasterConfig(FittedConfig):
    """Differences of implicitly assigned sub-trajectory rewards."""

    name: MethodName = "diaster"
    head: Literal["cumulative", "final"] = "cumulative"
    """cumulative: a segment's reward is a sum over its steps; final: it is read off its last state (the paper)."""
    segments: Literal["sampled", "all"] = "sampled"
    """sampled: each update looks at some short segments of an episode; all: at whole episodes, cut (the paper)."""
    n_cuts: CountOrNone | Auto = "auto"
    """Cut points per episode with segments=all, 0 to horizon - 1; auto is the paper's 1."""
    segment_length: Size = 4
    """Steps per segment with segments=sampled."""
    segments_per_episode: Size = 16
    """Segments drawn per episode with segments=sampled."""
    batch_steps: SizeOrNone = 0
    """Budget of steps per update with segments=all; 0 gives every episode of the batch room for the horizon."""
    loss: Literal["mean", "sum"] = "mean"
    """Compare the mean per step with R/L, or the sum with R (the paper)."""
    variance_penalty: NotNegative = 0.0625
    """Weight of the variance of an episode's differences; the paper has 0."""
    penalty_episodes: CountOrNone = 0
    """Episodes after which that weight falls in proportion to 1/episodes; 0: it stays as it is."""
    unbiased: bool = False
    """With segments=sampled: take out of the loss what the draw of segments adds to it; best without the penalty."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of products in the GRU over whole episodes: bfloat16 is faster, rounds more, and needs an NVIDIA GPU."""
    averaging: Fraction = 0.999
    next_obs: bool = False
    base: Base = "auto"
    reward_source: Literal["step_reward", "difference"] = "step_reward"
    """Learn from the step reward, or from the differences themselves (the paper's ablation)."""
    terminal_target: Literal["model", "return"] = "model"
    """Where the differences end: at the model's total, or at the true return (the published code)."""
    normalize_inputs: bool = True

    def cost(self, horizon: int) -> UpdateCost:
        """Of an update, for estimates."""
        if self.segments == "sampled":
            steps = self.batch_episodes * self.segments_per_episode * self.segment_length
            return UpdateCost(self.ensemble * steps, self.segment_length)
        return UpdateCost(self.ensemble * (self.batch_steps or self.batch_episodes * horizon), horizon)


@dataclass(frozen=True)
class RrdConfig(FittedConfig):
    """Randomized return decomposition."""

    name: MethodName = "rrd"
    subset: Size = 64
    """Steps drawn per episode, without replacement where the episode has that many."""
    unbiased: bool = False
    """Take the variance of the drawn steps out of the loss (the unbiased variant)."""
    updates: CountOrNone = 1
    every: Count = 1

    def cost(self, horizon: int) -> UpdateCost:
        """Of an update, for estimates."""
        return UpdateCost(self.ensemble * self.batch_episodes * self.subset, 1)


@dataclass(frozen=True)
class RdConfig(FittedConfig):
    """Least squares on whole episodes."""

    name: MethodName = "rd"
    updates: CountOrNone = 100
    relabel_every: Count = 100

    def cost(self, horizon: int) -> UpdateCost:
        """Of an update, for estimates."""
        return UpdateCost(self.ensemble * self.batch_episodes * horizon, 1)


@dataclass(frozen=True)
class RudderConfig(NetConfig):
    """Differences of an LSTM's predictions of the return."""

    name: MethodName = "rudder"
    hidden: Units = 256
    """Units of the LSTM."""
    batch_episodes: Size = 8
    """Episodes per update, all of their steps."""
    auxiliary_weight: NotNegative = 0.5
    """Weight of the loss at every step, next to that at the last one."""
    averaging: Fraction = 0.0
    """How much of the LSTM's running average is kept in each update, early on less; 0 uses the net as it is."""
    next_obs: bool = False
    normalize_inputs: bool = True
    updates: CountOrNone = 20
    relabel_every: Count = 100
    """Stored rewards are renewed before they are this many updates old."""

    def cost(self, horizon: int) -> UpdateCost:
        """Of an update, for estimates."""
        return UpdateCost(self.batch_episodes * horizon, horizon)


@dataclass(frozen=True)
class IrcrConfig:
    """Every step has its episode's normalised return."""

    name: MethodName = "ircr"
    """How returns are decomposed: 'diaster list methods' explains them."""
    credit: Literal["mean", "return"] = "mean"
    """What is compared between episodes: the return per step, or the return."""
    elite_episodes: Annotated[int, at_least(1), at_most(10_000)] | Auto = "auto"
    """Best episodes kept for half of every batch; auto is 10 (Humanoid 50)."""
    updates: ClassVar[int] = 0  # nothing is fitted
    every: ClassVar[int] = 1

    def cost(self, horizon: int) -> UpdateCost:
        """There are no updates."""
        return NO_UPDATES


@dataclass(frozen=True)
class UniformConfig:
    """Every step has the same share of the return."""

    name: MethodName = "uniform"
    """How returns are decomposed: 'diaster list methods' explains them."""
    return_scale: Positive | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    scale_steps: CountOrNone = 0
    """With return_scale=auto: environment steps after which the scale stays as it is; 0: it always follows returns."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1

    def cost(self, horizon: int) -> UpdateCost:
        """There are no updates."""
        return NO_UPDATES


@dataclass(frozen=True)
class EpisodicConfig:
    """None; the last step has the whole return."""

    name: MethodName = "episodic"
    """How returns are decomposed: 'diaster list methods' explains them."""
    return_scale: Positive | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    scale_steps: CountOrNone = 0
    """With return_scale=auto: environment steps after which the scale stays as it is; 0: it always follows returns."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1

    def cost(self, horizon: int) -> UpdateCost:
        """There are no updates."""
        return NO_UPDATES


@dataclass(frozen=True)
class DenseConfig:
    """None; every step has its hidden true reward. The upper reference."""

    name: MethodName = "dense"
    """How returns are decomposed: 'diaster list methods' explains them."""
    return_scale: Positive | Auto = "auto"
    """Rewards are divided by this; auto is the scale of other methods, 1 takes them as they are."""
    scale_steps: CountOrNone = 0
    """With return_scale=auto: environment steps after which the scale stays as it is; 0: it always follows returns."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1

    def cost(self, horizon: int) -> UpdateCost:
        """There are no updates."""
        return NO_UPDATES


Settings = TypeVar("Settings")
MethodConfig = (
    DiasterConfig | RrdConfig | RdConfig | RudderConfig | IrcrConfig | UniformConfig | EpisodicConfig | DenseConfig
)


class Method(NamedTuple):
    """All that the name of a method stands for."""

    settings: type[Any]
    help: str
    """One line."""
    factory: str
    """'module:function' that makes its decomposer from its settings and the horizon; its module may import JAX."""
    colour: str
    """In every figure, the same."""
    marker: str
    paper: Mapping[str, Any] = {}
    """What the preset 'paper' sets, by tables of a run's settings."""
    paper_agent: Mapping[str, Mapping[str, Any]] = {}
    """What it sets of an agent, by the agent's name."""
    no_exact_sum: str = ""
    """Where there is no setting `exact_sum`: why, as the end of a sentence."""

    def make(self, settings: Any, horizon: int) -> Any:
        """The decomposer."""
        return imported(self.factory)(settings, horizon)


def with_base(settings: Settings, has_images: bool = False) -> Settings:
    """The settings with the base that `auto` stands for: the one place that says so.

    Runs are written with it (`training/resolve.py`), so that a later version may choose another. Whoever makes a
    decomposer from other settings has it from `make_decomposer`.
    """
    if not isinstance(settings, FittedConfig) or settings.base != "auto":
        return settings
    has_none = has_images or getattr(settings, "reward_source", "") == "difference"
    return dataclasses.replace(settings, base="none" if has_none else "mixed")


def imported(path: str) -> Any:
    """What 'module:name' names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


SUMS = "sum to their episode's return as they are; leave it out"

# In the order of legends and tables. The colours are Okabe and Ito's, which everyone tells apart; their yellow, too
# faint on white, is a grey here.
METHODS: dict[str, Method] = {
    "diaster": Method(
        DiasterConfig,
        "differences of implicitly assigned sub-trajectory rewards (Lin et al., 2024); the default",
        "diaster.decomposers.diaster:make_diaster",
        "#d55e00",
        "o",
        paper={
            "method": {
                "head": "final",
                "segments": "all",
                "n_cuts": 1,
                "batch_episodes": 64,
                "loss": "sum",
                "base": "none",
                "variance_penalty": 0.0,
                "averaging": 0.0,
                "normalize_inputs": False,
                "return_scale": 10.0,
                "updates": 20,
            },
        },
    ),
    "rrd": Method(
        RrdConfig,
        "randomized return decomposition: a perceptron on random subsets of steps (Ren et al., 2022)",
        "diaster.decomposers.rrd:make_rrd",
        "#0072b2",
        "s",
    ),
    "rd": Method(
        RdConfig,
        "return decomposition by least squares on whole episodes",
        "diaster.decomposers.rd:make_rd",
        "#56b4e9",
        "D",
    ),
    "rudder": Method(
        RudderConfig,
        "differences of an LSTM's predictions of the return (Arjona-Medina et al., 2019)",
        "diaster.decomposers.rudder:make_rudder",
        "#009e73",
        "^",
        no_exact_sum=SUMS,
    ),
    "ircr": Method(
        IrcrConfig,
        "every step has its episode's normalised return, half of a batch is from the best (Gangwani et al., 2020)",
        "diaster.decomposers.ircr:make_ircr",
        "#cc79a7",
        "v",
        paper={"replay": {"capacity": 300_000}},
        paper_agent={"sac": {"critic_loss": "huber", "gradient_clip": 5.0, "target_rate": 0.001, "batch_size": 1024}},
        no_exact_sum="are relative, and equal for all steps of an episode: exact they are those of 'uniform'; use that",
    ),
    "uniform": Method(
        UniformConfig,
        "control: every step has the same share of the return",
        "diaster.decomposers.controls:make_uniform",
        "#e69f00",
        "P",
        no_exact_sum=SUMS,
    ),
    "episodic": Method(
        EpisodicConfig,
        "control: the return at the last step, nothing before (no decomposition)",
        "diaster.decomposers.controls:make_episodic",
        "#8a8a8a",
        "X",
        no_exact_sum=SUMS,
    ),
    "dense": Method(
        DenseConfig,
        "upper reference: the hidden true reward of every step; no method may see it",
        "diaster.decomposers.controls:make_dense",
        "#000000",
        "",
        no_exact_sum=SUMS,
    ),
}
DEFAULT_METHOD = "diaster"
# Of the settings above; here, because the names are known only here.
MethodName = Annotated[str, tyro.conf.arg(name="method", prefix_name=False, metavar=f"{{{','.join(METHODS)}}}")]

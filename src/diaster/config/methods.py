"""The settings of every method, and a line on what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Auto = Literal["auto"]
EpisodeDraw = Literal["length", "uniform"]


@dataclass(frozen=True)
class DiasterConfig:
    """The decomposer: differences of implicitly assigned sub-trajectory rewards."""

    hidden: int = 256
    """Units of the GRU and of each of the two hidden layers of the step reward."""
    head: Literal["cumulative", "final"] = "cumulative"
    """cumulative: a segment's reward is a sum over its steps; final: it is read off its last state (the paper)."""
    segments: Literal["sampled", "all"] = "sampled"
    """sampled: each update looks at some short segments of an episode; all: at whole episodes, cut (the paper)."""
    n_cuts: int | Auto = "auto"
    """Cut points per episode with segments=all, 0 to horizon - 1; auto is the paper's 1."""
    segment_length: int = 4
    """Steps per segment with segments=sampled."""
    segments_per_episode: int = 16
    """Segments drawn per episode with segments=sampled."""
    batch_episodes: int = 4
    """Episodes per update."""
    batch_steps: int = 0
    """Budget of steps per update with segments=all; 0 gives every episode of the batch room for the horizon."""
    loss: Literal["mean", "sum"] = "mean"
    """Compare the mean per step with R/L, or the sum with R (the paper)."""
    variance_penalty: float = 0.0625
    """Weight of the variance of an episode's differences; the paper has 0."""
    learning_rate: float = 3e-4
    """Adam's step size for both nets."""
    averaging: float = 0.999
    """How much of the step reward's running average is kept in each update; 0 uses the net as it is (the paper)."""
    reward_source: Literal["step_reward", "difference"] = "step_reward"
    """Learn from the step reward, or from the differences themselves (the paper's ablation)."""
    terminal_target: Literal["model", "return"] = "model"
    """What the last difference leads up to: the model's total, or the true return (the published code)."""
    normalize_inputs: bool = True
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    episode_draw: EpisodeDraw = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: int = 250
    """Updates per `every` environment steps."""
    every: int = 1000
    """See updates."""
    relabel_every: int = 1000
    """With reward_source=difference: stored labels are renewed before they are older than so many updates."""


@dataclass(frozen=True)
class RrdConfig:
    """The decomposer: randomized return decomposition."""

    hidden: int = 256
    """Units of each of the two hidden layers of the step reward."""
    batch_episodes: int = 4
    """Episodes per update."""
    subset: int = 64
    """Steps drawn per episode, without replacement where the episode has that many."""
    unbiased: bool = False
    """Take the variance of the drawn steps out of the loss (the unbiased variant)."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    normalize_inputs: bool = False
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    episode_draw: EpisodeDraw = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 1
    """See updates."""


@dataclass(frozen=True)
class RdConfig:
    """The decomposer: least squares on whole episodes."""

    hidden: int = 256
    """Units of each of the two hidden layers of the step reward."""
    batch_episodes: int = 4
    """Episodes per update, all of their steps."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    normalize_inputs: bool = False
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    episode_draw: EpisodeDraw = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: int = 100
    """Updates per `every` environment steps."""
    every: int = 1000
    """See updates."""


@dataclass(frozen=True)
class RudderConfig:
    """The decomposer: differences of an LSTM's predictions of the return."""

    hidden: int = 256
    """Units of the LSTM."""
    batch_episodes: int = 8
    """Episodes per update, all of their steps."""
    auxiliary_weight: float = 0.5
    """Weight of the loss at every step beside that at the last one."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    normalize_inputs: bool = True
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    episode_draw: EpisodeDraw = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: int = 20
    """Updates per `every` environment steps."""
    every: int = 1000
    """See updates."""
    relabel_every: int = 100
    """Stored labels are renewed before they are older than so many updates."""


@dataclass(frozen=True)
class IrcrConfig:
    """The decomposer: every step has its episode's normalised return."""

    credit: Literal["mean", "return"] = "mean"
    """What is normalised: the return per step, or the return."""
    elite_episodes: int | Auto = "auto"
    """Best episodes kept for half of every batch; auto is 10 (Humanoid 50)."""
    updates: ClassVar[int] = 0  # nothing is fitted
    every: ClassVar[int] = 1


@dataclass(frozen=True)
class UniformConfig:
    """The decomposer: every step has the same share of the return."""

    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1


@dataclass(frozen=True)
class EpisodicConfig:
    """The decomposer: none; the last step has the whole return."""

    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1


@dataclass(frozen=True)
class DenseConfig:
    """The decomposer: none; every step has its hidden true reward. The upper reference."""

    return_scale: float = 1.0
    """Rewards are divided by this."""
    updates: ClassVar[int] = 0
    every: ClassVar[int] = 1


MethodConfig = (
    DiasterConfig | RrdConfig | RdConfig | RudderConfig | IrcrConfig | UniformConfig | EpisodicConfig | DenseConfig
)

METHOD_CONFIGS: dict[str, type[MethodConfig]] = {
    "diaster": DiasterConfig,
    "rrd": RrdConfig,
    "rd": RdConfig,
    "rudder": RudderConfig,
    "ircr": IrcrConfig,
    "uniform": UniformConfig,
    "episodic": EpisodicConfig,
    "dense": DenseConfig,
}
METHOD_HELP = {
    "diaster": "differences of implicitly assigned sub-trajectory rewards (Lin et al., 2024); the default",
    "rrd": "randomized return decomposition: a perceptron on random subsets of steps (Ren et al., 2022)",
    "rd": "return decomposition by least squares on whole episodes",
    "rudder": "differences of an LSTM's predictions of the return (Arjona-Medina et al., 2019)",
    "ircr": "every step has its episode's normalised return, half of a batch is from the best (Gangwani et al., 2020)",
    "uniform": "control: every step has the same share of the return",
    "episodic": "control: the return at the last step, nothing before (no decomposition)",
    "dense": "upper reference: the hidden true reward of every step; no method may see it",
}

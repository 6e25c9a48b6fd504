"""The settings of every learner, and a line on what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SacConfig:
    """The learner: soft actor-critic with a learnt temperature."""

    hidden: int = 256
    """Units of each of the two hidden layers."""
    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Adam's step size for actor, critics and temperature."""
    discount: float = 0.99
    """Discount per step."""
    target_rate: float = 0.005
    """Share of the critics that flows into their targets in each update."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start; it is learnt from there."""
    discrete_entropy: float = 0.5
    """For discrete actions: the entropy aimed at, as a share of the largest there is."""
    critic_loss: Literal["squared", "huber"] = "squared"
    """How the critics' errors count."""
    gradient_clip: float = 0.0
    """Largest norm of the gradient of actor and of critics; 0 does not clip."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 1
    """See updates."""


@dataclass(frozen=True)
class Td3Config:
    """The learner: twin delayed deep deterministic policy gradient."""

    hidden: int = 256
    """Units of each of the two hidden layers."""
    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Adam's step size for actor and critics."""
    discount: float = 0.99
    """Discount per step."""
    target_rate: float = 0.005
    """Share of actor and critics that flows into their targets."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions that are collected, for actions in [-1, 1]."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target's actions."""
    target_noise_clip: float = 0.5
    """Largest noise on the target's actions."""
    policy_every: int = 2
    """Critic updates for each update of the actor and of the targets."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 1
    """See updates."""


@dataclass(frozen=True)
class DdpgConfig:
    """The learner: deep deterministic policy gradient."""

    hidden: int = 256
    """Units of each of the two hidden layers."""
    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Adam's step size for actor and critic."""
    discount: float = 0.99
    """Discount per step."""
    target_rate: float = 0.005
    """Share of actor and critic that flows into their targets."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions that are collected, for actions in [-1, 1]."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 1
    """See updates."""


@dataclass(frozen=True)
class DqnConfig:
    """The learner: deep Q-network, double by default."""

    hidden: int = 128
    """Units of each of the two hidden layers."""
    batch_size: int = 128
    """Transitions per update."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    annealing_updates: int = 0
    """Updates in which the step size falls along a straight line to a hundredth; 0 keeps it as it is."""
    discount: float = 0.99
    """Discount per step."""
    double: bool = True
    """Choose the target's action by the learning net and not by the target net."""
    critic_loss: Literal["squared", "huber"] = "squared"
    """How errors count: squared, or squared while below 1 and linear beyond (its paper)."""
    target_rate: float = 1.0
    """Share of the net that flows into its target every `target_every` updates; 1 copies it."""
    target_every: int = 100
    """See target_rate; target_rate=0.005 with target_every=1 lets it follow slowly."""
    exploration_final: float = 0.05
    """Share of random actions in the end."""
    exploration_steps: int = 10_000
    """Environment steps after the warm-up in which the share of random actions falls from 1 to that."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 2
    """See updates."""


AgentConfig = SacConfig | Td3Config | DdpgConfig | DqnConfig

AGENT_CONFIGS: dict[str, type[AgentConfig]] = {
    "sac": SacConfig,
    "td3": Td3Config,
    "ddpg": DdpgConfig,
    "dqn": DqnConfig,
}
AGENT_HELP = {
    "sac": "soft actor-critic with a learnt temperature, for continuous and for discrete actions; the default",
    "td3": "twin delayed deterministic policy gradient, for continuous actions",
    "ddpg": "deterministic policy gradient with one critic, for continuous actions",
    "dqn": "Q-network with a target net, double by default, for discrete actions",
}

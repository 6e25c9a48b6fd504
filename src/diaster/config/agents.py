"""The agents there are: the settings of each, and one table with all else that a name stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from diaster.config.fitted import Auto
from diaster.config.limits import (
    ODD,
    Count,
    CountOrNone,
    Fraction,
    NotNegative,
    Positive,
    Size,
    Units,
    at_least,
    at_most,
)
from diaster.config.methods import imported


@dataclass(frozen=True)
class SacConfig:
    """Soft actor-critic with a learnt temperature."""

    name: AgentName = "sac"
    """What learns from the step rewards: 'diaster list agents' explains them."""
    hidden: Units = 256
    """Units of each of the two hidden layers."""
    batch_size: Size = 256
    """Transitions per update."""
    learning_rate: Positive = 3e-4
    """Adam's step size for actor, critics and temperature."""
    discount: Fraction = 0.99
    """Discount per step."""
    target_rate: Fraction = 0.005
    """Share of the critics that flows into their targets in each update."""
    initial_temperature: Positive = 1.0
    """Weight of the entropy at the start; it is learnt from there."""
    discrete_entropy: Fraction = 0.5
    """For discrete actions: the target entropy, as a share of the largest possible one."""
    critic_loss: Literal["squared", "huber"] = "squared"
    """How the critics' errors count."""
    potential: bool = False
    """Learn from the rewards of the same sums that vary least: a potential of the state is fitted, and taken out."""
    gradient_clip: NotNegative = 0.0
    """Largest norm of the gradient of actor and of critics; 0 does not clip."""
    updates: CountOrNone = 1
    """Updates per `every` environment steps."""
    every: Count = 1
    """See updates."""


@dataclass(frozen=True)
class Td3Config:
    """Twin delayed deep deterministic policy gradient."""

    name: AgentName = "td3"
    """What learns from the step rewards: 'diaster list agents' explains them."""
    hidden: Units = 256
    """Units of each of the two hidden layers."""
    batch_size: Size = 256
    """Transitions per update."""
    learning_rate: Positive = 3e-4
    """Adam's step size for actor and critics."""
    discount: Fraction = 0.99
    """Discount per step."""
    target_rate: Fraction = 0.005
    """Share of actor and critics that flows into their targets."""
    exploration_noise: NotNegative = 0.1
    """Standard deviation of the noise on actions that are collected, for actions in [-1, 1]."""
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target's actions."""
    target_noise_clip: NotNegative = 0.5
    """Largest noise on the target's actions."""
    policy_every: Count = 2
    """Critic updates for each update of the actor and of the targets."""
    updates: CountOrNone = 1
    """Updates per `every` environment steps."""
    every: Count = 1
    """See updates."""


@dataclass(frozen=True)
class DdpgConfig:
    """Deep deterministic policy gradient."""

    name: AgentName = "ddpg"
    """What learns from the step rewards: 'diaster list agents' explains them."""
    hidden: Units = 256
    """Units of each of the two hidden layers."""
    batch_size: Size = 256
    """Transitions per update."""
    learning_rate: Positive = 3e-4
    """Adam's step size for actor and critic."""
    discount: Fraction = 0.99
    """Discount per step."""
    target_rate: Fraction = 0.005
    """Share of actor and critic that flows into their targets."""
    exploration_noise: NotNegative = 0.1
    """Standard deviation of the noise on actions that are collected, for actions in [-1, 1]."""
    updates: CountOrNone = 1
    """Updates per `every` environment steps."""
    every: Count = 1
    """See updates."""


@dataclass(frozen=True)
class DqnConfig:
    """Deep Q-network, double by default."""

    name: AgentName = "dqn"
    """What learns from the step rewards: 'diaster list agents' explains them."""
    hidden: Units = 128
    """Units of each of the two hidden layers."""
    batch_size: Size = 128
    """Transitions per update."""
    learning_rate: Positive = 1e-3
    """Adam's step size."""
    annealing_updates: CountOrNone = 0
    """Updates in which the step size falls along a straight line to a hundredth; 0 keeps it as it is."""
    discount: Fraction = 0.99
    """Discount per step."""
    double: bool = True
    """Choose the target's action by the learning net and not by the target net."""
    critic_loss: Literal["squared", "huber"] = "squared"
    """How errors count: squared, or squared while below 1 and linear beyond (its paper)."""
    target_rate: Fraction = 1.0
    """Share of the net that flows into its target every `target_every` updates; 1 copies it."""
    target_every: Count = 100
    """See target_rate; target_rate=0.005 with target_every=1 lets it follow slowly."""
    exploration_final: Fraction = 0.05
    """Share of random actions in the end."""
    exploration_steps: Count = 10_000
    """Environment steps after the warm-up in which the share of random actions falls from 1 to that."""
    updates: CountOrNone = 1
    """Updates per `every` environment steps."""
    every: Count = 2
    """See updates."""


class NetSizes(NamedTuple):
    """Units of each hidden layer."""

    critic: tuple[int, ...]
    actor: tuple[int, ...]


SIZES = {"small": NetSizes((256,) * 2, (256,) * 2), "full": NetSizes((512,) * 4, (256,) * 4)}


@dataclass(frozen=True)
class XqcConfig:
    """Soft actor-critic with batch and weight normalisation and categorical critics."""

    name: AgentName = "xqc"
    """What learns from the step rewards: 'diaster list agents' explains them."""
    size: Literal["small", "full"] = "small"
    """small: two layers of 256 units, good on a CPU; full: four of 512 in critics, of 256 in the actor, for a GPU."""
    hidden: Units | Auto = "auto"
    """Units of each hidden layer of the critics; auto takes what size says."""
    actor_hidden: Units | Auto = "auto"
    """The same for the actor."""
    layers: Annotated[int, at_least(1), at_most(64)] | Auto = "auto"
    """Hidden layers of each net; auto takes what size says."""
    batch_size: Annotated[int, at_least(2), at_most(10_000_000)] = 256
    """Transitions per update."""
    learning_rate: Positive = 3e-4
    """Adam's step size for actor, critics and temperature at the start."""
    final_learning_rate: Positive = 3e-5
    """Adam's step size at the end."""
    annealing_updates: CountOrNone | Auto = "auto"
    """Updates over which the step size falls along a straight line; 0: it stays; auto: all updates of the run."""
    discount: Fraction = 0.99
    """Discount per step."""
    target_rate: Fraction = 0.005
    """Share of the critics that flows into their targets in each update."""
    initial_temperature: Positive = 0.0025
    """Weight of the entropy at the start; it is learnt from there."""
    discrete_entropy: Fraction = 0.5
    """For discrete actions: the target entropy, as a share of the largest possible one."""
    policy_every: Count = 3
    """Critic updates for each update of the actor and of the temperature."""
    atoms: Annotated[int, at_least(3), at_most(10_001), ODD] = 101
    """How many values a critic's distribution has; an odd number, so that one of them is 0."""
    value_limit: Positive = 2.0
    """The values are evenly spaced between minus this and this; a typical return, discounted and scaled, is 1."""
    reward_scale: Positive | Auto = "auto"
    """Rewards are divided by this; auto takes the size of their discounted sums, which changes with r̂."""
    potential: bool = True
    """Learn from the rewards of the same sums that vary least: a potential of the state is fitted, and taken out."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the products in nets. bfloat16 is faster on a GPU with tensor cores, and much slower on a CPU."""
    updates: CountOrNone = 1
    """Updates per `every` environment steps."""
    every: Count = 1
    """See updates."""

    @property
    def sizes(self) -> NetSizes:
        """The hidden layers of critics and actor."""
        named = SIZES[self.size]
        n_layers = len(named.critic) if self.layers == "auto" else self.layers
        critic = named.critic[0] if self.hidden == "auto" else self.hidden
        actor = named.actor[0] if self.actor_hidden == "auto" else self.actor_hidden
        return NetSizes((critic,) * n_layers, (actor,) * n_layers)


AgentConfig = SacConfig | XqcConfig | Td3Config | DdpgConfig | DqnConfig


class AgentKind(NamedTuple):
    """All that the name of an agent stands for. One that cannot take a kind of actions has no factory for it."""

    settings: type[Any]
    help: str
    """One line."""
    continuous: str | None = None
    """'module:function' that makes it from its settings, for continuous actions; its module may import JAX."""
    discrete: str | None = None
    """The same for discrete actions."""

    def factory(self, is_discrete: bool) -> str | None:
        """For one kind of actions."""
        return self.discrete if is_discrete else self.continuous

    def make(self, settings: Any, is_discrete: bool) -> Any:
        """The agent."""
        factory = self.factory(is_discrete)
        assert factory is not None, "check_pair comes first"
        return imported(factory)(settings)


AGENTS: dict[str, AgentKind] = {
    "xqc": AgentKind(
        XqcConfig,
        "soft actor-critic with normalised nets and categorical critics, for both kinds of actions; the default",
        "diaster.agents.xqc:make_xqc",
        "diaster.agents.xqc_discrete:make_xqc_discrete",
    ),
    "sac": AgentKind(
        SacConfig,
        "soft actor-critic with a learnt temperature, for continuous and for discrete actions",
        "diaster.agents.sac:make_sac",
        "diaster.agents.sac_discrete:make_sac_discrete",
    ),
    "td3": AgentKind(
        Td3Config,
        "twin delayed deterministic policy gradient, for continuous actions",
        "diaster.agents.td3:make_td3",
    ),
    "ddpg": AgentKind(
        DdpgConfig,
        "deterministic policy gradient with one critic, for continuous actions",
        "diaster.agents.ddpg:make_ddpg",
    ),
    "dqn": AgentKind(
        DqnConfig,
        "Q-network with a target net, double by default, for discrete actions",
        discrete="diaster.agents.dqn:make_dqn",
    ),
}
DEFAULT_AGENT = "xqc"
# Of the settings above; here, because the names are known only here.
AgentName = Annotated[str, tyro.conf.arg(name="agent", prefix_name=False, metavar=f"{{{','.join(AGENTS)}}}")]

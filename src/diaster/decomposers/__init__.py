"""Decomposers: from one return per episode to a reward for every step.

A method is a record of pure functions over an explicit state, made from its settings by one factory. Adding
one is a file, its entry in `config/methods.py`, a test file and a docs page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from diaster.config import METHODS
from diaster.config.methods import MethodConfig, imported, with_base
from diaster.decomposers.spans import settings_for_spans
from diaster.errors import DiasterError
from diaster.nn.encoder import Encoder
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps
from diaster.types import EnvSpec

State = Any  # a pytree; its shape is the method's own business
Metrics = dict[str, Array]


class Features(NamedTuple):
    """Where observations are images: the encoder in a decomposer's state, which agents share."""

    net: Callable[[State], Encoder]
    learn: Callable[[State, EpisodeStore, Array], tuple[State, Metrics]]
    """One gradient step on stored steps."""


class Decomposer(NamedTuple):
    """What training needs of a method. All functions are for one seed; the caller adds `vmap`."""

    init: Callable[[Array, EnvSpec], State]
    ingest: Callable[[State, EpisodeStore, EpisodeBlock], State]
    """Take in new episodes, which the store holds already."""
    reward: Callable[[State, Steps], Array]
    """r̂ of steps, in the agent's scale. Not used by learning where there are labels."""
    scale: Callable[[State], Array]
    """What r̂ is multiplied by to be in the environment's units."""
    saved: tuple[str, ...]
    """The fields of the state that are a run's result: what `reward`, `scale` and `label` need. All else (optimisers,
    episodes) only further training needs; a checkpoint has it too."""
    draw: Callable[[State, EpisodeStore, Array], Any] | None = None
    """A fresh batch. It may depend on what `ingest` keeps, not on what `update` changes. None: nothing is fitted."""
    update: Callable[[State, Any], tuple[State, Metrics]] | None = None
    """One gradient step on a batch."""
    label: Callable[[State, Steps], Array] | None = None
    """r̂ that needs the history: steps [T, W] in rows of whole episodes laid end to end → [T, W]. None where
    `reward` says it all. Cells after the last whole episode of a row hold anything and are not used."""
    sample: Callable[[State, EpisodeStore, Array, int], Steps] | None = None
    """The steps of an agent's batch, where a method wants others than drawn uniformly."""
    needs_next_obs: bool = False
    """Whether `reward` looks at the next observation."""
    exact_sum: bool = False
    """Whether learning adds to r̂ an even share of what an episode's r̂ misses of its return."""
    is_hidden_reward: bool = False
    """Whether the rewards are the hidden ones: the upper reference, `dense`."""
    is_scaled_when_drawn: bool = False
    """Whether these are stored as they are, because their scale follows the returns; with a fixed one they are not."""
    features: Features | None = None
    """Where observations are images: what turns them into the features that method and agent see."""
    needs_return: bool = False
    """Whether `reward` or `label` looks at the return of the step's episode, and so has none for a step without."""

    @property
    def learns_from_rated_steps(self) -> bool:
        """Whether its rewards are for steps with a return alone, so that an agent may learn from no others."""
        return self.needs_return or self.exact_sum


def make_decomposer(
    settings: MethodConfig, horizon: int, longest_span: int | None = None, has_images: bool = False
) -> Decomposer:
    """The method that settings are of, for episodes of at most `horizon` steps.

    Where a number is for some steps of an episode, these are what a method takes for an episode; they are shorter.
    """
    longest = horizon if longest_span is None else longest_span
    settings = with_base(settings, has_images)
    decomposer: Decomposer = METHODS[settings.name].make(settings_for_spans(settings, horizon, longest), longest)
    if (n_members := getattr(settings, "ensemble", 1)) > 1:
        make_ensemble: Callable[..., Decomposer] = imported("diaster.decomposers.ensemble:make_ensemble")
        decomposer = make_ensemble(decomposer, n_members, getattr(settings, "careful", 0.0))
    if not has_images:
        return decomposer
    if decomposer.sample is not None:
        raise DiasterError(
            f"the method '{settings.name}' keeps episodes of its own, too large where observations are images; "
            "use another --method, diaster or rrd, say."
        )
    if (base := getattr(settings, "base", "none")) != "none":
        raise DiasterError(
            f"method.base={base} needs observations that are numbers, and not images, whose features change while the "
            "encoder learns; use --method.base none."
        )
    behind_an_encoder: Callable[[Decomposer], Decomposer] = imported("diaster.decomposers.on_images:behind_an_encoder")
    return behind_an_encoder(decomposer)

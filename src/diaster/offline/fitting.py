"""Fits a decomposer to stored episodes: the pieces that a run has too, with held-out episodes that say when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diaster.config.fit import FitConfig
from diaster.config.merge import merge
from diaster.config.methods import MethodConfig
from diaster.decomposers import make_decomposer
from diaster.decomposers.linear_base import with_net_share
from diaster.decomposers.statistics import AUTO_SCALE
from diaster.errors import DiasterError
from diaster.learning.reward_model import RewardModel
from diaster.learning.snapshot import copied
from diaster.learning.updates import key_of_seed, loop_options, scan_updates, stream_key
from diaster.offline.episodes import in_groups, steps_together
from diaster.offline.outcomes import Floats, Outcomes
from diaster.offline.progress import Progress
from diaster.replay.store import EpisodeStore, init_store, insert, make_block, store_bytes
from diaster.types import EnvSpec, Episode, EvaluationEpisode, Stream

BLOCK_BYTES, BLOCK_ROWS = 2**24, 2**15  # of observations and actions that are sent to the device at a time
# Of a state: what comes from the episodes themselves, and is made anew when their numbers change.
STATISTICS = ("moments", "rate", "size", "base", "base_means")
MOST_RENEWALS = 30  # of targets, where there is no net to update
SHARES = tuple(n / 20 for n in range(21))  # of a net's reward beside a linear one


class Look(NamedTuple):
    """A look at the held-out error."""

    update: int
    error: float
    net_share: float


class Held(NamedTuple):
    """Episodes on the host, and their outcomes."""

    episodes: Sequence[Episode]
    outcomes: Outcomes


class Fitted(NamedTuple):
    """The result: the state with the least held-out error, and how it came about."""

    state: Any
    looks: list[Look]
    best: Look
    start_error: float
    """The held-out error of predictions that are the same for all: what is expected before an episode is seen."""


def scaled(method: MethodConfig, outcomes: Outcomes, lengths: Floats) -> MethodConfig:
    """Targets of outcomes change as a fit goes on; the scale that nets see them in does not."""
    if not outcomes.is_binary or getattr(method, "return_scale", None) != "auto":
        return method
    rate = outcomes.targets() / lengths
    size = float(np.sqrt((rate**2 * lengths).sum() / lengths.sum()))
    changed: MethodConfig = merge(method, {"return_scale": AUTO_SCALE * size if size > 0.0 else 1.0}, "a fit")
    return changed


def rows_within(megabytes: int, spec: EnvSpec) -> int:
    """How many observations there is room for: each is on the host, and in the store on the device."""
    return int(megabytes * 1e6) // (store_bytes(1000, spec.obs_dim, spec.action_dim) // 500)


def check_memory(megabytes: int, spec: EnvSpec) -> None:
    """Refuse less memory than the longest episode takes."""
    needed = (spec.horizon + 1) / rows_within(1000, spec) * 1000
    if needed > megabytes:
        raise DiasterError(
            f"the longest episode has {spec.horizon:,} steps, for which --memory {megabytes} is too little; give at "
            f"least {math.ceil(needed)}."
        )


class Fitter:
    """A decomposer, the episodes it is fitted to, and those it is judged by."""

    def __init__(self, config: FitConfig, spec: EnvSpec, stop: Held, n_rows: int) -> None:
        self._config, self._spec, self._stop, self._capacity = config, spec, stop, n_rows
        self._decomposer = make_decomposer(config.method, spec.horizon)
        self.model = RewardModel(self._decomposer, spec.horizon)
        self._key = key_of_seed(np.uint32(config.seed))
        init = self._decomposer.init
        self._init = jax.jit(lambda key: init(stream_key(key, Stream.INIT_DECOMPOSER, 0), spec))
        self.state = self._init(self._key)
        self._store = self._empty_store()
        self._ingest = jax.jit(self._take_in, donate_argnums=(0, 1))
        options = loop_options(jax.devices()[0].platform)
        self._update = jax.jit(self._updates, static_argnums=3, donate_argnums=0, compiler_options=options)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Store episodes to fit to, and let the decomposer see their statistics."""
        row_bytes = 4 * (self._spec.obs_dim + self._spec.action_dim)
        most = max(self._spec.horizon + 1, min(BLOCK_BYTES // row_bytes, BLOCK_ROWS, self._capacity))
        for block in _in_blocks(episodes, most):
            made = make_block(block, most, most // 2, self._spec.obs_dim, self._spec.action_dim)
            self._store, self.state = self._ingest(self._store, self.state, made)

    def fit(self, fitted: Held | None, progress: Progress) -> Fitted:
        """Update until the held-out error has stopped falling. `fitted` are all episodes, where targets change."""
        config, outcomes = self._config, self._stop.outcomes
        n_most = config.updates if self._decomposer.update is not None else 0
        progress.start("fitting", n_most)
        looks: list[Look] = []
        best, best_state, n_done = 0, self.state, 0
        while True:
            looks.append(Look(n_done, *self._judged()))
            if self.is_told_returns or len(looks) == 1 or looks[-1].error < looks[best].error:
                best, best_state = len(looks) - 1, copied(self.state)
            progress.advance(n_done, _state_text(looks, best, self.is_told_returns))
            # Where targets change, a linear base changes with them, also without updates of a net.
            is_over = n_done >= n_most and (fitted is None or n_most > 0 or len(looks) > MOST_RENEWALS)
            if is_over or len(looks) - 1 - best >= config.patience:
                break
            if fitted is not None:
                self._renew_targets(fitted)
            if n := min(config.check_every, n_most - n_done):
                self.state = self._update(self.state, self._store, np.int32(n_done), n)
                n_done += n
        progress.end()
        chosen = with_net_share(best_state, looks[best].net_share)
        return Fitted(chosen, looks, looks[best], outcomes.error(np.zeros(len(outcomes.given))))

    def sums(self, state: Any, episodes: Sequence[Episode]) -> Floats:
        """Σ r̂ of episodes.  # [E]"""
        sums: list[float] = []
        for group in in_groups(episodes, steps_together(self._spec)):
            rewards = self.model.of_episodes(state, [EvaluationEpisode(episode, None) for episode in group])
            sums += [float(reward.sum()) for reward in rewards]
        return np.array(sums)

    def _judged(self) -> tuple[float, float]:
        """The held-out error, with the share of the net beside a linear base that makes it least."""
        outcomes, episodes = self._stop.outcomes, self._stop.episodes
        whole = self.sums(with_net_share(self.state, 1.0), episodes)
        if getattr(self.state, "base", None) is None:
            return outcomes.error(whole), 1.0
        linear = self.sums(with_net_share(self.state, 0.0), episodes)
        errors = [outcomes.error(linear + share * (whole - linear)) for share in SHARES]
        least = int(np.argmin(errors))
        return errors[least], SHARES[least]

    @property
    def is_told_returns(self) -> bool:
        """Whether rewards are made from the return of their own episode: then no error says how good they are."""
        return self._decomposer.needs_return

    def _renew_targets(self, fitted: Held) -> None:
        """Fit to other numbers from here on; nets are as they were."""
        # Where a net is added to a linear base, both are fitted together, with all of the net; where they are mixed,
        # the net alone. A net that is never updated has no part in it.
        now = with_net_share(self.state, 1.0 if self._config.updates else 0.0)
        sums = self.sums(now, fitted.episodes)
        targets = fitted.outcomes.targets(sums)
        fresh = self._init(self._key)
        names = [name for name in STATISTICS if name in self.state._fields]
        self.state = self.state._replace(**{name: getattr(fresh, name) for name in names})
        self._store = self._empty_store()
        self.add([e._replace(episode_return=float(t)) for e, t in zip(fitted.episodes, targets, strict=True)])

    def _empty_store(self) -> EpisodeStore:
        make = partial(init_store, self._capacity, self._spec.obs_dim, self._spec.action_dim)
        store: EpisodeStore = jax.jit(make)()
        return store

    def _take_in(self, store: EpisodeStore, state: Any, block: Any) -> tuple[EpisodeStore, Any]:
        store = insert(store, block)
        return store, self._decomposer.ingest(state, store, block)

    def _updates(self, state: Any, store: EpisodeStore, first_update: Any, n: int) -> Any:
        draw, update = self._decomposer.draw, self._decomposer.update
        assert draw is not None and update is not None, "a method that fits nothing has no updates"

        def draw_one(index: Any) -> Any:
            return draw(state, store, stream_key(self._key, Stream.UPDATE_DECOMPOSER, index))

        def update_one(state: Any, _: Any, batch: Any) -> Any:
            return update(state, batch)

        return scan_updates(draw_one, update_one, state, first_update, n, jnp.asarray(True))[0]


def _in_blocks(episodes: Sequence[Episode], most_rows: int) -> list[list[Episode]]:
    """Episodes in order, as many at a time as a block has room for."""
    blocks: list[list[Episode]] = [[]]
    n_rows = 0
    for episode in episodes:
        if blocks[-1] and n_rows + episode.length + 1 > most_rows:
            blocks.append([])
            n_rows = 0
        blocks[-1].append(episode)
        n_rows += episode.length + 1
    return blocks if blocks[-1] else []


def _state_text(looks: list[Look], best: int, is_blind: bool) -> str:
    if is_blind:
        return "no held-out error: these rewards are made from their own episode's return"
    return f"held-out error {looks[-1].error:.4g}, least {looks[best].error:.4g} at {looks[best].update:,}"

"""The first look at a data set: what is in it, and what nets have to know of its steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.episodes import MOST_ACTIONS, Form, Sound, Source, judged_episodes
from diaster.offline.progress import Progress
from diaster.types import EnvSpec

LEAST_EPISODES = 4  # two to fit, one to stop on, one to measure
DEVIATIONS = 2.0  # actions in other units lie in [−1, 1] with this many deviations to each side


class Survey(NamedTuple):
    """What is known of all episodes before any is fitted to."""

    form: Form
    spec: EnvSpec
    lengths: NDArray[np.int64]  # [E]; 0 where an episode is skipped
    outcomes: NDArray[np.float64]  # [E]
    groups: NDArray[np.int64]  # [E] a number for each group; −1 where an episode has none
    has_rewards: bool  # whether returns may be sums of the data set's own rewards

    @property
    def is_sound(self) -> NDArray[np.bool_]:
        """Which episodes can be used."""
        return self.lengths > 0

    @property
    def has_groups(self) -> bool:
        """Whether episodes come in groups."""
        return bool((self.groups >= 0).any())


class _Spread:
    """Mean, deviation and bounds of the numbers of actions, as episodes come (Chan's formula)."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = self.square = self.low = self.high = np.zeros(0)

    def add(self, values: NDArray[np.float64]) -> None:
        n, mean = len(values), values.mean(axis=0)
        square = ((values - mean) ** 2).sum(axis=0)
        low, high = values.min(axis=0), values.max(axis=0)
        if self.n:
            shift, total = mean - self.mean, self.n + n
            square = self.square + square + shift**2 * (self.n * n / total)
            mean = self.mean + shift * (n / total)
            low, high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.n, self.mean, self.square, self.low, self.high = self.n + n, mean, square, low, high


def survey(source: Source, is_binary: bool, progress: Progress) -> Survey:
    """Read a data set once. Everything that is wrong with it comes to light here."""
    lengths: list[int] = []
    outcomes: list[float] = []
    groups: list[int] = []
    names: dict[str, int] = {}
    spread, form, has_rewards, n_steps = _Spread(), None, False, 0
    progress.start("reading", None)
    for episode in judged_episodes(source, needs_outcome=True, is_binary=is_binary):
        lengths.append(0 if episode is None else episode.length)
        outcomes.append(0.0 if episode is None else episode.outcome)
        groups.append(-1 if episode is None or episode.group is None else names.setdefault(episode.group, len(names)))
        if episode is None:
            continue
        spread.add(_as_vectors(episode))
        form = _common(form, episode.form)
        has_rewards = has_rewards or episode.rewards is not None
        n_steps += episode.length
        progress.advance(n_steps)
    progress.end()
    n_sound = int(np.count_nonzero(lengths))
    if form is None or n_sound < LEAST_EPISODES:
        skipped = f" after {source.faults.n_episodes:,} bad ones were skipped" if source.faults.n_episodes else ""
        raise DiasterError(
            f"{source.name} has {n_sound} episode{'s' * (n_sound != 1)}{skipped}, and at least {LEAST_EPISODES} are "
            "needed: some to fit, some to hold out."
        )
    found = np.array(outcomes)
    _check_outcomes(found[np.array(lengths) > 0], is_binary, source.name)
    spec = _spec(form, spread, max(lengths), source.name)
    form = form._replace(discrete=spec.discrete)
    return Survey(form, spec, np.array(lengths, np.int64), found, np.array(groups, np.int64), has_rewards)


def _as_vectors(episode: Sound) -> NDArray[np.float64]:
    return episode.action.reshape(episode.length, -1).astype(np.float64)


def _common(form: Form | None, found: Form) -> Form:
    return found if form is None else form._replace(discrete=form.discrete and found.discrete)


def _check_outcomes(outcomes: NDArray[np.float64], is_binary: bool, name: str) -> None:
    if np.ptp(outcomes) <= 1e-12 * (1.0 + np.abs(outcomes).max()):
        what = "outcome" if is_binary else "return"
        raise DiasterError(
            f"all {len(outcomes):,} episodes of {name} have the {what} {outcomes[0]:g}, so nothing tells good steps "
            "from bad ones; give episodes that differ."
        )


def _spec(form: Form, spread: _Spread, horizon: int, name: str) -> EnvSpec:
    """How nets see actions: as they are within [−1, 1], moved there from other units, or one-hot."""
    obs_dim = max(form.obs_dim, 1)  # of turns, a zero
    low, high = (np.asarray(bound, np.float32) for bound in (spread.low, spread.high))
    if form.discrete and spread.high[0] - spread.low[0] < MOST_ACTIONS:
        first = int(spread.low[0])
        n = int(spread.high[0]) - first + 1
        return EnvSpec(name, obs_dim, n, np.zeros(1, np.float32), np.ones(1, np.float32), (), horizon, True, first)
    if form.obs_dim and (low >= -1.0).all() and (high <= 1.0).all():
        centre, reach = np.zeros_like(low), np.ones_like(high)
    else:
        deviation = np.sqrt(spread.square / spread.n)
        reach = np.where(deviation > 0.0, DEVIATIONS * deviation, 1.0).astype(np.float32)
        centre = spread.mean.astype(np.float32)
    return EnvSpec(name, obs_dim, form.action_dim, centre - reach, centre + reach, (form.action_dim,), horizon)

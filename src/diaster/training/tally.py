"""What a run counts of its seeds, and what it says when the counts are bad news."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.analysis.diagnostics import HARDLY
from diaster.envs.delayed import FEEDBACK
from diaster.errors import DiasterError
from diaster.rundir.results import ResultRow
from diaster.training.progress import Reporter, number
from diaster.training.state import RunFacts
from diaster.types import Episode

MOST_ROLLBACKS = 3
SAME = 1e-6  # returns that differ by less, as a share of the largest, are the same up to rounding
LEARNS_FROM = 2  # episodes of a seed
RECENT = 10  # episodes whose mean return is shown while a run trains


class Tally:
    """Counts of every seed, and of the updates that all of them share."""

    def __init__(self, seeds: Sequence[int], reporter: Reporter) -> None:
        self._seeds, self._reporter = seeds, reporter
        self.episodes: NDArray[Any] = np.zeros(len(seeds), int)  # finished
        self.numbers: NDArray[Any] = np.zeros(len(seeds), int)  # of feedback on them
        self.recent_returns: list[deque[float]] = [deque(maxlen=RECENT) for _ in seeds]
        self.faults: list[tuple[int, str]] = [(0, "")] * len(seeds)
        """Episodes lost to faults of the environment, and what was wrong with one of the last."""
        self.reported_faults = [0] * len(seeds)
        self.reported_rollbacks = [0] * len(seeds)
        self.decomposer_updates = self.agent_updates = 0
        self._least, self._most = math.inf, -math.inf  # of all returns
        self._is_sameness_told = self._is_missing_fit_told = False
        # Of each decomposer; those that it was not let make are not among them.
        self.made_updates: NDArray[Any] = np.zeros(len(seeds), int)

    @property
    def ready(self) -> NDArray[np.bool_]:
        """Which seeds can learn: one episode alone says nothing of what made it good or bad, nor does one number."""
        return (self.episodes >= LEARNS_FROM) & (self.numbers >= LEARNS_FROM)

    def add_episodes(self, episodes: Sequence[Sequence[Episode]], faults: Sequence[tuple[int, str]]) -> None:
        """Count the finished episodes of a chunk, and the faults up to its end."""
        self._see_episodes(episode for of_seed in episodes for episode in of_seed)
        for position, of_seed in enumerate(episodes):
            self.episodes[position] += len(of_seed)
            self.numbers[position] += sum(int(episode.to_decompose.is_rated.sum()) for episode in of_seed)
            self.recent_returns[position].extend(episode.episode_return for episode in of_seed)
        self.faults = list(faults)

    def _see_episodes(self, episodes: Iterable[Episode]) -> None:
        """Note what episodes have returned. Where feedback comes in parts, their sum does not tell."""
        for episode in episodes:
            is_one_number = episode.spans is None and episode.known_reward is None
            self._see((episode.episode_return,) if is_one_number else (-math.inf, math.inf))

    def see_evaluation(self, rows: Iterable[ResultRow]) -> None:
        """The same of an evaluation's rows."""
        self._see(row[name] for row in rows for name in ("return_min", "return_max") if not math.isnan(row[name]))

    def _see(self, returns: Iterable[float]) -> None:
        for value in returns:
            self._least, self._most = min(self._least, value), max(self._most, value)

    @property
    def only_return(self) -> float:
        """What every episode so far has returned; NaN where they differ, or are too few to tell."""
        if self.episodes.sum() < LEARNS_FROM or not math.isclose(self._least, self._most, rel_tol=SAME):
            return math.nan
        return self._most

    def warn_of_same_returns(self) -> None:
        """Say once that there is nothing to learn from, where that is so."""
        if not self._is_sameness_told and not math.isnan(self.only_return):
            self._is_sameness_told = True
            self._reporter.warn(
                f"every episode so far returned the same number ({number(self.only_return)}): there is nothing to "
                "decompose; until one differs the policy can only explore, and more --warmup-steps do so at random."
            )

    def note_missing_fit(self, rows: Sequence[ResultRow]) -> None:
        """Say once why an evaluation shows no fit, where its line does not."""
        if self._is_missing_fit_told or not rows or not math.isnan(self.only_return):
            return
        if all(math.isnan(row["fit_r2"]) for row in rows):
            self._is_missing_fit_told = True
            self._reporter.note(
                f"no fit where held-out returns hardly vary (± at most {100 * HARDLY:g} % of their root mean square): "
                "there is next to nothing to explain"
            )

    def training_returns(self) -> list[float]:
        """The mean of each seed's last returns; NaN where there are none."""
        return [float(np.mean(recent)) if recent else float("nan") for recent in self.recent_returns]

    def mean_training_return(self) -> float:
        """Over the seeds that have one."""
        known = [np.mean(recent) for recent in self.recent_returns if recent]
        return float(np.mean(known)) if known else float("nan")

    def report_faults(self) -> None:
        """Say which environments have lost episodes since the last report."""
        for position, (count, sentence) in enumerate(self.faults):
            new = count - self.reported_faults[position]
            if new > 0:
                self.reported_faults[position] = count
                plural = "s were" if new > 1 else " was"
                self._reporter.warn(
                    f"{new} episode{plural} dropped because of seed {self._seeds[position]}'s environment, "
                    f"{count} so far: {sentence or 'before the run was resumed.'}"
                )

    def report_rollbacks(self, rollbacks: NDArray[np.int32]) -> None:
        """Say whose nets have diverged since the last report; give up where other random numbers do not help."""
        for position, count in enumerate(rollbacks.tolist()):
            if count > self.reported_rollbacks[position]:
                self.reported_rollbacks[position] = count
                self._report_rollback(self._seeds[position], count)

    def _report_rollback(self, seed: int, count: int) -> None:
        if count > MOST_ROLLBACKS:
            raise DiasterError(
                f"the nets of seed {seed} have diverged {count} times (NaN or infinite parameters), also with other "
                "random numbers; lower --agent.learning-rate or --method.learning-rate, or look at the size of "
                "the environment's observations and returns."
            )
        self._reporter.warn(
            f"the nets of seed {seed} have diverged (NaN or infinite parameters); rollback {count} of at most "
            f"{MOST_ROLLBACKS} to its last evaluation, with other random numbers."
        )

    def warn_of_seeds_that_never_learnt(self) -> None:
        idle = [seed for seed, is_ready in zip(self._seeds, self.ready, strict=True) if not is_ready]
        if not idle:
            return
        who = f"seed{'s' * (len(idle) > 1)} {', '.join(map(str, idle))}"
        if min(self.episodes) >= LEARNS_FROM:
            self._reporter.warn(
                f"{who} had fewer than two numbers of feedback and never learnt; the environment has to give them as "
                f"info['{FEEDBACK}']."
            )
            return
        self._reporter.warn(
            f"{who} finished fewer than two episodes and never learnt; give more --steps, fewer --envs or a shorter "
            "--horizon."
        )

    def restore(self, facts: RunFacts, faults: Sequence[tuple[int, str]], stored: Iterable[Episode]) -> None:
        """Go on with the counts of a checkpoint; `stored` are the episodes of its replay."""
        self.episodes, self.numbers = np.array(facts.episodes, int), np.array(facts.numbers, int)
        self._see_episodes(stored)
        self.see_evaluation(facts.rows)
        self._is_sameness_told = bool(facts.rows) and not math.isnan(self.only_return)
        self._is_missing_fit_told = any(math.isnan(row["fit_r2"]) for row in facts.rows)
        for recent, returns in zip(self.recent_returns, facts.recent_returns, strict=True):
            recent.extend(returns)
        self.faults = list(faults)
        self.reported_faults, self.reported_rollbacks = list(facts.faults), list(facts.divergences)
        self.decomposer_updates, self.agent_updates = facts.decomposer_updates, facts.agent_updates
        self.made_updates = np.array(facts.made_updates, int)

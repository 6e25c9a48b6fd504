"""What a run counts of its seeds, and what it says when the counts are bad news."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.training.progress import Reporter
from diaster.training.state import RunFacts
from diaster.types import Episode

MOST_ROLLBACKS = 3
RECENT = 10  # episodes whose mean return is shown while a run trains


class Tally:
    """Counts of every seed, and of the updates that all of them share."""

    def __init__(self, seeds: Sequence[int], reporter: Reporter) -> None:
        self._seeds, self._reporter = seeds, reporter
        self.episodes: NDArray[Any] = np.zeros(len(seeds), int)  # finished
        self.recent_returns: list[deque[float]] = [deque(maxlen=RECENT) for _ in seeds]
        self.faults: list[tuple[int, str]] = [(0, "")] * len(seeds)
        """Episodes lost to faults of the environment, and what was wrong with one of the last."""
        self.reported_faults = [0] * len(seeds)
        self.reported_rollbacks = [0] * len(seeds)
        self.decomposer_updates = self.agent_updates = 0

    @property
    def ready(self) -> NDArray[np.bool_]:
        """Which seeds can learn: one episode alone says nothing of what made it good or bad."""
        return self.episodes >= 2

    def add_episodes(self, episodes: Sequence[Sequence[Episode]], faults: Sequence[tuple[int, str]]) -> None:
        """Count the finished episodes of a chunk, and the faults up to its end."""
        for position, of_seed in enumerate(episodes):
            self.episodes[position] += len(of_seed)
            self.recent_returns[position].extend(episode.episode_return for episode in of_seed)
        self.faults = list(faults)

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
        if idle:
            self._reporter.warn(
                f"seed{'s' * (len(idle) > 1)} {', '.join(map(str, idle))} finished fewer than two episodes and never "
                "learnt; give more --steps, fewer --envs or a shorter --horizon."
            )

    def restore(self, facts: RunFacts, faults: Sequence[tuple[int, str]]) -> None:
        """Go on with the counts of a checkpoint."""
        self.episodes = np.array(facts.episodes, int)
        for recent, returns in zip(self.recent_returns, facts.recent_returns, strict=True):
            recent.extend(returns)
        self.faults = list(faults)
        self.reported_faults, self.reported_rollbacks = list(facts.faults), list(facts.divergences)
        self.decomposer_updates, self.agent_updates = facts.decomposer_updates, facts.agent_updates

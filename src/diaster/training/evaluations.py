"""The evaluations of a run: started when they are due, taken in when they are done, judged and recorded.

Learning goes on meanwhile. What is evaluated (policies, decomposers, what the table says of training) is fixed when an
evaluation starts. Its rows are written by a thread, because rewards arrive only when the learning that runs has ended,
and files take a while to be safe; they are reported by the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from diaster.actors.evaluators import Evaluators
from diaster.analysis.diagnostics import diagnose, has_step_rewards, return_statistics
from diaster.config import RunConfig, updates_due
from diaster.errors import DiasterError
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel, Rewards
from diaster.nn.trees import leaf_names
from diaster.rundir.results import ResultRow
from diaster.rundir.writer import RunWriter
from diaster.training.best import BestPolicies
from diaster.training.checkpoints import Checkpoints
from diaster.training.held_out import HeldOut
from diaster.training.progress import mean, score
from diaster.training.schedule import warmup
from diaster.training.stopping import Evaluation, Stopping
from diaster.training.tally import LEARNS_FROM
from diaster.training.watching import Watchers
from diaster.types import EvaluationEpisode

POOR_FIT = 0.3  # below this R² late in a run, the step reward explains little of the returns
LATE = 0.5
FEW_UPDATES = 1000  # of a decomposer, 4000 steps with the default; fewer tell nothing of a method
GUESSED = 0.5  # how much the members of an ensemble differ, relative to the size of their mean; more is guesswork
MUCH_CLIPPED = 0.02  # of the critics' targets; below it, what is cut off changes little
CLIPPED_IN_A_ROW = 3


class TrainingFacts(NamedTuple):
    """What a row of the table holds of training, of every seed."""

    step: int
    episodes: list[int]
    training_returns: list[float]
    metrics: list[dict[str, Any]]
    faults: list[int]


class Evaluated(NamedTuple):
    """What an evaluation is of."""

    facts: TrainingFacts
    policies: SentPolicies
    decomposers: Any  # of every seed, on the device


class Received(NamedTuple):
    """Episodes that are there, and rewards that are on their way."""

    of: Evaluated
    finished: list[list[EvaluationEpisode]]  # of every seed
    kept: list[list[EvaluationEpisode]]  # and those the decomposition is measured on
    rewards: Callable[[], Rewards]


class ClippedTargets:
    """Whether targets of critics lie beyond their range of values, evaluation after evaluation."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._is_told = False

    def add(self, rows: Sequence[ResultRow]) -> float | None:
        """Take in the rows of an evaluation: the share that lies beyond, once, when it is time to tell."""
        shares = [row["clipped"] for row in rows if "clipped" in row and row["clipped"] == row["clipped"]]
        share = float(np.mean(shares)) if shares else 0.0
        self._in_a_row = self._in_a_row + 1 if share > MUCH_CLIPPED else 0
        if self._is_told or self._in_a_row < CLIPPED_IN_A_ROW:
            return None
        self._is_told = True
        return share


class Evaluations:
    """One at a time: an evaluation has ended before the next one starts, and before a checkpoint is written."""

    def __init__(
        self,
        config: RunConfig,
        evaluators: Evaluators,
        rewards: RewardModel,
        writer: RunWriter,
        watchers: Watchers,
        checkpoints: Checkpoints,
    ) -> None:
        self._config, self._evaluators, self._rewards = config, evaluators, rewards
        self._writer, self._watchers, self._checkpoints = writer, watchers, checkpoints
        self._reporter = watchers.reporter
        self.held_out = HeldOut(config.evaluation.held_out, config.evaluation.episodes)
        self._running: Evaluated | None = None
        self._recorder = ThreadPoolExecutor(max_workers=1)
        self._recording: Future[tuple[list[ResultRow], DiasterError | None]] | None = None
        self.count = 0  # that have ended
        self.warned = self._is_guessing_told = False
        self._clipped = ClippedTargets()
        self.last_rows: Sequence[ResultRow] = []
        self.best = BestPolicies()
        self._is_best_written = False
        self.stopping = Stopping(config.evaluation)

    def start(self, facts: TrainingFacts, policies: SentPolicies, decomposers: Any) -> None:
        """Evaluate these. Waits for the evaluation before, and for the learning that the policies come from."""
        self.finish()
        self._evaluators.start(policies.of_seeds, self.count, self._config.evaluation.episodes)
        self._running = Evaluated(facts, policies, decomposers)
        send_to_host([leaf for _, leaf in leaf_names(decomposers, self._rewards.saved)])

    @property
    def can_end_the_run(self) -> bool:
        """Whether anything watches them that may end it."""
        settings = self._config.evaluation
        return settings.stop_at != "never" or settings.stop_after > 0 or self._watchers.callback is not None

    def advance(self) -> None:
        """Do what takes no waiting: take in episodes that are there, report rows that are written."""
        self._report(wait=False)
        self._receive(wait=False)

    def finish(self) -> None:
        """Wait for the evaluation that runs, if there is one, until it is recorded and reported."""
        self._report()
        self._receive()
        self._report()

    def _receive(self, wait: bool = True) -> None:
        """Take in the episodes of the evaluation that runs, and let the thread record it."""
        running = self._running
        if running is None or not (wait or self._evaluators.is_done()):
            return
        self._running = None
        self._reporter.doing("evaluating")
        finished = self._evaluators.finish()
        self._checkpoints.add_evaluation(self.count, finished)
        self._report_lost_episodes(running.facts.step, finished)
        kept = self.held_out.add(self.count, finished)
        self.count += 1
        received = Received(running, finished, kept, self._rewards.start(running.decomposers, kept))
        self._recording = self._recorder.submit(self._record, received)

    def _report(self, wait: bool = True) -> None:
        """Report the evaluation that the thread records, when it has."""
        if self._recording is None or not (wait or self._recording.done()):
            return
        (rows, failure), self._recording = self._recording.result(), None
        self.last_rows = rows
        self._warn_of_unwritten(failure)
        self._watchers.evaluated(rows)
        self._warn_of_poor_fit(rows)
        self._warn_of_guesses(rows)
        self._warn_of_clipped_targets(rows)
        self.stopping.add(rows)
        if self._watchers.callback is not None:
            run, step = self._writer.path, int(rows[0]["step"])
            self.stopping.ask(self._watchers.callback, Evaluation(run, step, self._config.steps, tuple(rows)))

    def _record(self, received: Received) -> tuple[list[ResultRow], DiasterError | None]:
        """Judge and write an evaluation: its rows, and why they could not be written if so."""
        rows, of = self._rows(received), received.of
        policy = {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(of.policies.tree)}
        saved = leaf_names(of.decomposers, self._rewards.saved)
        is_new = self.best.add(rows, policy) or not self._is_best_written
        best, self._is_best_written = (self.best.policy if is_new else None), True
        try:
            self._writer.record(rows, policy, {name: np.ascontiguousarray(leaf) for name, leaf in saved}, best)
        except DiasterError as error:
            return rows, error
        return rows, None

    def restore(
        self,
        count: int,
        stride: int,
        warned: bool,
        kept: Mapping[int, Sequence[Sequence[EvaluationEpisode]]],
        rows: Sequence[ResultRow],
        best: Mapping[str, NDArray[Any]],
    ) -> None:
        """Go on where a checkpoint was written; `kept` are the episodes of every seed, by the evaluation's number.

        `rows` are those of all evaluations so far, and `best` what is kept of the best policies.
        """
        n_seeds = len(self._config.seeds)
        self.count, self.warned, self.last_rows = count, warned, rows[-n_seeds:]
        self._clipped = ClippedTargets()
        for first in range(0, len(rows), n_seeds):
            self._clipped.add(rows[first : first + n_seeds])  # what was to be told of them has been
            self._is_guessing_told |= guesses(rows[first : first + n_seeds], self._config) is not None
            self.stopping.add(rows[first : first + n_seeds])
        self.best.restore(best)
        self.held_out.restore(stride, kept)

    def close(self) -> None:
        """End the processes that evaluate; wait for what is being written."""
        self._evaluators.close()
        self._recorder.shutdown(wait=True)
        # Only where the run ends by an error, and that says why; but what was lost by then should be known.
        if self._recording is not None and self._recording.exception() is None:
            self._warn_of_unwritten(self._recording.result()[1], "those of the last evaluation are lost")

    def _rows(self, received: Received) -> list[ResultRow]:
        facts, rewards = received.of.facts, received.rewards()
        metrics = mean_metrics(facts.metrics)
        is_known = has_step_rewards([item for of_seed in received.kept for item in of_seed])
        return [
            {
                "step": facts.step,
                "seed": seed,
                "episodes": facts.episodes[position],
                **return_statistics(received.finished[position])._asdict(),
                **diagnose(received.kept[position], rewards[position], is_known)._asdict(),
                "training_return": facts.training_returns[position],
                **{name: float(values[position]) for name, values in metrics.items()},
                "faults": facts.faults[position],
            }
            for position, seed in enumerate(self._config.seeds)
        ]

    def _report_lost_episodes(self, step: int, finished: Sequence[Sequence[EvaluationEpisode]]) -> None:
        wanted = self._config.evaluation.episodes
        for seed, episodes in zip(self._config.seeds, finished, strict=True):
            if len(episodes) < wanted:
                self._reporter.warn(
                    f"the evaluation of seed {seed} at step {step} lost {wanted - len(episodes)} of its {wanted} "
                    "episodes to faults of its environment."
                )

    def _warn_of_unwritten(
        self, failure: DiasterError | None, then: str = "the run goes on and tries again later"
    ) -> None:
        if failure is not None:
            self._reporter.warn(f"results could not be written, {then}: {failure}")

    def _warn_of_poor_fit(self, rows: Sequence[ResultRow]) -> None:
        sentence = None if self.warned else poor_fit(rows, self._config)
        if sentence is not None:
            self.warned = True
            self._reporter.warn(sentence)

    def _warn_of_guesses(self, rows: Sequence[ResultRow]) -> None:
        sentence = None if self._is_guessing_told else guesses(rows, self._config)
        if sentence is not None:
            self._is_guessing_told = True
            self._reporter.warn(sentence)

    def _warn_of_clipped_targets(self, rows: Sequence[ResultRow]) -> None:
        share = self._clipped.add(rows)
        if share is not None:
            self._reporter.warn(clipped_targets(int(rows[0]["step"]), share, self._config))


def clipped_targets(step: int, share: float, config: RunConfig) -> str:
    """What to say where that share of the critics' targets lies beyond their range; a measured scale is no setting."""
    is_measured = getattr(config.agent, "reward_scale", "auto") == "auto"
    return (
        f"at step {step} {100.0 * share:.1f} % of the critics' targets lie beyond their range of values; raise "
        f"--agent.value-limit{'' if is_measured else ' or --agent.reward-scale'}."
    )


def poor_fit(rows: Sequence[ResultRow], config: RunConfig) -> str | None:
    """What to say of an evaluation late in a run whose decomposition is poor, if it is."""
    step, fit = int(rows[0]["step"]), mean([row for row in rows if row["episodes"] >= LEARNS_FROM], "fit_r2")
    is_late = step >= max(LATE * config.steps, warmup(config))
    if not (fit < POOR_FIT and is_late and config.method.updates > 0):
        return None
    n_updates, most = updates_due(config.method, step), getattr(config.method, "updates_per_episode", 0)
    if most:
        n_updates = min(n_updates, most * int(max(row["episodes"] for row in rows)))
    what_helps = (
        "Where episodes are few, fewer decomposer updates (--method.updates) keep it from remembering them; where they "
        "are many, more may help."
        if n_updates >= FEW_UPDATES
        else f"It has had {n_updates:,} updates; give it more --steps."
    )
    return (
        f"at step {step} the step rewards explain little of the returns (fit_r2 {score(fit)}); the policy may be "
        f"following noise. {what_helps}"
    )


def guesses(rows: Sequence[ResultRow], config: RunConfig) -> str | None:
    """What to say of an evaluation late in a run where the members of an ensemble do not agree, if so."""
    step, found = int(rows[0]["step"]), mean([row for row in rows if "disagreement" in row], "disagreement")
    if not (found > GUESSED and step >= max(LATE * config.steps, warmup(config))):
        return None
    return (
        f"at step {step} the ensemble's members differ by {100.0 * found:.0f} % of the size of their mean reward: "
        "returns have not told them what single steps are worth. --method.careful 1 keeps the policy from what they "
        "guess; more episodes, or --method.base linear, leave less to guess."
    )


def send_to_host(arrays: Sequence[Any]) -> None:
    """Let arrays set out for the host; who reads them there later finds them."""
    for array in arrays:
        array.copy_to_host_async()


def mean_metrics(metrics: Sequence[dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Means over the calls since the last evaluation; this is where metrics leave the device."""
    names = sorted({name for entry in metrics for name in entry})
    gathered = jax.device_get(list(metrics))
    means = {}
    for name in names:
        values = np.array([entry[name] for entry in gathered if name in entry], np.float64)
        known = ~np.isnan(values)
        means[name] = np.where(known.any(0), np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1), np.nan)
    return means

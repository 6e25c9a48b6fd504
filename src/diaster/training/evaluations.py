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
from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel, Rewards
from diaster.nn.trees import leaf_names
from diaster.rundir.checkpoint import CheckpointWriter
from diaster.rundir.results import ResultRow
from diaster.rundir.writer import RunWriter
from diaster.training.board import Board
from diaster.training.held_out import HeldOut
from diaster.training.progress import Reporter
from diaster.types import EvaluationEpisode

POOR_FIT = 0.3  # below this R² late in a run, the step reward explains little of the returns
LATE = 0.5
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
        reporter: Reporter,
        checkpoints: CheckpointWriter | None,
        board: Board | None,
    ) -> None:
        self._config, self._evaluators, self._rewards = config, evaluators, rewards
        self._writer, self._reporter, self._checkpoints, self._board = writer, reporter, checkpoints, board
        self.held_out = HeldOut(config.evaluation.held_out, config.evaluation.episodes)
        self._running: Evaluated | None = None
        self._recorder = ThreadPoolExecutor(max_workers=1)
        self._recording: Future[tuple[list[ResultRow], DiasterError | None]] | None = None
        self.count = 0  # that have ended
        self.warned = False
        self._clipped = ClippedTargets()
        self.last_rows: Sequence[ResultRow] = []

    def start(self, facts: TrainingFacts, policies: SentPolicies, decomposers: Any) -> None:
        """Evaluate these. Waits for the evaluation before, and for the learning that the policies come from."""
        self.finish()
        self._evaluators.start(policies.of_seeds, self.count, self._config.evaluation.episodes)
        self._running = Evaluated(facts, policies, decomposers)
        send_to_host([leaf for _, leaf in leaf_names(decomposers, self._rewards.saved)])

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
        finished = self._evaluators.finish()
        if self._checkpoints is not None:
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
        self._reporter.evaluated(rows)
        self._warn_of_poor_fit(rows)
        self._warn_of_clipped_targets(rows)
        if self._board is not None:
            try:
                self._board.add(rows)
            except DiasterError as error:
                self._reporter.warn(f"TensorBoard's files have to wait for the next evaluation: {error}")

    def _record(self, received: Received) -> tuple[list[ResultRow], DiasterError | None]:
        """Judge and write an evaluation: its rows, and why they could not be written if so."""
        rows, of = self._rows(received), received.of
        policy = {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(of.policies.tree)}
        saved = leaf_names(of.decomposers, self._rewards.saved)
        try:
            self._writer.record(rows, policy, {name: np.ascontiguousarray(leaf) for name, leaf in saved})
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
    ) -> None:
        """Go on where a checkpoint was written; `kept` are the episodes of every seed, by the evaluation's number.

        `rows` are those of all evaluations so far.
        """
        n_seeds = len(self._config.seeds)
        self.count, self.warned, self.last_rows = count, warned, rows[-n_seeds:]
        self._clipped = ClippedTargets()
        for first in range(0, len(rows), n_seeds):
            self._clipped.add(rows[first : first + n_seeds])  # what was to be told of them has been
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
        step = rows[0]["step"]
        fits = [row["fit_r2"] for row in rows if row["fit_r2"] == row["fit_r2"]]
        is_late = step >= LATE * self._config.steps
        is_fitted = self._config.method.updates > 0
        if fits and is_fitted and is_late and np.mean(fits) < POOR_FIT and not self.warned:
            self.warned = True
            self._reporter.warn(
                f"at step {step} the step rewards explain little of the returns (fit_r2 {np.mean(fits):.2f}); "
                "the policy may be following noise. Where episodes are few, fewer decomposer updates "
                "(--method.updates) keep it from remembering them; where they are many, more may help."
            )

    def _warn_of_clipped_targets(self, rows: Sequence[ResultRow]) -> None:
        share = self._clipped.add(rows)
        if share is not None:
            self._reporter.warn(
                f"at step {rows[0]['step']} {100.0 * share:.1f} % of the critics' targets lie beyond their range of "
                "values; raise --agent.value-limit or --agent.reward-scale."
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

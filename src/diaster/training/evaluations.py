"""The evaluations of a run: started where they are due, received when they are done, judged and recorded.

Learning goes on meanwhile. What an evaluation is of (policies, decomposers, what the table says of training) is taken
where it is due; its rows are written when it is done, by a thread, and reported by whoever trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from diaster.actors.workers import Evaluators
from diaster.analysis.diagnostics import HeldOut, diagnose, return_statistics
from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel, Rewards
from diaster.nn.trees import is_recorded, leaf_names
from diaster.rundir.checkpoint import CheckpointWriter
from diaster.rundir.results import ResultRow as Row
from diaster.rundir.writer import RunWriter
from diaster.training.board import Board
from diaster.training.progress import Reporter
from diaster.types import EvaluationEpisode

POOR_FIT = 0.3  # below this R² late in a run, the step reward explains little of the returns
LATE = 0.5


class DueEvaluation(NamedTuple):
    """What a row of the table holds of training, of every seed."""

    step: int
    episodes: list[int]
    training_returns: list[float]
    metrics: list[dict[str, Any]]
    faults: list[int]


class EvaluationUnderWay(NamedTuple):
    """What is evaluated, while learning goes on."""

    due: DueEvaluation
    policies: SentPolicies
    decomposer: Any  # of every seed, on the device

    def tensors(self) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """What is recorded of policy and decomposer."""
        return (
            {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(self.policies.tree)},
            {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(self.decomposer) if is_recorded(name)},
        )


class ReceivedEvaluation(NamedTuple):
    """Episodes that are there, and rewards that are on their way."""

    under_way: EvaluationUnderWay
    finished: list[list[EvaluationEpisode]]  # of every seed
    kept: list[list[EvaluationEpisode]]  # and those the decomposition is measured on
    rewards: Callable[[], Rewards]


class Evaluations:
    """One at a time; a run has finished one before it starts the next, and before it writes a checkpoint."""

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
        self._held_out = [HeldOut(config.evaluation.held_out) for _ in config.seeds]
        self._under_way: EvaluationUnderWay | None = None
        self._recorder = ThreadPoolExecutor(max_workers=1)
        self._recording: Future[tuple[list[Row], DiasterError | None]] | None = None
        self.count = 0  # that were received
        self.warned = False
        self.last_rows: Sequence[Row] = []

    @property
    def held_out(self) -> HeldOut:
        """Which evaluations are kept to measure the decomposition on: the same for all seeds."""
        return self._held_out[0]

    def start(self, due: DueEvaluation, policies: SentPolicies, decomposer: Any) -> None:
        """Evaluate policies, which may be on their way, and decomposers. Waits for the evaluation before this one."""
        self.finish()
        self._evaluators.start(lambda: policies.of_seeds, self.count, self._config.evaluation.episodes)
        self._under_way = EvaluationUnderWay(due, policies, decomposer)
        send_to_host([leaf for name, leaf in leaf_names(decomposer) if is_recorded(name)])

    def finish(self) -> None:
        """Wait for the evaluation under way, if there is one, until it is recorded."""
        self.settle()
        self.receive()
        self.settle()

    def receive(self, wait: bool = True) -> None:
        """Take in the episodes of the evaluation under way; without `wait`, only where that takes no waiting."""
        under_way = self._under_way
        if under_way is None or not (wait or self._evaluators.wait(0.0)):
            return
        self._under_way = None
        finished = self._evaluators.finish()
        if self._checkpoints is not None:
            self._checkpoints.add_evaluation(self.count, finished)
        self._report_lost_episodes(under_way.due.step, finished)
        kept = [held_out.add(self.count, of) for held_out, of in zip(self._held_out, finished, strict=True)]
        self.count += 1
        rewards = self._rewards.start(under_way.decomposer, kept)
        # By a thread: rewards come when the learning has ended that is under way, and files take a while to be safe.
        received = ReceivedEvaluation(under_way, finished, kept, rewards)
        self._recording = self._recorder.submit(self._record, received)

    def settle(self, wait: bool = True) -> None:
        """Report the evaluation that was received, if one was, and recorded; without `wait`, if it is by now."""
        if self._recording is None or not (wait or self._recording.done()):
            return
        (rows, failure), self._recording = self._recording.result(), None
        self.last_rows = rows
        self._warn_of_unwritten(failure)
        self._reporter.evaluated(rows)
        self._warn_of_poor_fit(rows)
        if self._board is not None:
            try:
                self._board.add(rows)
            except DiasterError as error:
                self._reporter.warn(f"TensorBoard's files have to wait for the next evaluation: {error}")

    def _record(self, received: ReceivedEvaluation) -> tuple[list[Row], DiasterError | None]:
        """Judge and record an evaluation: its rows, and why they could not be written if so."""
        rows = self._rows(received)
        try:
            self._writer.record(rows, *received.under_way.tensors())
        except DiasterError as error:
            return rows, error
        return rows, None

    def restore(
        self,
        count: int,
        stride: int,
        warned: bool,
        episodes: Mapping[int, Sequence[Sequence[EvaluationEpisode]]],
        last_rows: Sequence[Row],
    ) -> None:
        """Go on where a checkpoint was written; `episodes` are those of every seed, by the number of the evaluation."""
        self.count, self.warned, self.last_rows = count, warned, last_rows
        for position, held_out in enumerate(self._held_out):
            held_out.restore(stride, {number: of[position] for number, of in episodes.items()})

    def close(self) -> None:
        """End the processes that evaluate; wait for what is being written."""
        self._evaluators.close()
        self._recorder.shutdown(wait=True)
        # Only where the run ends by an error, and that says why; but what was lost by then should be known.
        if self._recording is not None and self._recording.exception() is None:
            self._warn_of_unwritten(self._recording.result()[1], "those of the last evaluation are lost")

    def _rows(self, received: ReceivedEvaluation) -> list[Row]:
        due, rewards = received.under_way.due, received.rewards()
        metrics = mean_metrics(due.metrics)
        return [
            {
                "step": due.step,
                "seed": seed,
                "episodes": due.episodes[position],
                **return_statistics(received.finished[position])._asdict(),
                **diagnose(received.kept[position], rewards[position])._asdict(),
                "training_return": due.training_returns[position],
                **{name: float(values[position]) for name, values in metrics.items()},
                "faults": due.faults[position],
            }
            for position, seed in enumerate(self._config.seeds)
        ]

    def _report_lost_episodes(self, end: int, finished: Sequence[Sequence[EvaluationEpisode]]) -> None:
        wanted = self._config.evaluation.episodes
        for seed, episodes in zip(self._config.seeds, finished, strict=True):
            if len(episodes) < wanted:
                self._reporter.warn(
                    f"the evaluation of seed {seed} at step {end} lost {wanted - len(episodes)} of its {wanted} "
                    "episodes to faults of its environment."
                )

    def _warn_of_unwritten(
        self, failure: DiasterError | None, then: str = "the run goes on and tries again later"
    ) -> None:
        if failure is not None:
            self._reporter.warn(f"results could not be written, {then}: {failure}")

    def _warn_of_poor_fit(self, rows: Sequence[Row]) -> None:
        end = rows[0]["step"]
        fits = [row["fit_r2"] for row in rows if row["fit_r2"] == row["fit_r2"]]
        is_late = end >= LATE * self._config.steps
        is_fitted = self._config.method.updates > 0
        if fits and is_fitted and is_late and np.mean(fits) < POOR_FIT and not self.warned:
            self.warned = True
            self._reporter.warn(
                f"at step {end} the step rewards explain little of the returns (fit_r2 {np.mean(fits):.2f}); "
                "the policy may be following noise. Where episodes are few, fewer decomposer updates "
                "(--method.updates) keep it from remembering them; where they are many, more may help."
            )


def send_to_host(arrays: Sequence[Any]) -> None:
    """Let arrays set out for the host; who wants to read them there later finds them."""
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

"""Algorithm 1 of the paper, chunk by chunk: collect, store, learn, evaluate, checkpoint.

The schedule counts steps, never seconds, so a run depends on its settings and seeds alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice, pairwise
from typing import Any

import jax
import numpy as np

from diaster.actors.placement import Placement, make_collectors, make_evaluators
from diaster.actors.rollout import Handling
from diaster.agents import make_agent
from diaster.config import RunConfig, write_toml
from diaster.decomposers import make_decomposer
from diaster.errors import Stopped
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel
from diaster.learning.shards import make_learner
from diaster.replay.store import refill_store, store_bytes
from diaster.rundir.checkpoint import DIRECTORY, CheckpointWriter, Snapshot, read_checkpoint, remove_all
from diaster.rundir.files import Form, tensor_bytes, typed
from diaster.rundir.records import read_settings
from diaster.rundir.writer import RunWriter
from diaster.signals import Interruption
from diaster.training.board import Board
from diaster.training.evaluations import Evaluations, TrainingFacts, send_to_host
from diaster.training.progress import Progress, Reporter
from diaster.training.schedule import Chunk, chunks, crosses, is_evaluated, updates_due, warmup
from diaster.training.state import COLLECTOR_COUNTS, RunFacts, packed_arrays, unpack_state
from diaster.training.tally import Tally
from diaster.types import EnvSpec, Episode

CHECKPOINT_SECONDS = 300.0
MOST_UNWRITTEN = 512 << 20  # bytes of the replay that wait on the host for the next checkpoint


class Trainer:
    """One run. `run` reads as the algorithm; the rest are its steps."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        capacity: int,
        devices: Sequence[jax.Device],
        reporter: Reporter,
        writer: RunWriter,
        board: Board | None,
        interruption: Interruption,
        closing: ExitStack,
        start: float,
    ) -> None:
        self._config, self._spec, self._reporter, self._writer = config, spec, reporter, writer
        self._interruption, self._capacity, self._start = interruption, capacity, start
        self._tally = Tally(config.seeds, reporter)
        self._metrics: list[dict[str, Any]] = []  # of learning since the last evaluation, on the device
        self._first_learning: float | None = None  # seconds from the start
        self._restored_chunk: int | None = None
        self._checkpoints: CheckpointWriter | None = None
        self._last_checkpoint = time.perf_counter(), 0  # and its step
        if config.checkpoint_every != 0:
            settings, n_seeds = write_toml(config), len(config.seeds)
            self._checkpoints = CheckpointWriter(writer.path / DIRECTORY, settings, n_seeds, capacity)
            closing.callback(self._checkpoints.close)
        closing.callback(reporter.close)
        decomposer, agent = make_decomposer(config.method, spec.horizon), make_agent(config.agent, spec)
        # The hidden rewards leave the environments for the upper reference alone, and only under its own name.
        handling = Handling(
            keep_hidden=decomposer.is_hidden_reward and config.method.name == "dense",
            retries=config.env_retries,
            isolate=config.isolate_envs,
            step_seconds=config.step_seconds,
        )
        learns_on_gpu = devices[0].platform != "cpu"
        place = Placement(spec, agent.acting, config.seeds, config.imports, config.workers, handling, learns_on_gpu)
        evaluators = make_evaluators(place, config.evaluation.episodes)
        rewards = RewardModel(decomposer, spec.horizon)
        self._evaluations = Evaluations(config, evaluators, rewards, writer, reporter, self._checkpoints, board)
        closing.callback(self._evaluations.close)
        self._collectors = make_collectors(place, config.envs)
        closing.callback(self._collectors.close)
        self._learner = make_learner(decomposer, agent, spec, config.seeds, capacity, config.agent.batch_size, devices)

    def run(self) -> None:
        """Collect, store, learn, evaluate and checkpoint, chunk by chunk, until all steps are taken.

        Learning is launched and runs on the device while the next chunk is collected. So the policies that collect a
        chunk are those from before the last chunk was learnt from.
        """
        last = self._begin()
        for chunk, following in pairwise(islice(chunks(self._config), last.number, None)):
            policies = self._learner.send_policies()
            self._learn(chunk)
            episodes = self._collect(following, policies)
            self._evaluate(chunk)
            self._report(chunk)
            self._store(episodes)
            self._checkpoint(following)
            last = following
        self._learn(last)
        self._evaluate(last)
        self._report(last)
        self._finish()

    def _begin(self) -> Chunk:
        """The first chunk to learn from, stored: the one of the checkpoint, or one of random actions."""
        first = next(islice(chunks(self._config), self._restored_chunk or 0, None))
        if self._restored_chunk is not None:
            self._reporter.start(self._config, self._spec, first.start)
            return first
        self._reporter.start(self._config, self._spec, 0)
        self._store(self._collect(first, None))
        self._checkpoint(first)
        return first

    def _collect(self, chunk: Chunk, policies: SentPolicies | None) -> list[list[Episode]]:
        """The episodes of every seed that end in a chunk. Seeds that cannot learn yet act at random."""
        ready = self._tally.ready
        if policies is None or chunk.start < warmup(self._config):
            return self._collectors.collect([None] * len(ready), chunk.number, chunk.n_steps)
        acting = [policy if is_ready else None for policy, is_ready in zip(policies.of_seeds, ready, strict=True)]
        self._tally.report_rollbacks(policies.rollbacks)
        return self._collectors.collect(acting, chunk.number, chunk.n_steps)

    def _store(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Put finished episodes into the replay."""
        self._learner.store_episodes(episodes)
        if self._checkpoints is not None:
            self._checkpoints.add_episodes(episodes)
        self._tally.add_episodes(episodes, self._collectors.faults)

    def _learn(self, chunk: Chunk) -> None:
        """Launch the updates that are due at the end of a chunk; the device computes them while this goes on."""
        config, tally, ready = self._config, self._tally, self._tally.ready
        if chunk.end < warmup(config):
            return
        # Its schedule counts every step: what the warm-up owes the decomposer is paid when learning starts.
        due = updates_due(config.method, chunk.end)
        share = max(1, updates_due(config.method, config.chunk_steps))
        while tally.decomposer_updates < due:
            n_updates = min(share, due - tally.decomposer_updates)
            self._add_metrics(self._learner.fit_decomposer(ready, tally.decomposer_updates, n_updates))
            tally.decomposer_updates += n_updates
        # Those of the warm-up are of a net that had learnt nothing: the agent does not begin with them.
        oldest = getattr(config.method, "relabel_every", 0) if tally.agent_updates else 0
        self._learner.renew_labels(oldest)
        due = updates_due(config.agent, chunk.end - warmup(config))
        if due > tally.agent_updates:
            self._add_metrics(self._learner.fit_agent(ready, tally.agent_updates, due - tally.agent_updates))
            tally.agent_updates = due
            self._learner.send_policies()
            if self._first_learning is None and ready.any():
                self._first_learning = round(time.perf_counter() - self._start, 1)

    def _add_metrics(self, metrics: dict[str, Any]) -> None:
        send_to_host(list(metrics.values()))
        self._metrics.append(metrics)

    def _evaluate(self, chunk: Chunk) -> None:
        """Start an evaluation of what has been learnt, if one is due; it runs concurrently with what follows."""
        self._evaluations.advance()
        if is_evaluated(self._config, chunk):
            self._tally.report_faults()
            metrics, self._metrics = self._metrics, []
            tally = self._tally
            facts = TrainingFacts(
                chunk.end, tally.episodes.tolist(), tally.training_returns(), metrics, list(tally.reported_faults)
            )
            self._evaluations.start(facts, self._learner.send_policies(), self._learner.frozen_decomposers())
            self._learner.keep_nets()

    def _report(self, chunk: Chunk) -> None:
        """Show how far the run is."""
        fits = [row["fit_r2"] for row in self._evaluations.last_rows]
        fit = float(np.mean(fits)) if fits else float("nan")
        self._reporter.advance(Progress(chunk.end, self._tally.mean_training_return(), fit))

    def _checkpoint(self, chunk: Chunk) -> None:
        """Write a checkpoint if one is due; if the run has been asked to stop, write one and stop."""
        stop = self._interruption.signal
        if stop is not None:
            self._stop(chunk, stop)
        if self._checkpoints is not None:
            self._settle_checkpoint()
            if self._is_checkpoint_due(chunk) and not self._checkpoints.is_busy:
                self._write_checkpoint(chunk)

    def _stop(self, chunk: Chunk, signal: int) -> None:
        self._evaluations.finish()
        if self._checkpoints is not None:
            self._settle_checkpoint(wait=True)
            self._write_checkpoint(chunk)
            self._settle_checkpoint(wait=True, then="resume takes an earlier one")
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        self._writer.keep()
        how = "go on with" if self._checkpoints is not None else "without checkpoints it begins anew with"
        raise Stopped(f"stopped at step {chunk.start}; {how} 'diaster resume {typed(self._writer.path)}'.", signal)

    def _is_checkpoint_due(self, chunk: Chunk) -> bool:
        assert self._checkpoints is not None
        every, (last_time, last_step) = self._config.checkpoint_every, self._last_checkpoint
        if every != "auto":
            return crosses(every, last_step, chunk.end)
        is_late = time.perf_counter() - last_time > CHECKPOINT_SECONDS
        return is_late or self._checkpoints.new_bytes > MOST_UNWRITTEN

    def _write_checkpoint(self, chunk: Chunk) -> None:
        """Begin to write the state of the run: the chunk is stored, and has not been learnt from."""
        assert self._checkpoints is not None
        self._evaluations.finish()
        self._last_checkpoint = time.perf_counter(), chunk.end
        collectors = self._collectors.states()
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        learner = self._learner.snapshot()
        metrics = jax.device_get(self._metrics)
        tally = self._tally
        facts = RunFacts(
            chunk=chunk.number,
            seconds=time.perf_counter() - self._start,
            episodes=tally.episodes.tolist(),
            collectors=[[getattr(state, name) for name in COLLECTOR_COUNTS] for state in collectors],
            faults=list(tally.reported_faults),
            divergences=learner.rollbacks,
            recent_returns=[list(recent) for recent in tally.recent_returns],
            evaluations=self._evaluations.count,
            held_out_stride=self._evaluations.held_out.stride,
            n_metrics=len(metrics),
            rows=list(self._writer.rows),
            decomposer_updates=tally.decomposer_updates,
            agent_updates=tally.agent_updates,
            label_age=learner.label_age,
            warned=self._evaluations.warned,
            first_learning=self._first_learning,
        )
        arrays = packed_arrays(learner, metrics, collectors)
        self._checkpoints.write(Snapshot(facts._asdict(), arrays, self._evaluations.held_out.evaluations))

    def _settle_checkpoint(self, wait: bool = False, then: str = "the run goes on and tries again later") -> None:
        assert self._checkpoints is not None
        failure = self._checkpoints.settle(wait)
        if failure is not None:
            self._reporter.warn(f"a checkpoint could not be written, {then}: {failure}")

    def _finish(self) -> None:
        """Wait for the last evaluation and mark the run as complete."""
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        self._evaluations.finish()
        self._tally.warn_of_seeds_that_never_learnt()
        seconds = time.perf_counter() - self._start
        if self._checkpoints is not None:
            self._settle_checkpoint(wait=True)
        self._writer.finish({"wall_seconds": round(seconds, 1), "seconds_to_first_learning": self._first_learning})
        remove_all(self._writer.path / DIRECTORY)

    def restore(self) -> None:
        """Take up the state of the last checkpoint; a run that was cut off before its first one begins anew."""
        config, n_seeds = self._config, len(self._config.seeds)
        path, directory = self._writer.path, self._writer.path / DIRECTORY
        fresh = self._learner.snapshot()
        expected = {name: (leaf.shape, leaf.dtype) for name, leaf in fresh.arrays.items()}
        checkpoint, warnings = read_checkpoint(
            directory,
            write_toml(config),
            n_seeds,
            self._capacity,
            self._largest_file(expected),
            as_begun=read_settings(path),
        )
        for warning in warnings:
            self._reporter.warn(warning)
        if checkpoint is None:
            return
        state = unpack_state(checkpoint, config, self._spec, expected, list(fresh.good), path, directory)
        facts = state.facts
        stores = [
            refill_store(self._capacity, self._spec.obs_dim, self._spec.action_dim, first, episodes)
            for first, episodes in zip(checkpoint.first, checkpoint.episodes, strict=True)
        ]
        self._learner.restore(state.learner, stores)
        first = next(islice(chunks(config), facts.chunk, None))
        self._warn_of_other_episodes(self._collectors.restore(state.collectors, first.end))
        self._evaluations.restore(
            facts.evaluations, facts.held_out_stride, facts.warned, checkpoint.evaluations, facts.rows
        )
        self._tally.restore(facts, self._collectors.faults)
        self._metrics = state.metrics
        self._writer.rows = facts.rows
        self._start -= facts.seconds
        self._first_learning = facts.first_learning
        self._restored_chunk = facts.chunk
        self._last_checkpoint = time.perf_counter(), first.end
        if self._checkpoints is not None:
            self._checkpoints.go_on_from(checkpoint)

    def _warn_of_other_episodes(self, are_same: Sequence[bool]) -> None:
        for seed, is_same in zip(self._config.seeds, are_same, strict=True):
            if not is_same:
                self._reporter.warn(
                    f"the environment of seed {seed} does not repeat itself, so its unfinished episode could not be "
                    "brought back and a new one begins; from here the run differs from one that was never cut off."
                )

    def _largest_file(self, expected: Mapping[str, Form]) -> int:
        """Bytes a file of a checkpoint can have: some replays, where the disk was full for long, and the nets twice."""
        rings = len(self._config.seeds) * store_bytes(self._capacity, self._spec.obs_dim, self._spec.action_dim)
        return 4 * rings + 2 * tensor_bytes(expected) + MOST_UNWRITTEN

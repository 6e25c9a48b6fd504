"""Algorithm 1 of the paper, chunk by chunk: collect, store, learn, evaluate, checkpoint.

The schedule counts steps, never seconds, so a run depends on its settings and seeds alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain, islice, pairwise
from typing import Any

import jax

from diaster.actors.placement import Placement, make_collectors, make_evaluators
from diaster.actors.rollout import Handling
from diaster.agents import make_agent
from diaster.config import RunConfig, is_placeholder, updates_due
from diaster.decomposers import make_decomposer
from diaster.envs.source import EnvSource
from diaster.errors import Stopped
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel
from diaster.learning.shards import make_learner
from diaster.rundir.checkpoint import Snapshot
from diaster.rundir.files import typed
from diaster.rundir.records import CHECKPOINT, STOPPED
from diaster.rundir.writer import RunWriter
from diaster.signals import Interruption
from diaster.training.checkpoints import Checkpoints
from diaster.training.evaluations import Evaluations, TrainingFacts, send_to_host
from diaster.training.inheritance import inherited_nets
from diaster.training.pace import Pace
from diaster.training.plan import announce
from diaster.training.progress import NAN, Progress, mean, outlook
from diaster.training.restarts import Restarts
from diaster.training.restoring import read_state, warn_of_other_episodes
from diaster.training.schedule import Chunk, chunks, fits_due, is_evaluated, last_shared_chunk, may_fit, warmup
from diaster.training.state import COLLECTOR_COUNTS, RunFacts, packed_arrays
from diaster.training.tally import Tally
from diaster.training.watching import Watchers
from diaster.types import EnvSpec, Episode


class Trainer:
    """One run. `run` reads as the algorithm; the rest are its steps."""

    def __init__(
        self,
        config: RunConfig,
        source: EnvSource,
        spec: EnvSpec,
        capacity: int,
        devices: Sequence[jax.Device],
        watchers: Watchers,
        writer: RunWriter,
        interruption: Interruption,
        closing: ExitStack,
        start: float,
    ) -> None:
        self._config, self._spec, self._watchers, self._writer = config, spec, watchers, writer
        self._reporter = reporter = watchers.reporter
        self._interruption, self._capacity, self._start = interruption, capacity, start
        self._tally, self._pace = Tally(config.seeds, reporter), Pace(config)
        self._metrics: list[dict[str, Any]] = []  # of learning since the last evaluation, on the device
        self._first_learning: float | None = None  # seconds from the start
        self._restored_chunk: int | None = None
        self._checkpoints = Checkpoints(config, writer.path, capacity, reporter)
        closing.callback(self._checkpoints.close)
        closing.callback(watchers.close)
        feedback, agent = config.feedback, make_agent(config.agent, spec)
        decomposer = make_decomposer(
            config.method, spec.horizon, feedback.longest_span(spec.horizon), spec.image is not None
        )
        # The hidden rewards leave the environments for the upper reference alone, and only under its own name.
        handling = Handling(
            keep_hidden=decomposer.is_hidden_reward and config.method.name == "dense",
            retries=config.env_retries,
            isolate=config.isolate_envs,
            step_seconds=config.step_seconds,
            feedback=feedback,
            warmup_noise=config.warmup_noise,
        )
        self._is_on_gpu = devices[0].platform != "cpu"
        place = Placement(source, spec, agent.acting, config.seeds, config.workers, handling, self._is_on_gpu)
        evaluators = make_evaluators(place, config.evaluation.episodes)
        rewards = RewardModel(decomposer, spec.horizon)
        self._evaluations = Evaluations(config, evaluators, rewards, writer, watchers, self._checkpoints)
        closing.callback(self._evaluations.close)
        self._collectors = make_collectors(place, 1 if spec.lanes else config.envs)
        closing.callback(self._collectors.close)
        self._learner = make_learner(
            decomposer, agent, spec, config.seeds, capacity, config.agent.batch_size, devices, feedback
        )
        self._restarts = Restarts(config, self._evaluations, self._learner, writer, reporter)

    def run(self) -> None:
        """Collect, store, learn, evaluate and checkpoint, chunk by chunk, until all steps are taken.

        Learning is launched and runs on the device while the next chunk is collected. So the policies that collect a
        chunk are those from before the last chunk was learnt from.
        """
        last = self._begin()
        for chunk, following in pairwise(islice(chunks(self._config), last.number, None)):
            if self._is_over(chunk):
                break
            self._restarts.begin(chunk)
            policies = self._learner.send_policies()
            self._learn(chunk)
            episodes = self._collect(following, policies)
            self._evaluate(chunk)
            self._report(chunk)
            self._store(episodes, following)
            self._checkpoint(following)
            last = following
        is_early = self._is_over(last)
        if is_early:
            self._write_last_checkpoint(last)
        else:
            self._learn(last)
            self._evaluate(last)
            self._report(last)
        self._finish(is_early)

    def _is_over(self, chunk: Chunk) -> bool:
        """Whether the run ends before a chunk is learnt from.

        Evaluations say so, and it is asked where the next one is due: when one of them has ended does not matter.
        """
        if not (self._evaluations.can_end_the_run and is_evaluated(self._config, chunk)):
            return False
        self._evaluations.finish()
        return self._evaluations.stopping.reason is not None

    def _begin(self) -> Chunk:
        """The first chunk to learn from, stored: the one of the checkpoint, or one of random actions."""
        first = next(islice(chunks(self._config), self._restored_chunk or 0, None))
        if self._restored_chunk is not None:
            announce(self._reporter, self._config, self._spec, self._is_on_gpu, first.start)
            return first
        announce(self._reporter, self._config, self._spec, self._is_on_gpu)
        policies = self._learner.send_policies() if self._config.from_run else None
        self._store(self._collect(first, policies), first)
        self._checkpoint(first)
        return first

    def _collect(self, chunk: Chunk, policies: SentPolicies | None) -> list[list[Episode]]:
        """The episodes of every seed that end in a chunk. Seeds that cannot learn yet act at random."""
        ready = self._tally.ready
        has_learnt = bool(self._config.from_run)  # before this run
        if policies is None or not (has_learnt or chunk.start >= warmup(self._config)):
            return self._collectors.collect([None] * len(ready), chunk.number, chunk.n_steps)
        acting = [
            policy if has_learnt or is_ready else None
            for policy, is_ready in zip(policies.of_seeds, ready, strict=True)
        ]
        self._tally.report_rollbacks(policies.rollbacks)
        return self._collectors.collect(acting, chunk.number, chunk.n_steps)

    def _store(self, episodes: Sequence[Sequence[Episode]], chunk: Chunk) -> None:
        """Put the finished episodes of a chunk into the replay."""
        self._learner.store_episodes(episodes)
        self._checkpoints.add_episodes(episodes)
        self._tally.add_episodes(episodes, self._collectors.faults)
        self._watchers.trained(chunk.end, episodes)

    def _learn(self, chunk: Chunk) -> None:
        """Launch the updates that are due at the end of a chunk; the device computes them while this goes on."""
        config, tally, ready = self._config, self._tally, self._tally.ready
        if chunk.end < warmup(config):
            return
        # Its schedule counts every step: what the warm-up owes the decomposer is paid when learning starts.
        for n_updates in fits_due(config, tally.decomposer_updates, chunk.end):
            may = may_fit(config.method, ready, tally.made_updates, n_updates, tally.episodes)
            if may.any() or not ready.any():
                self._say_if_new("decomposer", n_updates)
                self._add_metrics(self._learner.fit_decomposer(may, tally.decomposer_updates, n_updates))
            else:
                self._learner.skip_updates(n_updates)
            tally.made_updates += n_updates * may
            tally.decomposer_updates += n_updates
        # Those of the warm-up are of a net that had learnt nothing: the agent does not begin with them.
        oldest = getattr(config.method, "relabel_every", 0) if tally.agent_updates else 0
        self._learner.renew_labels(oldest)
        due = updates_due(config.agent, chunk.end - warmup(config))
        if due > tally.agent_updates:
            self._say_if_new("agent", due - tally.agent_updates)
            self._add_metrics(self._learner.fit_agent(ready, tally.agent_updates, due - tally.agent_updates))
            tally.agent_updates = due
            self._learner.send_policies()
            if self._first_learning is None and ready.any():
                self._first_learning = round(time.perf_counter() - self._start, 1)

    def _say_if_new(self, program: str, n_updates: int) -> None:
        if self._pace.is_new(program, n_updates):
            self._reporter.doing(f"compiling the {program}'s updates")

    def _add_metrics(self, metrics: dict[str, Any]) -> None:
        send_to_host(list(metrics.values()))
        self._metrics.append(metrics)

    def _evaluate(self, chunk: Chunk) -> None:
        """Start an evaluation of what has been learnt, if one is due; it runs concurrently with what follows."""
        with self._pace.evaluating():
            self._evaluations.advance()
        if not is_evaluated(self._config, chunk):
            return
        self._tally.report_faults()
        self._tally.warn_of_same_returns()
        metrics, self._metrics = self._metrics, []
        tally = self._tally
        facts = TrainingFacts(
            chunk.end, tally.episodes.tolist(), tally.training_returns(), metrics, list(tally.reported_faults)
        )
        policies, decomposers = self._learner.send_policies(), self._learner.frozen_decomposers()
        with self._pace.evaluating():
            self._evaluations.finish()
        policies.of_seeds  # noqa: B018 - to wait for them is no part of evaluating
        with self._pace.evaluating(is_another=True):
            self._evaluations.start(facts, policies, decomposers)
        self._learner.keep_nets()

    def _report(self, chunk: Chunk) -> None:
        """Show how far the run is."""
        pace, rows = self._pace, self._evaluations.last_rows
        pace.ended(chunk, is_learnt_from=chunk.end > warmup(self._config))
        self._tally.see_evaluation(rows)
        progress = Progress(
            chunk.end,
            self._tally.mean_training_return(),
            mean(rows, "fit_r2"),
            pace.speed if pace.is_known else NAN,
            pace.seconds_left(chunk.end) if pace.is_known else NAN,
            self._tally.only_return,
        )
        self._reporter.advance(progress)
        self._tally.note_missing_fit(rows)
        if pace.is_outlook_due():
            self._reporter.note(outlook(progress))

    def _checkpoint(self, chunk: Chunk) -> None:
        """Write a checkpoint if one is due; if the run has been asked to stop, write one and stop."""
        stop = self._interruption.signal
        if stop is not None:
            self._stop(chunk, stop)
        if self._checkpoints.is_due(chunk):
            self._write_checkpoint(chunk)

    def _stop(self, chunk: Chunk, signal: int) -> None:
        self._evaluations.finish()
        if self._checkpoints.are_written:
            self._checkpoints.settle(wait=True)
            self._write_checkpoint(chunk)
            self._checkpoints.settle(wait=True, then="resume takes an earlier one")
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        self._writer.keep()
        how = "go on with" if self._checkpoints.are_written else "without checkpoints it begins anew with"
        command = f"'diaster resume {typed(self._writer.path)}'"
        if is_placeholder(self._config.env):
            command = f"diaster.resume({str(self._writer.path)!r}, env=…) in Python"
        raise Stopped(f"stopped at step {chunk.start}; {how} {command}.", signal)

    def _write_last_checkpoint(self, chunk: Chunk) -> None:
        """The run ends before its last step: write the state that it can be extended from."""
        is_written = chunk.number >= last_shared_chunk(self._config)
        if not is_written and self._checkpoints.may_stay():
            self._write_checkpoint(chunk, is_last=True)

    def _write_checkpoint(self, chunk: Chunk, is_last: bool = False) -> None:
        """Begin to write the state of the run: the chunk is stored, and has not been learnt from."""
        self._evaluations.finish()
        collectors = self._collectors.states()
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        learner = self._learner.snapshot()
        metrics = jax.device_get(self._metrics)
        tally = self._tally
        facts = RunFacts(
            chunk=chunk.number,
            seconds=time.perf_counter() - self._start,
            episodes=tally.episodes.tolist(),
            numbers=tally.numbers.tolist(),
            collectors=[[getattr(state, name) for name in COLLECTOR_COUNTS] for state in collectors],
            faults=list(tally.reported_faults),
            divergences=learner.rollbacks,
            recent_returns=[list(recent) for recent in tally.recent_returns],
            evaluations=self._evaluations.count,
            held_out_stride=self._evaluations.held_out.stride,
            n_metrics=len(metrics),
            rows=list(self._writer.rows),
            decomposer_updates=tally.decomposer_updates,
            made_updates=tally.made_updates.tolist(),
            agent_updates=tally.agent_updates,
            label_age=learner.label_age,
            warned=self._evaluations.warned,
            first_learning=self._first_learning,
        )
        arrays = packed_arrays(learner, metrics, collectors, self._evaluations.best.arrays())
        snapshot = Snapshot(facts._asdict(), arrays, self._evaluations.held_out.evaluations)
        self._checkpoints.write(snapshot, chunk, is_last)

    def _finish(self, is_early: bool) -> None:
        """Wait for the last evaluation and mark the run as complete."""
        self._tally.report_rollbacks(self._learner.send_policies().rollbacks)
        self._evaluations.finish()
        self._tally.note_missing_fit(self._evaluations.last_rows)
        self._tally.warn_of_seeds_that_never_learnt()
        metadata: dict[str, Any] = {
            "wall_seconds": round(time.perf_counter() - self._start, 1),
            "seconds_to_first_learning": self._first_learning,
        }
        if is_early:
            metadata[STOPPED] = self._evaluations.stopping.reason
        if (kept := self._checkpoints.final()) is not None:
            metadata[CHECKPOINT] = kept
        self._writer.finish(metadata, self._learner.nets())
        self._checkpoints.clear()

    def inherit(self) -> None:
        """Begin with the nets of another run, where the settings name one."""
        if self._config.from_run:
            nets = inherited_nets(self._config, self._learner.nets(), self._writer.before.get("from"))
            self._learner.inherit(nets.arrays)
            self._writer.note("from", nets.facts)

    def restore(self) -> None:
        """Take up the state of the last checkpoint; a run that was cut off before its first one begins anew."""
        config = self._config
        found = read_state(config, self._spec, self._capacity, self._learner, self._writer, self._reporter)
        if found is None:
            self.inherit()
            return
        checkpoint, state, first, stores = found
        facts = state.facts
        self._learner.restore(state.learner, stores)
        warn_of_other_episodes(config.seeds, self._collectors.restore(state.collectors, first.end), self._reporter)
        self._evaluations.restore(
            facts.evaluations, facts.held_out_stride, facts.warned, checkpoint.evaluations, facts.rows, state.best
        )
        self._tally.restore(facts, self._collectors.faults, chain.from_iterable(checkpoint.episodes))
        self._metrics = state.metrics
        self._writer.rows = facts.rows
        self._start -= facts.seconds
        self._first_learning = facts.first_learning
        self._restored_chunk = facts.chunk
        self._checkpoints.go_on_from(checkpoint, first)

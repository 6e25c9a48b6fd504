"""Algorithm 1 of the paper, chunk by chunk: collect, store, decompose, learn, evaluate, record.

Collection of the next chunk runs while the compiled program learns on this one. The schedule counts steps,
never seconds, so a run depends on its settings and seeds alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from diaster.actors.collect import CollectorState, Handling
from diaster.actors.workers import Place, Policies, make_collectors, make_evaluators
from diaster.agents import check_pair, make_agent
from diaster.config import PAPER_TASKS, DiasterConfig, RunConfig, build_config, validate, write_toml
from diaster.decomposers import make_decomposer
from diaster.envs.making import describe_env, find_horizon, import_modules, make_env
from diaster.errors import DiasterError, Stopped, printable
from diaster.learning.learner import Learner, LearnerSnapshot
from diaster.learning.machine import check_memory, describe_machine, differences, find_devices, use_compilation_cache
from diaster.learning.policies import SentPolicies
from diaster.learning.reward_model import RewardModel
from diaster.learning.shards import ShardedLearner
from diaster.replay.store import refill_store, store_bytes
from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY, Checkpoint, CheckpointWriter, Snapshot, read_checkpoint, remove_all
from diaster.rundir.files import Form, check_tensors, damaged, tensor_bytes
from diaster.rundir.records import CONFIG, DONE, read_config, read_settings
from diaster.rundir.results import ResultRow as Row
from diaster.rundir.writer import RunWriter, free_directory
from diaster.signals import Interruption
from diaster.training.board import BOARD, Board
from diaster.training.evaluations import DueEvaluation, Evaluations, send_to_host
from diaster.training.progress import Progress, Reporter, Silent, make_reporter
from diaster.training.schedule import chunk_ends, crosses, ring_rows, updates_due, warmup
from diaster.types import EnvSpec, Episode

MOST_DIVERGENCES = 3
CHECKPOINT_SECONDS = 300.0
SHORT_CHUNK = 2.0  # seconds; who asks a run to stop has to wait for two of these at most
MOST_UNWRITTEN = 512 << 20  # bytes of the replay that wait on the host for the next checkpoint
COLLECTOR_COUNTS, COLLECTOR_ARRAYS = CollectorState._fields[:3], CollectorState._fields[3:]


def train(
    env: str = "",
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
    tensorboard: bool = False,
    **settings: Any,
) -> Run:
    """Train a policy from one number per episode and return the run.

    `settings` are those of the command line: `steps=300_000, seeds=5, decomposer={"segment_length": 8}`.
    Without `out` the run goes to a new directory below `runs`.
    """
    if env:
        settings["env"] = env
    run_config = build_config(preset, Path(config) if config else None, **settings)
    reporter = Silent() if quiet else make_reporter()
    return run_training(run_config, Path(out) if out else None, reporter, tensorboard)


def resume(path: str | Path, *, quiet: bool = True) -> Run:
    """Go on with a run that was cut off, from its last checkpoint; it ends as if that had never happened."""
    return resume_training(Path(path), Silent() if quiet else make_reporter())


def run_training(config: RunConfig, out: Path | None, reporter: Reporter, tensorboard: bool = False) -> Run:
    """Train as configured; every complaint about the input comes before anything is written."""
    config, spec = resolve(config)
    out = out or free_directory(Path("runs"), f"{config.env.replace('/', '-').replace(':', '-')}-{config.method.name}")
    return _train_in(out, config, spec, reporter, tensorboard)


def resume_training(path: Path, reporter: Reporter) -> Run:
    """What `resume` does, with a reporter."""
    config = read_config(path)
    if (path / DONE).exists():
        raise DiasterError(f"'{path}' is complete; there is nothing left to train.")
    resolved, spec = resolve(config)
    if resolved != config:
        raise DiasterError(f"the settings in '{path / CONFIG}' are not those of a run; put the file back as it was.")
    return _train_in(path, config, spec, reporter, (path / BOARD).is_dir(), is_resumed=True)


def _train_in(
    out: Path, config: RunConfig, spec: EnvSpec, reporter: Reporter, tensorboard: bool, is_resumed: bool = False
) -> Run:
    start = time.perf_counter()
    devices = find_devices(config.device, config.devices)
    capacity = ring_rows(config)
    check_memory(config, spec, capacity, devices)
    machine = describe_machine(devices[0])
    writer = RunWriter(out, config, machine, is_resumed)
    use_compilation_cache()
    board = Board(out) if tensorboard else None
    with jax.default_device(devices[0]), Interruption() as interruption:
        trainer = Trainer(config, spec, capacity, devices, reporter, writer, board, interruption, start)
        try:
            writer.claim()
            if is_resumed:
                warn_of_another_machine(differences(writer.before, machine), reporter)
                trainer.restore()
            trainer.run()
        finally:
            trainer.close()
            writer.release()
    return Run(out)


def warn_of_another_machine(changes: Sequence[str], reporter: Reporter) -> None:
    """Rounding depends on it: with other threads or another version sums are taken in another order."""
    if changes:
        *others, last = changes
        text = printable(f"{', '.join(others)} and {last}" if others else last)  # the directory may be a stranger's
        reporter.warn(f"the run was begun with {text}; it goes on, but may not end with the same bytes.")


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
        start: float,
    ) -> None:
        self._config, self._spec, self._reporter, self._writer = config, spec, reporter, writer
        self._interruption, self._capacity = interruption, capacity
        decomposer, agent = make_decomposer(config.method, spec.horizon), make_agent(config.agent, spec)
        # The hidden rewards leave the environments for the upper reference alone, and only under its own name.
        handling = Handling(
            keep_hidden=decomposer.is_hidden_reward and config.method.name == "dense",
            retries=config.env_retries,
            isolate=config.isolate_envs,
            step_seconds=config.step_seconds,
        )
        self._learner: Learner | ShardedLearner

        def make_learner(seeds: Sequence[int], device: jax.Device) -> Learner:
            return Learner(decomposer, agent, spec, seeds, capacity, config.agent.batch_size, device)

        if len(devices) > 1:
            self._learner = ShardedLearner(make_learner, config.seeds, devices)
        else:
            self._learner = make_learner(config.seeds, devices[0])
        # A CPU that learns leaves collecting what it needs; a GPU that learns waits for every launch.
        is_beside = devices[0].platform != "cpu"
        place = Place(spec, agent.acting, config.seeds, config.imports, config.workers, handling, is_beside)
        self._collectors = make_collectors(place, config.envs)
        self._due: DueEvaluation | None = None
        n_seeds = len(config.seeds)
        self._checkpoints: CheckpointWriter | None = None
        if config.checkpoint_every != 0:
            self._checkpoints = CheckpointWriter(writer.path / DIRECTORY, write_toml(config), n_seeds, capacity)
        self._last_checkpoint, self._is_due = time.perf_counter(), False
        rewards = RewardModel(decomposer, spec.horizon)
        self._evaluations = Evaluations(
            config,
            make_evaluators(place, config.evaluation.episodes),
            rewards,
            writer,
            reporter,
            self._checkpoints,
            board,
        )
        self._recent_returns: list[deque[float]] = [deque(maxlen=10) for _ in range(n_seeds)]
        self._episodes = np.zeros(n_seeds, int)
        self._metrics: list[dict[str, Any]] = []
        self._decomposer_updates = self._agent_updates = 0
        self._faults = [0] * n_seeds  # that have been reported
        self._divergences = [0] * n_seeds  # that have been reported
        self._sent: deque[SentPolicies] = deque()  # of which they have not been yet
        self._start = start
        self._first_learning: float | None = None
        self._restored_chunk: int | None = None

    def run(self) -> None:
        """Collect one chunk ahead of learning until all steps are taken."""
        config = self._config
        ends = chunk_ends(config)
        first = self._restored_chunk or 0
        before = ends[first - 1] if first > 0 else 0
        self._reporter.start(config, self._spec, before)
        if self._restored_chunk is None:
            self._collectors.start(self._acting_policies(None), 0, ends[0])
        chunk_start = time.perf_counter()
        for chunk, end in enumerate(ends[first:], first):
            is_evaluated = end == config.steps or crosses(config.evaluation.every, before, end)
            learns, is_last = end >= warmup(config), end == config.steps
            follows = None if is_last else (chunk + 1, ends[chunk + 1] - end)  # its number and steps
            is_short = time.perf_counter() - chunk_start < SHORT_CHUNK
            chunk_start, is_ahead = time.perf_counter(), False
            sent = self._learner.send_policies() if learns else None  # of the learning so far, which may be under way
            if chunk != self._restored_chunk:  # its episodes are in the replay already
                if sent and follows and is_short and self._may_go_ahead(before, end):
                    self._collectors.start(self._acting_policies(sent), *follows)
                    is_ahead = True
                stored = self._learner.prepare(episodes := self._collectors.finish())
                self._start_evaluation()  # of the nets as they are before these episodes change their statistics
                self._store(episodes, stored)
                if not is_ahead:  # the environments stand still
                    self._keep_checkpoint(chunk, before, end)
            if is_evaluated:
                self._report_faults()
                if self._checkpoints is not None:
                    self._settle_checkpoint()
            if learns:
                self._learn(end)  # the device has this to do as soon as the learning before has ended
            if follows and not is_ahead:
                # The policy that collects next is the one from before this chunk's updates: they run meanwhile.
                self._collectors.start(self._acting_policies(sent), *follows)
            self._evaluations.settle(wait=False)
            self._evaluations.receive(wait=False)
            if sent is not None:
                self._sent.append(sent)
            self._report_who_went_back(wait=False)
            if is_evaluated:
                self._due = self._evaluation_due(end)
            self._reporter.advance(self._progress(end))
            before = end
        self._start_evaluation()
        self._report_who_went_back()
        self._evaluations.finish()
        self._warn_of_seeds_that_never_learnt()
        seconds = time.perf_counter() - self._start
        if self._checkpoints is not None:
            self._settle_checkpoint(wait=True)
        self._writer.finish({"wall_seconds": round(seconds, 1), "seconds_to_first_learning": self._first_learning})
        remove_all(self._writer.path / DIRECTORY)

    def _may_go_ahead(self, before: int, end: int) -> bool:
        """Whether the next chunk may be collected without a halt at the end of this one, where its state could be kept.

        It makes no difference to the policies when they are asked for.
        """
        if not self._collectors.can_queue or self._interruption.signal is not None or not self._ready.all():
            return False
        return self._checkpoints is None or not (self._is_due or self._is_checkpoint_due(before, end))

    def _acting_policies(self, sent: SentPolicies | None) -> Policies:
        """Of those that can learn; the others act at random. Whoever calls what is returned waits for them."""
        if sent is None:
            return lambda: [None] * len(self._config.seeds)
        ready = self._ready
        return lambda: [policy if can else None for policy, can in zip(sent.of_seeds, ready, strict=True)]

    def restore(self) -> None:
        """Go back to the last checkpoint; a run that was cut off before its first one begins anew."""
        config, n_seeds = self._config, len(self._config.seeds)
        directory = self._writer.path / DIRECTORY
        fresh = self._learner.snapshot()
        expected = {name: (leaf.shape, leaf.dtype) for name, leaf in fresh.arrays.items()}
        checkpoint, complaints = read_checkpoint(
            directory,
            write_toml(config),
            n_seeds,
            self._capacity,
            self._largest_part(expected),
            as_begun=read_settings(self._writer.path),
        )
        for complaint in complaints:
            self._reporter.warn(f"a checkpoint could not be used, an older one is taken: {complaint}")
        if checkpoint is None:
            return
        try:
            self._take_up(checkpoint, expected, list(fresh.good))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, DiasterError):
                raise
            raise damaged(directory, f"its parts do not fit together ({type(error).__name__})") from None

    def _largest_part(self, expected: Mapping[str, Form]) -> int:
        """Bytes a file of a checkpoint can have: some replays, where the disk was full for long, and the nets twice."""
        rings = len(self._config.seeds) * store_bytes(self._capacity, self._spec.obs_dim, self._spec.action_dim)
        return 4 * rings + 2 * tensor_bytes(expected) + MOST_UNWRITTEN

    def _take_up(self, checkpoint: Checkpoint, expected: Mapping[str, Form], names: Sequence[str]) -> None:
        config, n_seeds = self._config, len(self._config.seeds)
        directory = self._writer.path / DIRECTORY
        facts, arrays = TrainerFacts(**checkpoint.facts), dict(checkpoint.arrays)
        metrics: list[dict[str, Any]] = [{} for _ in range(facts.n_metrics)]
        for name in [name for name in arrays if name.startswith("metrics.")]:
            _, number, metric = name.split(".", 2)
            metrics[int(number)][metric] = arrays.pop(name)
        collectors = []
        for position, counts in enumerate(facts.collectors):
            of_seed: dict[str, Any] = {name: arrays.pop(f"collector.{position}.{name}") for name in COLLECTOR_ARRAYS}
            collectors.append(CollectorState(**dict(zip(COLLECTOR_COUNTS, counts, strict=True)), **of_seed))
            self._refuse_another_environment(collectors[-1])
        good = {name: arrays.pop(f"good.{name}") for name in names}
        check_tensors(good, {name: expected[name] for name in names}, directory)
        check_tensors(arrays, expected, directory)
        stores = [
            refill_store(self._capacity, self._spec.obs_dim, self._spec.action_dim, first, episodes)
            for first, episodes in zip(checkpoint.first, checkpoint.episodes, strict=True)
        ]
        self._learner.restore(LearnerSnapshot(arrays, good, facts.divergences, facts.label_age), stores)
        self._divergences = facts.divergences
        are_same = self._collectors.restore(collectors, chunk_ends(config)[facts.chunk])
        for seed, is_same in zip(config.seeds, are_same, strict=True):
            if not is_same:
                self._reporter.warn(
                    f"the environment of seed {seed} does not repeat itself, so its episode under way could not be "
                    "brought back and a new one begins; from here the run differs from one that was never cut off."
                )
        self._evaluations.restore(
            facts.evaluations,
            facts.held_out_stride,
            facts.warned,
            checkpoint.evaluations,
            facts.rows[-n_seeds:],
        )
        for recent, returns in zip(self._recent_returns, facts.recent_returns, strict=True):
            recent.extend(returns)
        self._episodes = np.array(facts.episodes, int)
        self._faults = facts.faults
        self._metrics = metrics
        self._decomposer_updates, self._agent_updates = facts.decomposer_updates, facts.agent_updates
        self._writer.rows = facts.rows
        self._start -= facts.seconds
        self._first_learning = facts.first_learning
        self._restored_chunk = range(len(chunk_ends(config)))[facts.chunk]
        if self._checkpoints is not None:
            self._checkpoints.go_on_from(checkpoint)

    def _refuse_another_environment(self, state: CollectorState) -> None:
        """Its package may have changed since; nets and replay are of no use to an environment of other sizes."""
        sizes, before = (self._spec.obs_dim, self._spec.action_dim), (state.obs.shape[1], state.action.shape[1])
        if sizes != before:
            raise DiasterError(
                f"'{self._spec.id}' has {sizes[0]} observations and {sizes[1]} actions now, and had {before[0]} and "
                f"{before[1]} when '{self._writer.path}' was trained; resume it with the version of the environment's "
                "package that it was begun with."
            )

    def _keep_checkpoint(self, chunk: int, before: int, end: int) -> None:
        """Write a checkpoint where one is due, or where the run has been asked to stop; then it stops."""
        stop = self._interruption.signal
        if stop is not None:
            self._evaluations.finish()
        if self._checkpoints is not None:
            self._settle_checkpoint(wait=stop is not None)
            self._is_due = self._is_due or self._is_checkpoint_due(before, end)
            if stop is not None or (self._is_due and not self._checkpoints.is_busy):
                self._write_checkpoint(chunk)
            if stop is not None:
                self._settle_checkpoint(wait=True, then="resume goes back to an earlier one")
        if stop is not None:
            self._report_who_went_back()
            self._writer.keep()
            how = "go on with" if self._checkpoints is not None else "without checkpoints it begins anew with"
            raise Stopped(f"stopped at step {before}; {how} 'diaster resume {self._writer.path}'.", stop)

    def _is_checkpoint_due(self, before: int, end: int) -> bool:
        assert self._checkpoints is not None
        every = self._config.checkpoint_every
        if every != "auto":
            return crosses(every, before, end)
        is_late = time.perf_counter() - self._last_checkpoint > CHECKPOINT_SECONDS
        return is_late or self._checkpoints.new_bytes > MOST_UNWRITTEN

    def _write_checkpoint(self, chunk: int) -> None:
        assert self._checkpoints is not None
        self._evaluations.finish()
        self._last_checkpoint, self._is_due = time.perf_counter(), False
        collectors = self._collectors.states()
        self._report_who_went_back()
        learner = self._learner.snapshot()
        metrics = jax.device_get(self._metrics)
        arrays = {
            **learner.arrays,
            **{f"good.{name}": array for name, array in learner.good.items()},
            **{f"metrics.{n}.{name}": np.array(v) for n, entry in enumerate(metrics) for name, v in entry.items()},
            **{
                f"collector.{position}.{name}": getattr(state, name)
                for position, state in enumerate(collectors)
                for name in COLLECTOR_ARRAYS
            },
        }
        facts = TrainerFacts(
            chunk=chunk,
            seconds=time.perf_counter() - self._start,
            episodes=self._episodes.tolist(),
            collectors=[[getattr(state, name) for name in COLLECTOR_COUNTS] for state in collectors],
            faults=list(self._faults),
            divergences=learner.times_back,
            recent_returns=[list(recent) for recent in self._recent_returns],
            evaluations=self._evaluations.count,
            held_out_stride=self._evaluations.held_out.stride,
            n_metrics=len(metrics),
            rows=list(self._writer.rows),
            decomposer_updates=self._decomposer_updates,
            agent_updates=self._agent_updates,
            label_age=learner.label_age,
            warned=self._evaluations.warned,
            first_learning=self._first_learning,
        )
        self._checkpoints.write(Snapshot(facts._asdict(), arrays, self._evaluations.held_out.evaluations))

    def _settle_checkpoint(self, wait: bool = False, then: str = "the run goes on and tries again later") -> None:
        assert self._checkpoints is not None
        failure = self._checkpoints.settle(wait)
        if failure is not None:
            self._reporter.warn(f"a checkpoint could not be written, {then}: {failure}")

    def close(self) -> None:
        """End workers and displays, whatever happened."""
        self._collectors.close()
        self._evaluations.close()
        self._reporter.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    @property
    def _ready(self) -> NDArray[np.bool_]:
        """Which seeds can learn: one episode alone says nothing of what made it good or bad."""
        return self._episodes >= 2

    def _store(self, episodes: Sequence[Sequence[Episode]], prepared: Any) -> None:
        self._learner.ingest(episodes, prepared)
        if self._checkpoints is not None:
            self._checkpoints.add_episodes(episodes)
        for position, of_seed in enumerate(episodes):
            self._episodes[position] += len(of_seed)
            self._recent_returns[position].extend(episode.episode_return for episode in of_seed)

    def _learn(self, end: int) -> None:
        config = self._config
        ready = self._ready
        # Its schedule counts every step: what the warm-up owes the decomposer is paid when learning starts.
        due = updates_due(config.method, end)
        share = max(1, updates_due(config.method, config.chunk_steps))
        while self._decomposer_updates < due:
            n_updates = min(share, due - self._decomposer_updates)
            self._keep_metrics(self._learner.fit_decomposer(ready, self._decomposer_updates, n_updates))
            self._decomposer_updates += n_updates
        self._learner.renew_labels(getattr(config.method, "relabel_every", 0))
        due = updates_due(config.agent, end - warmup(config))
        if due > self._agent_updates:
            n_updates = due - self._agent_updates
            self._keep_metrics(self._learner.fit_agent(ready, self._agent_updates, n_updates))
            self._agent_updates = due
            self._learner.send_policies()
            if self._first_learning is None and ready.any():
                self._first_learning = round(time.perf_counter() - self._start, 1)

    def _keep_metrics(self, metrics: dict[str, Any]) -> None:
        send_to_host(list(metrics.values()))
        self._metrics.append(metrics)

    def _evaluation_due(self, end: int) -> DueEvaluation:
        """What the table says of this step beside the evaluation itself, before the next chunk changes it."""
        metrics, self._metrics = self._metrics, []
        training_returns = [float(np.mean(recent)) if recent else float("nan") for recent in self._recent_returns]
        return DueEvaluation(end, self._episodes.tolist(), training_returns, metrics, list(self._faults))

    def _start_evaluation(self) -> None:
        """If an evaluation is due, evaluate what has been learnt by now, beside the learning that follows."""
        if self._due is not None:
            self._evaluations.start(self._due, self._learner.send_policies(), self._learner.frozen_decomposers())
            self._learner.keep()
            self._due = None

    def _report_who_went_back(self, wait: bool = True) -> None:
        """Say whose nets have diverged; give up where other random numbers do not help. With `wait`, up to now."""
        if wait:
            self._sent.append(self._learner.send_policies())
        while self._sent and (wait or self._sent[0].are_here):
            for position, times in enumerate(self._sent.popleft().times_back.tolist()):
                if times > self._divergences[position]:
                    self._divergences[position] = times
                    self._report_divergence(self._config.seeds[position], times)

    def _report_divergence(self, seed: int, times: int) -> None:
        if times > MOST_DIVERGENCES:
            raise DiasterError(
                f"the nets of seed {seed} have diverged {times} times (NaN or infinite parameters), also with other "
                "random numbers; lower --agent.learning-rate or --method.learning-rate, or look at the size of "
                "the environment's observations and returns."
            )
        self._reporter.warn(
            f"the nets of seed {seed} have diverged (NaN or infinite parameters); it goes back to its last evaluation "
            f"with other random numbers, for the {ordinal(times)} time of at most {MOST_DIVERGENCES}."
        )

    def _report_faults(self) -> None:
        """Say which environments have lost episodes since the last evaluation."""
        for position, (count, sentence) in enumerate(self._collectors.faults):
            new = count - self._faults[position]
            if new > 0:
                self._faults[position] = count
                plural = "s were" if new > 1 else " was"
                self._reporter.warn(
                    f"{new} episode{plural} dropped because of seed {self._config.seeds[position]}'s environment, "
                    f"{count} so far: {sentence or 'before the run was resumed.'}"
                )

    def _warn_of_seeds_that_never_learnt(self) -> None:
        idle = [seed for seed, is_ready in zip(self._config.seeds, self._ready, strict=True) if not is_ready]
        if idle:
            self._reporter.warn(
                f"seed{'s' * (len(idle) > 1)} {', '.join(map(str, idle))} finished fewer than two episodes and never "
                "learnt; give more --steps, fewer --envs or a shorter --horizon."
            )

    def _progress(self, end: int) -> Progress:
        returns = [np.mean(recent) for recent in self._recent_returns if recent]
        fits = [row["fit_r2"] for row in self._evaluations.last_rows]
        return Progress(
            step=end,
            training_return=float(np.mean(returns)) if returns else float("nan"),
            fit_r2=float(np.mean(fits)) if fits else float("nan"),
        )


class TrainerFacts(NamedTuple):
    """What a checkpoint holds of the trainer beside arrays and episodes."""

    chunk: int
    """The chunk that was stored last; it has not been learnt from."""
    seconds: float
    episodes: list[int]
    collectors: list[list[Any]]
    faults: list[int]
    divergences: list[int]
    recent_returns: list[list[float]]
    evaluations: int
    held_out_stride: int
    n_metrics: int
    rows: list[Row]
    decomposer_updates: int
    agent_updates: int
    label_age: int
    warned: bool
    first_learning: float | None


def ordinal(number: int) -> str:
    """Of the first few numbers, for a sentence."""
    return ("first", "second", "third")[number - 1]


def resolve(config: RunConfig) -> tuple[RunConfig, EnvSpec]:
    """Turn every 'auto' that can be known now into a number, and refuse what cannot be run."""
    validate(config)
    import_modules(config.imports)
    horizon = find_horizon(config.env, config.horizon)
    env = make_env(config.env, horizon)
    try:
        spec = describe_env(env, config.env, horizon)
    finally:
        env.close()
    steps = config.warmup_steps
    if steps == "auto":
        own = PAPER_TASKS[config.env].warmup_steps if config.env in PAPER_TASKS else 5000
        steps = max(1, min(own, config.steps // 10))
        if config.envs > 1:  # side by side, episodes that last as long as they may all end then
            steps = max(steps, min(config.envs * horizon, config.steps // 2))
    resolved = dataclasses.replace(config, horizon=horizon, warmup_steps=steps)
    validate(resolved)
    check_pair(config.agent.name, spec)
    if isinstance(config.method, DiasterConfig):
        _check_horizon(config.method, horizon)
    needed = 2 * (config.envs * horizon + 2 * config.chunk_steps)
    if config.replay.capacity < needed:
        beside = f" in {config.envs} environments" if config.envs > 1 else ""
        raise DiasterError(
            f"replay.capacity={config.replay.capacity} is too small for episodes of {horizon} steps{beside}; "
            f"it has to be at least {needed}."
        )
    return resolved, spec


def _check_horizon(decomposer: DiasterConfig, horizon: int) -> None:
    cuts, budget = decomposer.n_cuts, decomposer.batch_steps
    if isinstance(cuts, int) and cuts > max(1, horizon - 1):
        raise DiasterError(f"method.n_cuts={cuts} exceeds the horizon {horizon}; at most {horizon - 1} cuts exist.")
    if decomposer.segments == "all" and 0 < budget < horizon:
        raise DiasterError(
            f"method.batch_steps={budget} cannot hold an episode of the horizon {horizon}; give at least that many."
        )

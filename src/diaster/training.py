"""Algorithm 1 of the paper, chunk by chunk: collect, store, decompose, learn, evaluate, record.

Collection of the next chunk runs while the compiled program learns on this one. The schedule counts steps,
never seconds, so a run depends on its settings and seeds alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from diaster.config import PAPER_TASKS, DiasterConfig, RunConfig, Schedule, build_config, validate
from diaster.envs import describe_env, find_horizon, import_modules, make_env
from diaster.errors import DiasterError
from diaster.evaluate import HeldOut, diagnose, return_statistics
from diaster.learner import Learner
from diaster.machine import check_memory, describe_machine, find_device, use_compilation_cache
from diaster.records import Row, RunWriter, free_directory
from diaster.registry import check_pair, make_agent, make_decomposer
from diaster.report import Progress, Reporter, Silent, make_reporter
from diaster.reward_model import RewardModel
from diaster.run import Run, is_recorded, leaf_names
from diaster.types import EnvSpec, Episode
from diaster.workers import Fleet, Request, make_fleet

POOR_FIT = 0.3  # below this R² late in a run, the step reward explains little of the returns
LATE = 0.5


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


def run_training(config: RunConfig, out: Path | None, reporter: Reporter, tensorboard: bool = False) -> Run:
    """Train as configured; every complaint about the input comes before anything is written."""
    start = time.perf_counter()
    config, spec = resolve(config)
    device = find_device(config.device)
    capacity = ring_rows(config)
    check_memory(config, spec, capacity, device)
    out = out or free_directory(Path("runs"), f"{config.env.replace('/', '-').replace(':', '-')}-{config.method}")
    writer = RunWriter(out, config, describe_machine(device))
    use_compilation_cache()
    board = Board(out) if tensorboard else None
    with jax.default_device(device):
        trainer = Trainer(config, spec, capacity, device, reporter, writer, board, start)
        try:
            writer.claim()
            trainer.run()
        finally:
            trainer.close()
            writer.release()
    return Run(out)


class Trainer:
    """One run. `run` reads as the algorithm; the rest are its steps."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        capacity: int,
        device: jax.Device,
        reporter: Reporter,
        writer: RunWriter,
        board: Board | None,
        start: float,
    ) -> None:
        self._config, self._spec, self._reporter, self._writer, self._board = config, spec, reporter, writer, board
        decomposer, agent = make_decomposer(config, spec.horizon), make_agent(config, spec)
        # The hidden rewards leave the environments for the upper reference alone, and only under its own name.
        keep_hidden = decomposer.is_hidden_reward and config.method == "dense"
        self._learner = Learner(decomposer, agent, spec, config.seeds, capacity, config.learner.batch_size, device)
        self._rewards = RewardModel(decomposer, spec.horizon)
        self._fleet: Fleet = make_fleet(spec, agent.acting, config.seeds, config.imports, config.workers, keep_hidden)
        n_seeds = len(config.seeds)
        self._held_out = [HeldOut(config.evaluation.held_out) for _ in range(n_seeds)]
        self._recent_returns: list[deque[float]] = [deque(maxlen=10) for _ in range(n_seeds)]
        self._episodes = np.zeros(n_seeds, int)
        self._evaluations = 0
        self._metrics: list[dict[str, Any]] = []
        self._last_rows: list[Row] = []
        self._decomposer_updates = self._agent_updates = 0
        self._warned = False
        self._start = start
        self._first_learning: float | None = None

    def run(self) -> None:
        """Collect one chunk ahead of learning until all steps are taken."""
        config = self._config
        policies: Sequence[Any] = [None] * len(config.seeds)  # none yet: uniformly random actions
        self._reporter.start(config, self._spec)
        ends = chunk_ends(config)
        self._fleet.start(Request("collect", policies, 0, ends[0]))
        before = 0
        for chunk, end in enumerate(ends):
            self._store(self._fleet.finish())
            if end >= warmup(config):
                # The policy that collects next is the one from before this chunk's updates: they run meanwhile.
                policies = [
                    policy if is_ready else None
                    for policy, is_ready in zip(self._learner.policies(), self._ready, strict=True)
                ]
                self._learn(end)
            if end == config.steps or crosses(config.evaluation.every, before, end):
                self._evaluate(end)
            if end < config.steps:
                self._fleet.start(Request("collect", policies, chunk + 1, ends[chunk + 1] - end))
            self._reporter.advance(self._progress(end))
            before = end
        self._warn_of_seeds_that_never_learnt()
        seconds = time.perf_counter() - self._start
        self._writer.finish({"wall_seconds": round(seconds, 1), "seconds_to_first_learning": self._first_learning})

    def close(self) -> None:
        """End workers and displays, whatever happened."""
        self._fleet.close()
        self._reporter.close()
        if self._board is not None:
            self._board.close()

    @property
    def _ready(self) -> NDArray[np.bool_]:
        """Which seeds can learn: one episode alone says nothing of what made it good or bad."""
        return self._episodes >= 2

    def _store(self, episodes: Sequence[Sequence[Episode]]) -> None:
        self._learner.ingest(episodes)
        for position, of_seed in enumerate(episodes):
            self._episodes[position] += len(of_seed)
            self._recent_returns[position].extend(episode.episode_return for episode in of_seed)

    def _learn(self, end: int) -> None:
        config = self._config
        ready = self._ready
        # Its schedule counts every step: what the warm-up owes the decomposer is paid when learning starts.
        due = updates_due(config.decomposer, end)
        share = max(1, updates_due(config.decomposer, config.chunk_steps))
        while self._decomposer_updates < due:
            n_updates = min(share, due - self._decomposer_updates)
            self._metrics.append(self._learner.fit_decomposer(ready, self._decomposer_updates, n_updates))
            self._decomposer_updates += n_updates
        self._learner.renew_labels(getattr(config.decomposer, "relabel_every", 0))
        due = updates_due(config.learner, end - warmup(config))
        if due > self._agent_updates:
            n_updates = due - self._agent_updates
            self._metrics.append(self._learner.fit_agent(ready, self._agent_updates, n_updates))
            self._agent_updates = due
            if self._first_learning is None and ready.any():
                self._first_learning = round(time.perf_counter() - self._start, 1)

    def _evaluate(self, end: int) -> None:
        config = self._config
        policies = self._learner.policies()
        self._fleet.start(Request("evaluate", policies, self._evaluations, config.evaluation.episodes))
        rows: list[Row] = []
        metrics = mean_metrics(self._metrics)
        self._metrics = []
        for position, episodes in enumerate(self._fleet.finish()):
            held_out = self._held_out[position].add(self._evaluations, episodes)
            state = self._learner.decomposer_state(position)
            rewards = self._rewards.of_episodes(state, held_out)
            recent = self._recent_returns[position]
            rows.append(
                {
                    "step": end,
                    "seed": config.seeds[position],
                    "episodes": int(self._episodes[position]),
                    **return_statistics(episodes)._asdict(),
                    **diagnose(held_out, rewards)._asdict(),
                    "training_return": float(np.mean(recent)) if recent else float("nan"),
                    **{name: float(values[position]) for name, values in metrics.items()},
                }
            )
        self._evaluations += 1
        self._last_rows = rows
        self._writer.record(rows, *self._tensors())
        self._reporter.evaluated(rows)
        self._warn_of_poor_fit(end, rows)
        if self._board is not None:
            self._board.add(rows)

    def _warn_of_poor_fit(self, end: int, rows: Sequence[Row]) -> None:
        fits = [row["fit_r2"] for row in rows if row["fit_r2"] == row["fit_r2"]]
        is_late = end >= LATE * self._config.steps
        is_fitted = self._config.decomposer.updates > 0
        if fits and is_fitted and is_late and np.mean(fits) < POOR_FIT and not self._warned:
            self._warned = True
            self._reporter.warn(
                f"at step {end} the step rewards explain little of the returns (fit_r2 {np.mean(fits):.2f}); "
                "the policy may be following noise. Where episodes are few, fewer decomposer updates "
                "(--decomposer.updates) keep it from remembering them; where they are many, more may help."
            )

    def _warn_of_seeds_that_never_learnt(self) -> None:
        idle = [seed for seed, is_ready in zip(self._config.seeds, self._ready, strict=True) if not is_ready]
        if idle:
            self._reporter.warn(
                f"seed{'s' * (len(idle) > 1)} {', '.join(map(str, idle))} finished fewer than two episodes and never "
                "learnt; give more --steps or a shorter --horizon."
            )

    def _tensors(self) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        policy = self._learner.policy_tree()
        decomposer = self._learner.state.decomposer
        return (
            {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(policy)},
            {name: np.ascontiguousarray(leaf) for name, leaf in leaf_names(decomposer) if is_recorded(name)},
        )

    def _progress(self, end: int) -> Progress:
        returns = [np.mean(recent) for recent in self._recent_returns if recent]
        fits = [row["fit_r2"] for row in self._last_rows]
        return Progress(
            step=end,
            training_return=float(np.mean(returns)) if returns else float("nan"),
            fit_r2=float(np.mean(fits)) if fits else float("nan"),
        )


class Board:
    """TensorBoard's event files in the run directory, made when the first numbers arrive."""

    def __init__(self, out: Path) -> None:
        try:
            import tensorboardX
        except ImportError:
            raise DiasterError(
                "--tensorboard needs a package that is not installed; pip install 'diaster[tensorboard]'."
            ) from None
        self._make = partial(tensorboardX.SummaryWriter, str(out / "tensorboard"))
        self._writer: Any = None

    def add(self, rows: Sequence[Row]) -> None:
        self._writer = self._writer or self._make()
        for row in rows:
            for name, value in row.items():
                if name not in ("step", "seed") and value == value:
                    self._writer.add_scalar(f"{name}/seed{row['seed']}", value, row["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def chunk_ends(config: RunConfig) -> list[int]:
    """The steps at which collection and learning meet. The last chunk may be shorter; so may one at the warm-up."""
    ends = {*range(config.chunk_steps, config.steps, config.chunk_steps), warmup(config), config.steps}
    return sorted(ends)


def crosses(every: int, before: int, end: int) -> bool:
    """Whether a multiple of `every` lies in (before, end]."""
    return end // every > before // every


def updates_due(schedule: Schedule, steps: int) -> int:
    """How many updates a schedule asks for in so many steps."""
    return steps * schedule.updates // schedule.every


def warmup(config: RunConfig) -> int:
    """Steps before learning, once resolved."""
    assert isinstance(config.warmup_steps, int)
    return config.warmup_steps


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
    resolved = dataclasses.replace(config, horizon=horizon, warmup_steps=steps)
    validate(resolved)
    check_pair(config.agent, spec)
    if isinstance(config.decomposer, DiasterConfig):
        _check_horizon(config.decomposer, horizon)
    needed = 2 * (horizon + 2 * config.chunk_steps)
    if config.replay.capacity < needed:
        raise DiasterError(
            f"replay.capacity={config.replay.capacity} is too small for episodes of {horizon} steps; "
            f"it has to be at least {needed}."
        )
    return resolved, spec


def _check_horizon(decomposer: DiasterConfig, horizon: int) -> None:
    cuts, budget = decomposer.n_cuts, decomposer.batch_steps
    if isinstance(cuts, int) and cuts > max(1, horizon - 1):
        raise DiasterError(f"decomposer.n_cuts={cuts} exceeds the horizon {horizon}; at most {horizon - 1} cuts exist.")
    if decomposer.segments == "all" and 0 < budget < horizon:
        raise DiasterError(
            f"decomposer.batch_steps={budget} cannot hold an episode of the horizon {horizon}; give at least that many."
        )


def ring_rows(config: RunConfig) -> int:
    """Rows to set aside: the capacity, or less where the run cannot fill it."""
    assert isinstance(config.horizon, int)
    return min(config.replay.capacity, 2 * (config.steps + config.horizon + config.chunk_steps))

"""Begin a run or go on with one: from settings or a run directory to a finished `Run`."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from diaster.config import RunConfig, build_config, check_new
from diaster.envs.given import Given, GivenEnv, creator_of, keep_env
from diaster.envs.source import Creator, source_of
from diaster.errors import DiasterError, printable, refusing_shortage
from diaster.learning.machine import (
    check_memory,
    describe_machine,
    differences,
    find_devices,
    one_blas_thread,
    use_compilation_cache,
)
from diaster.run import Run
from diaster.rundir.records import CONFIG, DONE, read_config
from diaster.rundir.tidying import tidy
from diaster.rundir.trust import check_trust
from diaster.rundir.writer import RunWriter, already_complete, free_directory, refuse_killed_at_the_start
from diaster.signals import Interruption
from diaster.training.extending import extended
from diaster.training.logs import logs_again, make_logs
from diaster.training.loop import Trainer
from diaster.training.progress import Reporter, Silent, Unfailing, make_reporter
from diaster.training.resolve import resolve
from diaster.training.schedule import ring_rows
from diaster.training.stopping import Callback, check_callback
from diaster.training.watching import Watchers
from diaster.types import EnvSpec


def train(
    env: GivenEnv = "",
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    horizon: int | None = None,
    steps: int | None = None,
    seeds: int | str | Sequence[int] | None = None,
    method: str | Mapping[str, Any] | None = None,
    agent: str | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    stop_at: float | None = None,
    stop_after: int | None = None,
    from_run: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    tensorboard: bool = False,
    wandb: str = "",
    **settings: Any,
) -> Run:
    """Train a policy from one number per episode and return the run.

    An argument that is None is taken from the file (`config`), the preset and the defaults. The command line has the
    same settings.

    Args:
        env: A Gymnasium id, a function that makes environments (`lambda: MyEnv(difficulty="hard")`), or an instance
            that Gymnasium has made.
        env_kwargs: Arguments of the environment, as `{"map_name": "8x8"}`.
        horizon: The most steps of an episode, where the environment itself has no limit or a longer one.
        steps: Environment steps per seed.
        seeds: How many seeds, or a list of them; they train together.
        method: How returns become step rewards: a name, or a name and settings. `diaster list` has all names.
        agent: What learns from the step rewards: a name, or a name and settings.
        out: The directory for the run; by default a new one below `runs`.
        progress: Show a bar on a terminal and in a notebook, and lines elsewhere.
        callback: Called after each evaluation with an `Evaluation` (step, rows, …); the run ends if it returns True.
        stop_at: End the run once the mean return of all seeds has reached this (`evaluation.stop_at`).
        stop_after: End the run after this many evaluations in a row without a larger return (`evaluation.stop_after`).
        from_run: A finished run whose nets this one begins with.
        preset: A named set of settings: "default" or "paper".
        config: A TOML file with settings, for example the config.toml of a run.
        tensorboard: Also write event files for TensorBoard.
        wandb: Also log to this project of Weights & Biases.
        **settings: Every other setting, as `warmup_steps=1000` or `evaluation={"every": 1000}`; `diaster train --help`
            explains them.

    Examples:
        >>> run = diaster.train("Hopper-v5", steps=100_000, seeds=5, out="runs/hopper", progress=True)
        >>> run = diaster.train("Hopper-v5", method={"name": "rrd", "subset": 32}, agent="td3", stop_at=1000.0)
        >>> run = diaster.train(lambda: MyEnv(difficulty="hard"), horizon=500)
    """
    check_callback(callback)
    given = Given({})
    if not isinstance(env, str) or env:
        given, env_kwargs = keep_env(env, env_kwargs), None
    named = {"steps": steps, "seeds": seeds, "method": method, "agent": agent}
    named |= {"env_kwargs": env_kwargs, "horizon": horizon}
    named["from_run"] = None if from_run is None else str(from_run)
    stops = {"stop_at": stop_at, "stop_after": stop_after}
    settings |= {name: value for name, value in named.items() if value is not None}
    if stops := {name: value for name, value in stops.items() if value is not None}:
        settings["evaluation"] = {**settings.get("evaluation", {}), **stops}
    run_config = build_config(preset, Path(config) if config else None, **{**given.settings, **settings})
    reporter = make_reporter() if progress else Silent()
    for remark in given.remarks:
        reporter.warn(remark)
    return run_training(run_config, Path(out) if out else None, reporter, tensorboard, wandb, callback, given.creator)


def resume(
    path: str | Path,
    *,
    env: GivenEnv | None = None,
    steps: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    trust: bool = False,
) -> Run:
    """Continue an interrupted run from its last checkpoint. It ends as if it had not been interrupted.

    Args:
        path: The run directory.
        env: The environment that `train` was given, if the run could not keep it.
        steps: Make the run longer, to this number of steps per seed. This works for a complete run too.
        progress: Show a bar on a terminal and in a notebook, and lines elsewhere.
        callback: As with `train`. The run directory does not keep it.
        trust: Import the modules that the run names even if it was not made here by this user.

    Examples:
        >>> run = diaster.resume("runs/hopper")
        >>> run = diaster.resume("runs/hopper", steps=500_000)
    """
    check_callback(callback)
    reporter = make_reporter() if progress else Silent()
    return resume_training(Path(path), reporter, trust, steps, callback, creator_of(env))


def run_training(
    config: RunConfig,
    out: Path | None,
    reporter: Reporter,
    tensorboard: bool = False,
    wandb: str = "",
    callback: Callback | None = None,
    given: Creator | None = None,
) -> Run:
    """Train as configured; every complaint about the input comes before anything is written.

    `given` makes the environments where the settings cannot say what does.
    """
    name = f"{re.sub('[^A-Za-z0-9._]+', '-', config.env).strip('-')}-{config.method.name}"
    # Absolute before an environment is made: one may change the working directory.
    out = (out or free_directory(Path("runs"), name)).absolute()
    config, spec = resolve(config, given)
    check_new(config)
    logs, facts = make_logs(out, config, tensorboard, wandb)
    return _train_in(out, config, spec, Watchers(Unfailing(reporter), logs, callback), facts, given)


def resume_training(
    path: Path,
    reporter: Reporter,
    trust: bool = False,
    steps: int | None = None,
    callback: Callback | None = None,
    given: Creator | None = None,
) -> Run:
    """What `resume` does, with a reporter."""
    path = path.absolute()
    refuse_killed_at_the_start(path)
    config = read_config(path)
    is_complete = (path / DONE).exists()
    if is_complete and steps is None:
        tidy(path)
        raise already_complete(path)
    if not trust:
        check_trust(path, config)
    resolved, spec = resolve(config, given)
    if resolved != config:
        raise DiasterError(f"the settings in '{path / CONFIG}' are not those of a run; put the file back as it was.")
    if steps is not None:
        config = extended(path, config, steps, is_complete)
    reporter = Unfailing(reporter)
    watchers = Watchers(reporter, logs_again(path, config, reporter), callback)
    return _train_in(path, config, spec, watchers, {}, given, is_resumed=True, is_extended=steps is not None)


def _train_in(
    out: Path,
    config: RunConfig,
    spec: EnvSpec,
    watchers: Watchers,
    facts: Mapping[str, Any],
    given: Creator | None,
    is_resumed: bool = False,
    is_extended: bool = False,
) -> Run:
    start = time.perf_counter()
    devices = find_devices(config.device, config.devices)
    capacity = ring_rows(config)
    check_memory(config, spec, capacity, devices)
    machine = describe_machine(devices[0])
    if watchers.callback is not None:
        facts = {**facts, "callback": "a function of the caller's saw every evaluation, and could end the run"}
    writer = RunWriter(out, config, {**machine, **facts}, is_resumed, is_extended)
    use_compilation_cache()
    reporter = watchers.reporter
    interruption = Interruption(lambda number: reporter.answer(stopping(number, config)), reporter.close)
    with refusing_shortage(), one_blas_thread(), jax.default_device(devices[0]), interruption, ExitStack() as closing:
        closing.callback(writer.release)
        source = source_of(config, given)
        trainer = Trainer(config, source, spec, capacity, devices, watchers, writer, interruption, closing, start)
        if not is_resumed:
            trainer.inherit()
        writer.claim()
        if is_resumed:
            warn_of_another_machine(differences(writer.before, machine), watchers.reporter)
            trainer.restore()
        if is_extended:
            writer.extend()
        trainer.run()
    return Run(out, trust=True, given=given)  # its modules are imported already


def stopping(number: int, config: RunConfig) -> str:
    """What a run does after a signal."""
    then = "then a checkpoint" if config.checkpoint_every != 0 else "without a checkpoint"
    again = "; Ctrl-C again to quit" if number == signal.SIGINT else ""
    return f"finishing the chunk, {then}{again}"


def warn_of_another_machine(changes: Sequence[str], reporter: Reporter) -> None:
    """Rounding depends on it: with other threads or another version sums are taken in another order."""
    if changes:
        *others, last = changes
        text = printable(f"{', '.join(others)} and {last}" if others else last)  # the directory may be a stranger's
        reporter.warn(f"the run was begun with {text}; it goes on, but may not end with the same bytes.")

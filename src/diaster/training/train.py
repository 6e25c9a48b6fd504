"""Begin a run or go on with one: from settings or a run directory to a finished `Run`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from diaster.config import RunConfig, build_config
from diaster.errors import DiasterError, printable, refusing_shortage
from diaster.learning.machine import check_memory, describe_machine, differences, find_devices, use_compilation_cache
from diaster.run import Run
from diaster.rundir.records import CONFIG, DONE, read_config
from diaster.rundir.tidying import tidy
from diaster.rundir.trust import check_trust
from diaster.rundir.writer import RunWriter, already_complete, free_directory, refuse_killed_at_the_start
from diaster.signals import Interruption
from diaster.training.board import BOARD, Board
from diaster.training.loop import Trainer
from diaster.training.progress import Reporter, Silent, Unfailing, make_reporter
from diaster.training.resolve import resolve
from diaster.training.schedule import ring_rows
from diaster.types import EnvSpec


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

    `settings` are those of the command line: `steps=300_000, seeds=5, method={"name": "rrd", "subset": 32}`, or
    `method="rrd"` for a method with its defaults. Without `out` the run goes to a new directory below `runs`.
    """
    if env:
        settings["env"] = env
    run_config = build_config(preset, Path(config) if config else None, **settings)
    reporter = Silent() if quiet else make_reporter()
    return run_training(run_config, Path(out) if out else None, reporter, tensorboard)


def resume(path: str | Path, *, quiet: bool = True, trust: bool = False) -> Run:
    """Go on with a run that was cut off, from its last checkpoint; it ends as if that had never happened.

    With `trust` the modules that it names are imported even if it was not made here by this user.
    """
    return resume_training(Path(path), Silent() if quiet else make_reporter(), trust)


def run_training(config: RunConfig, out: Path | None, reporter: Reporter, tensorboard: bool = False) -> Run:
    """Train as configured; every complaint about the input comes before anything is written."""
    name = f"{config.env.replace('/', '-').replace(':', '-')}-{config.method.name}"
    # Absolute before an environment is made: one may change the working directory.
    out = (out or free_directory(Path("runs"), name)).absolute()
    config, spec = resolve(config)
    return _train_in(out, config, spec, reporter, tensorboard)


def resume_training(path: Path, reporter: Reporter, trust: bool = False) -> Run:
    """What `resume` does, with a reporter."""
    path = path.absolute()
    refuse_killed_at_the_start(path)
    config = read_config(path)
    if (path / DONE).exists():
        tidy(path)
        raise already_complete(path)
    if not trust:
        check_trust(path, config)
    resolved, spec = resolve(config)
    if resolved != config:
        raise DiasterError(f"the settings in '{path / CONFIG}' are not those of a run; put the file back as it was.")
    return _train_in(path, config, spec, reporter, (path / BOARD).is_dir(), is_resumed=True)


def _train_in(
    out: Path, config: RunConfig, spec: EnvSpec, reporter: Reporter, tensorboard: bool, is_resumed: bool = False
) -> Run:
    start, reporter = time.perf_counter(), Unfailing(reporter)
    devices = find_devices(config.device, config.devices)
    capacity = ring_rows(config)
    check_memory(config, spec, capacity, devices)
    machine = describe_machine(devices[0])
    writer = RunWriter(out, config, machine, is_resumed)
    use_compilation_cache()
    board = Board(out) if tensorboard else None
    with refusing_shortage(), jax.default_device(devices[0]), Interruption() as interruption, ExitStack() as closing:
        closing.callback(writer.release)
        trainer = Trainer(config, spec, capacity, devices, reporter, writer, board, interruption, closing, start)
        writer.claim()
        if is_resumed:
            warn_of_another_machine(differences(writer.before, machine), reporter)
            trainer.restore()
        trainer.run()
    return Run(out, trust=True)  # its modules are imported already


def warn_of_another_machine(changes: Sequence[str], reporter: Reporter) -> None:
    """Rounding depends on it: with other threads or another version sums are taken in another order."""
    if changes:
        *others, last = changes
        text = printable(f"{', '.join(others)} and {last}" if others else last)  # the directory may be a stranger's
        reporter.warn(f"the run was begun with {text}; it goes on, but may not end with the same bytes.")

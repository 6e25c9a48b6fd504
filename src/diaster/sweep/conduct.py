"""A sweep from its file to its results: plan the cells, skip finished ones, launch the rest, report how they ended.

RESULTS/sweep.toml        the file, as it was given
RESULTS/sweep.json        where every cell stands
RESULTS/logs/CELL.txt     what a cell's process said
RESULTS/CELL/             an ordinary run directory
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diaster.config import RunConfig, check_new
from diaster.errors import DiasterError, Stopped
from diaster.rundir.files import is_file, is_temporary, write_atomically
from diaster.rundir.lock import LOCK, RunLock
from diaster.rundir.records import CONFIG, METADATA, read_config, read_metadata
from diaster.rundir.records import DONE as DONE_FILE
from diaster.rundir.results import read_progress
from diaster.rundir.tidying import remove_temporary
from diaster.rundir.trust import SIGNATURE, modules_of, sign
from diaster.rundir.writer import make_directory
from diaster.signals import Interruption
from diaster.sweep.cell import At, CellOrder, Ended
from diaster.sweep.display import Display
from diaster.sweep.grid import Cell, read_grid
from diaster.sweep.launch_local import CellToRun, LocalLauncher, Watcher
from diaster.sweep.resources import Machine, Wishes, make_slots
from diaster.sweep.status import BROKEN, DONE, FAILED, STATUS, WAITING, CellStatus, Status, read_recorded
from diaster.training.estimate import estimate
from diaster.training.resolve import resolve
from diaster.types import EnvSpec

FILE, LOGS = "sweep.toml", "logs"
CPU = "cpu"  # the platform and the device in the record of a run


class PlannedCell(NamedTuple):
    """A cell whose settings are resolved and checked."""

    name: str
    config: RunConfig
    spec: EnvSpec


class Plan(NamedTuple):
    """A sweep before anything is started."""

    out: Path
    content: bytes
    record_episodes: int
    cells: tuple[PlannedCell, ...]
    unseen: tuple[Cell, ...] = ()
    """Cells that cannot be known without importing modules, where nothing was to be imported."""


class Site(NamedTuple):
    """Where cells will run: how many at a time, and what each of them has."""

    width: int
    cores: int  # of each cell
    has_gpus: bool
    launch: Callable[[Sequence[CellToRun], Watcher, Interruption], None]
    recorded: frozenset[tuple[str, int]] = frozenset()
    """What runs of cells may say here, as far as it is known: the device that learnt, and how many cores there were."""

    def has_made(self, metadata: Mapping[str, Any], on_gpu: bool) -> bool:
        """Whether a cell was trained on such a machine, so that it tells how long others will take."""
        platform, device, cores = (metadata.get(name) for name in ("platform", "device", "cores"))
        is_sound = isinstance(device, str) and isinstance(cores, int)  # a record may hold anything
        return is_sound and (platform != CPU) == on_gpu and (device, cores) in self.recorded


def make_plan(file: Path, out: Path | None, may_import: bool = True) -> Plan:
    """Read a sweep's file and resolve every cell; errors are found here, before anything is written."""
    grid = read_grid(file)
    out = out or Path("runs") / file.stem
    cells, unseen = [], []
    for cell in grid.cells:
        is_new = not is_file(out / cell.name / CONFIG)
        is_seen = may_import or not modules_of(cell.config)
        try:
            config, spec = resolve(cell.config) if is_seen else (cell.config, None)
            if is_new:
                check_new(config)
        except DiasterError as error:
            raise DiasterError(f"cell '{cell.name}' of {file}: {error}") from None
        if spec is None:
            unseen.append(cell)
        else:
            cells.append(PlannedCell(cell.name, config, spec))
    refuse_foreign(out)
    return Plan(out, grid.content, grid.record_episodes, tuple(cells), tuple(unseen))


def refuse_foreign(out: Path) -> None:
    """A results directory is new, empty or a sweep's."""
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise DiasterError(f"'{nearest}' is a file; give a directory for the results with --out.")
    if not os.access(nearest, os.W_OK):
        raise DiasterError(f"'{nearest}' cannot be written to; give another directory with --out.")
    if out.is_dir() and not is_file(out / FILE) and not all(is_leftover(item.name) for item in out.iterdir()):
        raise DiasterError(f"'{out}' is not empty and holds no sweep; give another directory with --out.")


def is_leftover(name: str) -> bool:
    """Whether a file was left by a sweep that was killed before its own file was written."""
    return name == LOCK or is_temporary(name, (FILE, STATUS))


def uses_gpu(config: RunConfig, has_gpus: bool) -> bool:
    """Whether a cell will learn on a GPU."""
    return config.device == "gpu" or (config.device == "auto" and has_gpus)


def local_site(machine: Machine, wishes: Wishes, plan: Plan) -> Site:
    """This machine."""
    has_gpus = bool(machine.gpus) and wishes.gpus != 0
    any_gpu = any(uses_gpu(cell.config, has_gpus) for cell in plan.cells)
    slots = make_slots(machine, wishes, len(plan.cells), any_gpu and has_gpus)
    memory = machine.memory if wishes.jobs is None else None  # a number that the user gave is not reduced
    launcher = LocalLauncher(slots, memory, plan.out / LOGS)
    n_cores = len(slots[0].cores)
    # What a cell sees of the machine; macOS has no affinities.
    seen = n_cores if hasattr(os, "sched_setaffinity") else os.cpu_count() or 1
    recorded = frozenset((device, seen) for device in (CPU, *machine.gpu_names))
    return Site(len(slots), n_cores, has_gpus and any_gpu, launcher.run, recorded)


def look_at(plan: Plan, site: Site) -> Status:
    """Where every cell stands, from its directory; settings that differ from what is there are refused."""
    recorded = read_recorded(plan.out)
    cells = {}
    for cell in plan.cells:
        path = plan.out / cell.name
        on_gpu = uses_gpu(cell.config, site.has_gpus)
        need = estimate(cell.config, cell.spec, site.cores, on_gpu)
        status = cells[cell.name] = CellStatus(cell.config, need, recorded=recorded.get(cell.name, 0))
        if not is_file(path / CONFIG):
            refuse_what_is_no_run(path)
            continue
        refuse_other_settings(path, read_config(path), cell.config)
        if not is_file(path / DONE_FILE):
            status.state, status.step = BROKEN, last_step(path)
            continue
        metadata = metadata_of(path)
        status.step, status.seconds = cell.config.steps, seconds_taken(metadata)
        status.is_from_here = site.has_made(metadata, on_gpu)
        if status.recorded >= plan.record_episodes:
            status.state = DONE
    return Status(plan.out, cells, site.width)


def state_of_unseen(path: Path, wanted: RunConfig) -> str:
    """Where a cell stands whose environment is not known; what may depend on that, 'auto', is not compared."""
    if not is_file(path / CONFIG):
        refuse_what_is_no_run(path)
        return WAITING
    refuse_other_settings(path, read_config(path), wanted, is_resolved=False)
    return DONE if is_file(path / DONE_FILE) else BROKEN


def refuse_what_is_no_run(path: Path) -> None:
    """A cell's directory may be missing, empty, or hold what is left of a run that was killed when it started."""
    for item in path.iterdir() if path.is_dir() else ():
        if item.name not in (LOCK, METADATA, SIGNATURE) and not item.name.startswith("."):
            raise DiasterError(f"'{path}' holds '{item.name}' and no run; remove the directory, or give another --out.")
    if path.exists() and not path.is_dir():
        raise DiasterError(f"'{path}' is no directory; remove it, or give another --out.")


def refuse_other_settings(path: Path, found: RunConfig, wanted: RunConfig, is_resolved: bool = True) -> None:
    """A cell with other settings is neither resumed nor taken for done."""
    found = dataclasses.replace(found, keep_checkpoint=wanted.keep_checkpoint)  # it changes no result
    before, after = dotted(dataclasses.asdict(found)), dotted(dataclasses.asdict(wanted))
    for name in {**after, **before}:
        if before.get(name) != after.get(name) and (is_resolved or after.get(name) != "auto"):
            raise DiasterError(
                f"'{path}' was trained with {name}={before.get(name)}, and the sweep now says {after.get(name)}; "
                "put the file back as it was, remove that directory, or give another --out."
            )


def dotted(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting by its full name."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def last_step(path: Path) -> int:
    """The step of the last evaluation of an unfinished cell; its last checkpoint is near."""
    with contextlib.suppress(DiasterError):
        return int(read_progress(path)["step"].max(initial=0))
    return 0


def metadata_of(path: Path) -> dict[str, Any]:
    """What is recorded of how a cell was made; nothing where that is missing or damaged."""
    with contextlib.suppress(DiasterError):
        return read_metadata(path)
    return {}


def seconds_taken(metadata: Mapping[str, Any]) -> float | None:
    """How long a finished cell took."""
    seconds = metadata.get("wall_seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


class SweepProgress:
    """Keeps the status while cells run, and shows it."""

    def __init__(self, status: Status, display: Display, record_episodes: int) -> None:
        self._status, self._display, self._record_episodes = status, display, record_episodes

    def started(self, name: str) -> None:
        self._status.started(name)
        self._display.changed(name, self._status)

    def told(self, name: str, at: At) -> None:
        self._status.told(name, at)

    def ended(self, name: str, ended: Ended) -> None:
        path = self._status.path / name
        self._status.ended(name, ended, seconds_taken(metadata_of(path)), self._record_episodes)
        with contextlib.suppress(DiasterError, OSError):
            sign(path, self._status.cells[name].config)  # another machine, with another key, may have trained it
        self._display.changed(name, self._status)

    def waits(self, name: str, why: str) -> None:
        self._status.waits(name, why)
        self._display.changed(name, self._status)

    def look(self) -> None:
        self._display.look(self._status)


def conduct(
    plan: Plan, site: Site, display: Display, command: Sequence[str], announce: Callable[[Status], None]
) -> Status:
    """Finish every cell. One that fails stops no other; after a signal all of them write checkpoints.

    `announce` is told where the cells stand, unless all are done, once nothing keeps the others from being started.
    """
    claim(plan.out)
    lock = RunLock(plan.out)
    lock.take()
    try:
        remove_temporary(plan.out, (FILE, STATUS))
        status = look_at(plan, site)
        write_atomically(plan.out / FILE, plan.content)
        status.write()
        cells = [
            CellToRun(
                cell.name,
                CellOrder(plan.out / cell.name, cell.config, plan.record_episodes, (), tuple(command)),
                status.cells[cell.name].need.memory,
                uses_gpu(cell.config, site.has_gpus),
            )
            for cell in plan.cells
            if status.cells[cell.name].state != DONE
        ]
        # Cells are told to stop by this process alone, which is never busy for long and so needs no help to quit.
        if cells:
            announce(status)
        with Interruption(lambda number: display.say(stopping(number)), ends_process=False) as interruption:
            site.launch(cells, SweepProgress(status, display, plan.record_episodes), interruption)
    finally:
        display.close()
        lock.release()
    if interruption.signal is not None and status.count(DONE) + status.count(FAILED) < len(status.cells):
        raise Stopped(
            f"stopped with {status.count(DONE)} of {len(status.cells)} cells done; go on with the same command: "
            f"{shlex.join(command)}",
            interruption.signal,
        )
    return status


def stopping(number: int) -> str:
    """What a sweep does after a signal."""
    again = "; Ctrl-C again to quit" if number == signal.SIGINT else ""
    return f"the cells that run finish their chunks, then write checkpoints{again}"


def claim(out: Path) -> None:
    """Make the results directory, where there is none."""
    for folder in reversed([folder for folder in (out, *out.parents) if not folder.exists()]):
        make_directory(folder, exclusively=False)


def refuse_failures(status: Status) -> None:
    """The sentence for cells that failed; all others are done."""
    failed = {name: cell.failure for name, cell in status.cells.items() if cell.state == FAILED}
    if failed:
        name, failure = next(iter(failed.items()))
        raise DiasterError(
            f"{len(failed)} of {len(status.cells)} cells failed; the first, '{name}': {failure} "
            "The same command tries them again."
        )

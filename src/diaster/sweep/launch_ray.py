"""Cells as tasks of a Ray cluster, one each, with its CPUs and GPUs. No disk is shared.

A task trains in a directory of its node, in a process like that of a local cell, and yields what is new there (see
mirror.py) while it trains; the driver writes that into the results. When a worker dies, the driver starts a new task,
which first receives what has arrived and resumes from the last checkpoint. Ray itself repeats nothing.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diaster.envs.processes import start_child
from diaster.errors import DiasterError, printable
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.signals import Interruption
from diaster.sweep.cell import At, CellOrder, Ended
from diaster.sweep.conduct import CPU, LOGS, Plan, Site, uses_gpu
from diaster.sweep.launch_local import CELL_MODULE, CellToRun, Watcher, ended_without_a_word
from diaster.sweep.mirror import DirectoryReceiver, DirectorySender, Gone, Piece, all_pieces
from diaster.sweep.resources import Wishes, host_bytes, share_variables

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_SENDINGS = 2.0
MOST_DEATHS = 3  # of a cell's workers in a row, without a new checkpoint between them
MOST_MESSAGES_AHEAD = 16  # that a task may yield before the driver has taken them
LONGEST_LOG = 1 << 20


class Log(NamedTuple):
    """What a cell's process said."""

    content: bytes


Message = At | Piece | Gone | Log | Ended


class Attempt(NamedTuple):
    """What a task has to do."""

    order: CellOrder
    name: str
    variables: dict[str, str]


def attempt_cell(attempt: Attempt, copy: Sequence[Any], stop: Any) -> Iterator[Message]:
    """On a worker: finish a cell, and yield messages and new files meanwhile."""
    with tempfile.TemporaryDirectory(prefix="diaster-") as folder:
        path, log = Path(folder) / attempt.name, Path(folder) / "log.txt"
        receiver = DirectoryReceiver(path)
        for piece in copy:
            receiver.take(ray.get(piece))
        sender = DirectorySender(path)
        with log.open("ab") as output:
            process, connection = start_child(CELL_MODULE, attempt.variables, output.fileno())
        try:
            connection.send(attempt.order._replace(path=path))
            ended = yield from _follow(process, connection, sender, stop, attempt)
            yield from sender.changes()
            yield Log(log.read_bytes()[-LONGEST_LOG:])
            yield ended._replace(failure=ended.failure.replace(str(path), str(attempt.order.path)))
        finally:
            process.kill()
            process.wait()


def _follow(
    process: subprocess.Popen[bytes], connection: Connection, sender: DirectorySender, stop: Any, attempt: Attempt
) -> Generator[Message, None, Ended]:
    """Until the cell's process has ended; returns how."""
    last, asked = time.monotonic(), False
    while True:
        message: At | Ended | None = None
        try:
            if connection.poll(SECONDS_BETWEEN_LOOKS):
                message = connection.recv()
        except (EOFError, OSError):
            code = process.wait()
            if code < 0 and not asked:  # the system was short of memory, say; another node may have more
                raise ChildProcessError(f"the cell's process was killed by signal {-code}") from None
            message = ended_without_a_word(code, asked, attempt.order.path.parent / LOGS / attempt.name)
        if isinstance(message, Ended):
            process.wait()
            return message
        if message is not None:
            yield message
        if time.monotonic() - last > SECONDS_BETWEEN_SENDINGS:
            yield from sender.changes()
            last = time.monotonic()
            if not asked and ray.get(stop.is_asked.remote()):
                asked = True
                process.send_signal(signal.SIGTERM)


class StopFlag:
    """An actor that tasks ask whether the user wants them to stop."""

    def __init__(self) -> None:
        self._is_asked = False

    def ask(self) -> None:
        self._is_asked = True

    def is_asked(self) -> bool:
        return self._is_asked


class Shares(NamedTuple):
    """What every cell has of the cluster."""

    cpus: int
    gpus: float  # of the cells that learn on one


@dataclass
class RayTask:
    """A cell that has been handed to Ray."""

    cell: CellToRun
    receiver: DirectoryReceiver
    newest: int  # checkpoint that it began from
    is_started: bool = False


class RayLauncher:
    """Hands cells to Ray, as many as the cluster has room for, and keeps what they yield."""

    def __init__(self, shares: Shares, logs: Path) -> None:
        self._shares, self._logs = shares, logs
        self._running: dict[Any, RayTask] = {}  # by the generator of a task's messages
        self._deaths: dict[str, int] = {}

    def run(self, cells: Sequence[CellToRun], watcher: Watcher, interruption: Interruption) -> None:
        """Until every cell has ended; after a signal, until those that run have sent their checkpoints."""
        if not cells:
            return
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        stop = ray.remote(StopFlag).options(num_cpus=0, scheduling_strategy=here).remote()
        waiting, is_stopping = list(cells), False
        while self._running or (waiting and not is_stopping):
            if interruption.signal is not None and not is_stopping:
                is_stopping = True
                ray.get(stop.ask.remote())
                self._cancel_what_has_not_started()
                continue
            while waiting and not is_stopping and len(self._running) < room(ray.cluster_resources(), self._shares):
                self._hand_over(waiting.pop(0), stop)
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
            for generator in ready:
                lost = self._hear(generator, watcher, is_stopping)
                if lost is not None:
                    waiting.insert(0, lost)
            watcher.look()

    def _hand_over(self, cell: CellToRun, stop: Any) -> None:
        path, shares = cell.order.path, self._shares
        remote = ray.remote(attempt_cell).options(
            num_cpus=shares.cpus,
            num_gpus=shares.gpus if cell.uses_gpu else 0,
            memory=host_bytes(cell.memory, cell.uses_gpu),
            max_retries=0,  # Ray would begin from the start
            num_returns="streaming",
            _generator_backpressure_num_objects=MOST_MESSAGES_AHEAD,
        )
        attempt = Attempt(cell.order, cell.name, variables(shares, cell.uses_gpu))
        copy = [ray.put(piece) for piece in all_pieces(path)]
        task = RayTask(cell, DirectoryReceiver(path), newest_checkpoint(path))
        self._running[remote.remote(attempt, copy, stop)] = task

    def _hear(self, generator: Any, watcher: Watcher, is_stopping: bool) -> CellToRun | None:
        """Take one message of a cell. Returns the cell if its worker died and it has to be started again."""
        task = self._running[generator]
        name = task.cell.name
        try:
            message: Message = ray.get(next(generator))
            if not task.is_started:
                task.is_started = True
                watcher.started(name)
            if isinstance(message, Piece | Gone):
                task.receiver.take(message)
            elif isinstance(message, Log):
                self._keep_log(name, message)
            elif isinstance(message, At):
                watcher.told(name, message)
            else:
                del self._running[generator]
                watcher.ended(name, message)
            return None
        except (StopIteration, DiasterError, ray.exceptions.RayError) as error:
            del self._running[generator]
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(generator, force=True)
            return self._lost(task, error, watcher, is_stopping)

    def _lost(self, task: RayTask, error: Exception, watcher: Watcher, is_stopping: bool) -> CellToRun | None:
        """A worker died, or what it sent did not arrive whole: start again from the last checkpoint, a few times."""
        cell = task.cell
        if is_stopping:
            watcher.ended(cell.name, Ended(is_stopped=True))
            return None
        has_advanced = newest_checkpoint(cell.order.path) > task.newest
        self._deaths[cell.name] = 1 if has_advanced else self._deaths.get(cell.name, 0) + 1
        why = described(error)
        if self._deaths[cell.name] >= MOST_DEATHS:
            sentence = f"its worker was lost {MOST_DEATHS} times without a new checkpoint, the last time by {why}"
            watcher.ended(cell.name, Ended(sentence))
            return None
        watcher.waits(cell.name, f"its worker was lost ({why}); it goes on from its last checkpoint")
        return cell

    def _keep_log(self, name: str, log: Log) -> None:
        with contextlib.suppress(OSError):
            self._logs.mkdir(exist_ok=True)
            with (self._logs / f"{name}.txt").open("ab") as file:
                file.write(log.content)

    def _cancel_what_has_not_started(self) -> None:
        for generator, task in list(self._running.items()):
            if not task.is_started:
                ray.cancel(generator, force=True)
                del self._running[generator]


def described(error: Exception) -> str:
    """Ray's message on one line; for an exception in a task, a traceback comes before it."""
    lines = str(error).strip().splitlines() or ["no message"]
    line = lines[-1] if isinstance(error, ray.exceptions.RayTaskError) else lines[0]
    return printable(f"{type(error).__name__}: {line}")


def newest_checkpoint(path: Path) -> int:
    """The number of the last checkpoint that has arrived, 0 if there is none."""
    return next(iter(generations(path / DIRECTORY)), 0)


def variables(shares: Shares, is_on_gpu: bool) -> dict[str, str]:
    """Environment variables that keep a cell to its share. Ray itself says which GPU."""
    found = share_variables(shares.cpus, shares.gpus if is_on_gpu else None)
    return found if is_on_gpu else {**found, "JAX_PLATFORMS": "cpu"}


def room(resources: dict[str, float], shares: Shares) -> int:
    """How many cells the cluster can run at a time."""
    by_cpus = int(resources.get("CPU", 0) // shares.cpus)
    by_gpus = int(resources.get("GPU", 0) / shares.gpus + 1e-9) if shares.gpus else by_cpus
    return max(1, min(by_cpus, by_gpus))


@contextlib.contextmanager
def ray_cluster(address: str | None, wishes: Wishes, plan: Plan) -> Iterator[Site]:
    """Connect to a cluster, and disconnect at the end."""
    if address is not None:
        refuse_silent_address(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about future versions of Ray
            ray.init(address=address or "auto", logging_level=logging.CRITICAL, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise no_cluster(address, str(error)) from None
    try:
        resources = ray.cluster_resources()
        has_gpus = resources.get("GPU", 0) > 0 and wishes.gpus != 0
        any_gpu = any(uses_gpu(cell.config, has_gpus) for cell in plan.cells)
        shares = Shares(wishes.cpus or 1, (wishes.gpus or 1.0) if any_gpu else 0.0)
        refuse_what_no_node_has(ray.nodes(), shares)
        launcher = RayLauncher(shares, plan.out / LOGS)
        # A cell sees all cores of its node. What GPUs are called there is not known here.
        of_nodes = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        recorded = frozenset((CPU, int(cores)) for cores in of_nodes)
        yield Site(min(room(resources, shares), len(plan.cells)), shares.cpus, has_gpus, launcher.run, recorded)
    finally:
        ray.shutdown()


def refuse_silent_address(address: str) -> None:
    """Ray itself waits long for a cluster that does not answer."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or int(port) >= 2**16:
        raise DiasterError(
            f"--address is '{address}'; give the host and port of the cluster's head, e.g. 10.0.0.1:6379."
        )
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise no_cluster(address, error.strerror or "no answer") from None


def no_cluster(address: str | None, why: str) -> DiasterError:
    """The error where there is no cluster."""
    first = why.strip().splitlines()[0].rstrip(".") if why.strip() else "no answer"
    where = f"at '{address}'" if address else "on this machine"
    return DiasterError(
        f"no Ray cluster was found {where} ({first}); start one with 'ray start --head', or name one with --address."
    )


def refuse_what_no_node_has(nodes: Sequence[dict[str, Any]], shares: Shares) -> None:
    """Otherwise a cell that fits on no node would wait for ever."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    for name, wanted, flag in (("CPU", shares.cpus, "--cpus"), ("GPU", shares.gpus, "--gpus")):
        most = max((node.get(name, 0) for node in alive), default=0)
        if wanted > most:
            raise DiasterError(
                f"a cell is to have {wanted:g} {name}s, and no node of the cluster has more than {most:g}; "
                f"give a smaller {flag}."
            )

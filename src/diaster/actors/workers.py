"""Environments in worker processes that hold some of them each.

A worker acts by itself for a whole chunk, so there is one message per chunk and not one per step. Workers are started
as `python -m diaster.actors.workers`, not by multiprocessing: a user's script needs no `__main__` guard, and no JAX is
loaded in them. Results do not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from diaster.actors.fleet import FleetSpec, Request, SeedEnvs
from diaster.actors.shared_arrays import ArrayReceiver, ArraySender, make_memory
from diaster.envs.processes import line_to_the_parent, start_child
from diaster.envs.source import PackedSource, pack
from diaster.errors import DiasterError, with_traceback

GLANCE_SECONDS = 1.0  # how often to look, while waiting for answers, whether all workers live


class WorkerSetup(NamedTuple):
    """All a worker has to know at its start."""

    fleet: FleetSpec  # of the worker's own environments
    niceness: int
    memory: int | None  # the handle of what it shares with the parent


class WorkerFleet:
    """Environments dealt out to worker processes."""

    def __init__(self, fleet: FleetSpec, n_workers: int, niceness: int = 0) -> None:
        self._positions = [list(range(first, len(fleet.seeds), n_workers)) for first in range(n_workers)]
        self._n_envs = len(fleet.seeds)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._answers: dict[int, Any] = {}  # of each worker that has answered
        self._sender: ArraySender | None = None
        try:
            self._start_workers(fleet, niceness)
        except BaseException:
            self.close()
            raise

    def _start_workers(self, fleet: FleetSpec, niceness: int) -> None:
        memory = make_memory()
        self._sender = ArraySender(self._connections, memory)
        source = fleet.source if isinstance(fleet.source, PackedSource) else pack(fleet.source)
        for positions in self._positions:
            process, connection = start_child("diaster.actors.workers", handles=() if memory is None else [memory])
            self._processes.append(process)
            self._connections.append(connection)
            own = fleet._replace(
                source=source,
                seeds=tuple(fleet.seeds[position] for position in positions),
                shares=tuple(fleet.shares[position] for position in positions),
            )
            with contextlib.suppress(OSError):  # it died at once: who waits for its answer finds out
                connection.send(WorkerSetup(own, niceness, memory))

    def start(self, request: Request) -> None:
        assert self._sender is not None
        self._answers = {}
        shares = [[request.of_envs[position] for position in positions] for positions in self._positions]
        self._sender.send([request._replace(of_envs=share) for share in shares])  # type: ignore[arg-type]

    def is_done(self) -> bool:
        self._receive(0.0)
        return len(self._answers) == len(self._connections)

    def finish(self) -> list[Any]:
        while len(self._answers) < len(self._connections):
            self._receive(GLANCE_SECONDS)
            self._note_dead_workers()
        results: list[Any] = [None] * self._n_envs
        for worker, positions in enumerate(self._positions):
            answer = self._answers[worker]
            if isinstance(answer, EOFError):
                raise DiasterError(
                    f"a process that steps environments ended unexpectedly (exit code "
                    f"{self._processes[worker].wait()}); run with --workers 0 to see the environment's own message."
                )
            if isinstance(answer, DiasterError):
                raise answer
            for position, result in zip(positions, answer, strict=True):
                results[position] = result
        return results

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._sender is not None:
            self._sender.close()

    def _note_dead_workers(self) -> None:
        """A worker that is gone need not have closed its connection: a process that it forked may hold it open."""
        for worker, process in enumerate(self._processes):
            if worker not in self._answers and process.poll() is not None:
                self._receive(0.0)  # what it sent before
                self._answers.setdefault(worker, EOFError())

    def _receive(self, seconds: float) -> None:
        """Take the answers that are there; wait for one at most this long."""
        silent = {c: worker for worker, c in enumerate(self._connections) if worker not in self._answers}
        for connection in wait(list(silent), seconds) if silent else ():
            assert isinstance(connection, Connection)
            try:
                self._answers[silent[connection]] = connection.recv()
            except (EOFError, OSError):
                self._answers[silent[connection]] = EOFError()


def serve(connection: Connection) -> None:
    """A worker's life: make the environments, answer requests, end when the other side closes."""
    setup: WorkerSetup = connection.recv()
    os.nice(setup.niceness)
    receiver = ArrayReceiver(connection, setup.memory)
    envs: SeedEnvs | None = None
    try:
        while True:
            request = receiver.receive()
            try:
                if envs is None:
                    envs = SeedEnvs(setup.fleet)
                connection.send(envs.answer(request))
            except DiasterError as error:
                connection.send(with_traceback(error))
    except (EOFError, OSError):
        pass  # training is over
    finally:
        if envs is not None:
            envs.close()


if __name__ == "__main__":
    serve(line_to_the_parent())

"""What this machine can give to cells: slots of cores and GPUs, and memory.

Every cell has the same number of cores for itself while it runs. Its results depend on the number of threads, so that
number follows from the machine, the sweep and the flags, and never from what else is running.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from typing import NamedTuple

from diaster.errors import DiasterError
from diaster.learning.machine import host_memory
from diaster.training.estimate import PROCESS_BYTES

MOST_MEMORY = 0.9  # of what is free when the sweep starts
GPU_MEMORY = 0.9


class Machine(NamedTuple):
    """What there is."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    memory: int | None  # free bytes, where the platform tells
    gpu_names: frozenset[str] = frozenset()  # as records of runs have them, where they can be known


class Wishes(NamedTuple):
    """What the user asked for; None leaves it to us."""

    jobs: int | None = None
    cpus: int | None = None
    gpus: float | None = None


class Slot(NamedTuple):
    """Cores and a GPU for one cell at a time."""

    cores: tuple[int, ...]
    gpu: str | None = None
    gpu_share: float = 1.0
    are_gpus_hidden: bool = False  # from cells that learn on the CPU: JAX would still take most of their memory

    def variables(self, uses_gpu: bool) -> dict[str, str]:
        """Environment variables that keep a cell to its cores and its GPU."""
        found = share_variables(len(self.cores), self.gpu_share if uses_gpu else None)
        if uses_gpu and self.gpu is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.gpu
        elif self.are_gpus_hidden:
            found["JAX_PLATFORMS"] = "cpu"
        return found


def share_variables(n_cores: int, gpu_share: float | None) -> dict[str, str]:
    """The number of XLA's threads, on which results depend, and its share of a GPU's memory."""
    found = {"NPROC": str(n_cores)}
    if gpu_share is not None and gpu_share < 1:
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{GPU_MEMORY * gpu_share:.3f}"
    return found


def find_machine() -> Machine:
    """What this process may use of this machine."""
    # macOS has no affinities.
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    gpus = find_gpus()
    return Machine(tuple(cores), gpus, host_memory(), find_gpu_names() if gpus else frozenset())


def find_gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that JAX could use, found without JAX, which would take their memory."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if (platforms and not {"cuda", "gpu"} & set(platforms.split(","))) or not any(
        map(importlib.util.find_spec, plugins)
    ):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip())
    return tuple(map(str, range(sum(line.startswith("GPU ") for line in nvidia_smi("-L")))))


def find_gpu_names() -> frozenset[str]:
    """What this machine's GPUs are called; JAX calls them the same."""
    return frozenset(line.strip() for line in nvidia_smi("--query-gpu=name", "--format=csv,noheader") if line.strip())


def nvidia_smi(*arguments: str) -> list[str]:
    """The lines of its answer; none where it does not answer."""
    try:
        answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def make_slots(machine: Machine, wishes: Wishes, n_cells: int, any_gpu: bool) -> list[Slot]:
    """As many equal slots as cores, GPUs and the number of cells allow, or as many as were asked for."""
    check_wishes(wishes)
    n_cores = len(machine.cores)
    gpus = machine.gpus if any_gpu else ()
    share = wishes.gpus or 1.0
    if wishes.jobs is not None and wishes.gpus is None and gpus:
        share = min(1.0, len(gpus) / wishes.jobs)
    at_most = min(n_cells, len(gpus) * int(1 / share + 1e-9)) if gpus else n_cells
    n_slots = wishes.jobs or max(1, min(at_most, n_cores // (wishes.cpus or 1)))
    n_own = wishes.cpus or max(1, n_cores // n_slots)
    return [
        Slot(
            # More slots than cores is what the user asked for: they share.
            tuple(machine.cores[(number * n_own + core) % n_cores] for core in range(min(n_own, n_cores))),
            gpus[number % len(gpus)] if gpus else None,
            share,
            are_gpus_hidden=bool(machine.gpus),
        )
        for number in range(n_slots)
    ]


def check_wishes(wishes: Wishes) -> None:
    """Refuse what no machine can give."""
    for name, value in (("jobs", wishes.jobs), ("cpus", wishes.cpus)):
        if value is not None and value < 1:
            raise DiasterError(f"--{name} is {value}; it has to be at least 1.")
    if wishes.gpus is not None and not 0.0 <= wishes.gpus <= 1.0:
        raise DiasterError(f"--gpus is {wishes.gpus}; a cell learns on one GPU at most, so give a share from 0 to 1.")


def host_bytes(memory: int, uses_gpu: bool) -> int:
    """What a cell takes of the host's memory; with a GPU its replay is there."""
    return 2 * PROCESS_BYTES if uses_gpu else memory

"""In which processes environments are stepped: in this one, or in as many workers as the machine has use for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from diaster.actors.acting import HostPolicy
from diaster.actors.collector import Share
from diaster.actors.collectors import Collectors, repeated
from diaster.actors.evaluators import Evaluators
from diaster.actors.fleet import Fleet, FleetSpec, LocalFleet
from diaster.actors.rollout import ORDINARY, Handling
from diaster.actors.workers import WorkerFleet
from diaster.envs.source import EnvSource, is_portable, pack
from diaster.types import EnvSpec

MANY_CORES = 8
MOST_EVALUATING = 5  # environments that share the evaluation of a seed
# How far processes give way: those that collect to the one that launches learning on a GPU, and those that evaluate,
# for which nothing waits, to both.
NICE_COLLECTING, NICE_EVALUATING = 5, 15


class Placement(NamedTuple):
    """Which environments are stepped, with what, and on what kind of machine."""

    source: EnvSource
    spec: EnvSpec
    policy: HostPolicy
    seeds: Sequence[int]
    workers: int | str = "auto"
    handling: Handling = ORDINARY
    learns_on_gpu: bool = False


def make_collectors(place: Placement, envs_per_seed: int = 1) -> Collectors:
    """Environments to collect in, in as many processes as the machine has use for."""
    n_envs = len(place.seeds) * envs_per_seed
    n_workers = _number_of_processes(place, n_envs, available_cores() - 1)
    if place.workers == "auto" and n_envs == 1:
        n_workers = 0  # collecting in one environment is hidden behind learning
    niceness = NICE_COLLECTING if place.learns_on_gpu else 0
    return Collectors(_make_fleet(place, n_workers, envs_per_seed, niceness), len(place.seeds), envs_per_seed)


def make_evaluators(place: Placement, n_episodes: int) -> Evaluators:
    """Environments to evaluate n episodes of each seed in; that takes as long as many chunks.

    The episodes of a seed are shared out among processes also where there is but one for each seed: some policies last
    a hundred times as long as others, and an evaluation ends with the process that has most to do.
    """
    cores, n_seeds = available_cores(), len(place.seeds)
    n_workers = _number_of_processes(place, n_seeds, cores // 2)
    most = min(n_episodes, MOST_EVALUATING)
    per_seed = 1
    may_share = place.workers == "auto" and not place.spec.lanes  # a vector shares them among its lanes
    if may_share and n_workers == n_seeds and min(cores // n_seeds, most) > 1:
        per_seed = min(cores // n_seeds, most)
        n_workers *= per_seed
    elif may_share and n_workers > 1 and not place.handling.isolate:  # that would be a process for each
        per_seed = most
    fleet = _make_fleet(place, n_workers, per_seed, NICE_EVALUATING)
    return Evaluators(fleet, place.handling.retries, per_seed)


def _make_fleet(place: Placement, n_workers: int, per_seed: int, niceness: int) -> Fleet:
    seeds = repeated(place.seeds, per_seed)
    shares = [Share(number, per_seed) for _ in place.seeds for number in range(per_seed)]
    fleet = FleetSpec(place.source, place.spec, place.policy, seeds, shares, place.handling)
    return LocalFleet(fleet) if n_workers == 0 else WorkerFleet(fleet, n_workers, niceness)


def _number_of_processes(place: Placement, n_envs: int, spare_cores: int) -> int:
    """As many as were asked for, or as are of use; 0 for this process."""
    workers, cores = place.workers, available_cores()
    if workers == "auto":
        # On two cores learning takes both, and a process would gain nothing.
        if cores <= 2 or not is_portable(place.source):
            workers = 0
        elif cores >= MANY_CORES and n_envs <= 2 * cores:
            return n_envs  # the system shares cores out more evenly than whole environments can be
        else:
            each = -(-n_envs // min(n_envs, spare_cores))
            return -(-n_envs // each)  # no more than it takes for none to have more of them than that
    assert isinstance(workers, int)
    if workers > 0 or place.handling.isolate:
        pack(place.source)  # refused here if it cannot go to other processes
    return min(workers, n_envs)


def available_cores() -> int:
    """As many as this process may use. XLA takes NPROC for that number, and so does a sweep that shares out a node."""
    told = os.environ.get("NPROC", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

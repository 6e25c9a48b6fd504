"""sweep: a grid of runs."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diaster.cli.parsing import parse
from diaster.errors import DiasterError, complain
from diaster.signals import leaving_at_once


@dataclass(frozen=True)
class SweepArguments:
    """Train every cell of a grid (environment × method × settings), its seeds together.

    Finished cells are skipped and broken ones resumed: the same command goes on where it was stopped.
    """

    file: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="FILE")]] = None
    """TOML file with [axes] and [settings], see docs/how-to/sweeps.md."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Directory for the results; by default runs/ and the name of the file."""
    dry_run: bool = False
    """Print the cells with their expected time and memory; train nothing and import no modules that the file names."""
    jobs: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Cells at a time on this machine; by default as many as cores and memory allow."""
    cpus: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """CPU cores of each cell; by default all cores are shared out evenly, on Ray one for each cell."""
    gpus: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Share of a GPU for each cell, 0 to 1; by default a whole one where there are any."""
    launcher: Literal["local", "ray"] = "local"
    """Where cells run: in processes of this machine, or as tasks of a Ray cluster (extra ray)."""
    address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """With --launcher ray: address of the cluster, e.g. 10.0.0.1:6379; by default the one this machine belongs to."""
    quiet: bool = False
    """Print nothing but errors."""


def sweep(argv: Sequence[str]) -> None:
    """diaster sweep"""
    arguments = parse("sweep", argv, SweepArguments())
    if arguments.file is None:
        raise DiasterError("no file was given; e.g. diaster sweep experiments/performance-small.toml.")
    if arguments.launcher == "local" and arguments.address is not None:
        raise DiasterError("--address names a Ray cluster; add --launcher ray, or leave it out.")
    if arguments.launcher == "ray" and arguments.jobs is not None:
        raise DiasterError(
            "--jobs counts processes of this machine; a Ray cluster is filled by what cells need: --cpus."
        )
    if arguments.launcher == "ray" and importlib.util.find_spec("ray") is None:
        raise DiasterError("--launcher ray needs Ray; install it with pip install 'diaster[ray]'.")
    with leaving_at_once():
        from diaster.sweep.conduct import conduct, local_site, make_plan, refuse_failures
        from diaster.sweep.describe import counted, describe_end, describe_plan, describe_start
        from diaster.sweep.display import make_display
        from diaster.sweep.resources import Wishes, check_wishes, find_machine
        from diaster.sweep.status import Status

    wishes = Wishes(arguments.jobs, arguments.cpus, arguments.gpus)
    check_wishes(wishes)
    plan = make_plan(arguments.file, arguments.out, may_import=not arguments.dry_run)
    with contextlib.ExitStack() as stack:
        if arguments.launcher == "ray":
            from diaster.sweep.launch_ray import ray_cluster

            site = stack.enter_context(ray_cluster(arguments.address, wishes, plan))
        else:
            site = local_site(find_machine(), wishes, plan)
        if arguments.dry_run:
            print(describe_plan(plan, site))
            return

        def announce(status: Status, file: Path = arguments.file) -> None:
            if not arguments.quiet:
                complain(describe_start(status, site, file))

        status = conduct(plan, site, make_display(arguments.quiet), ["diaster", "sweep", *argv], announce)
    if not arguments.quiet:
        print(describe_end(status))
    refuse_failures(status)
    if not arguments.quiet:
        print(f"done: {counted(len(status.cells), 'cell')} in {plan.out}")

"""What a sweep is about to do, and how it ended, in words."""

from __future__ import annotations

from pathlib import Path

from diaster.rundir.trust import modules_of
from diaster.sweep.conduct import Plan, Site, look_at, state_of_unseen
from diaster.sweep.display import plain_table, row_of, size
from diaster.sweep.status import DONE, Status, correction
from diaster.training.progress import DAY, duration


def describe_plan(plan: Plan, site: Site) -> str:
    """What a sweep would do: every cell with its expected time and memory."""
    status = look_at(plan, site)
    rows = []
    for name, cell in status.cells.items():
        factor, _ = correction(cell.config.method.name, status.finished)
        seconds = cell.seconds if cell.seconds is not None else cell.seconds_left(factor)
        seeds = str(len(cell.config.seeds))
        sign = "" if cell.seconds is not None else "~"
        rows.append(
            (name, cell.state, f"{cell.config.steps:,}", seeds, sign + duration(seconds), size(cell.need.memory))
        )
    states = {unseen.name: state_of_unseen(plan.out / unseen.name, unseen.config) for unseen in plan.unseen}
    for name, config in plan.unseen:
        rows.append((name, states[name], f"{config.steps:,}", str(len(config.seeds)), "", ""))
    table = plain_table(("cell", "state", "steps", "seeds", "time", "memory"), rows)
    modules = sorted({module for cell in plan.unseen for module in modules_of(cell.config)})
    remark = f"\nWithout a time: cells that import {', '.join(modules)}; a dry run imports nothing." if modules else ""
    n_done = status.count(DONE) + list(states.values()).count(DONE)
    return f"{table}\n{_cost(status, site, len(rows), n_done)} Results: {plan.out}{remark}"


def describe_start(status: Status, site: Site, file: Path) -> str:
    """What a sweep is about to cost, and how to have less of it where that is long."""
    cost = _cost(status, site, len(status.cells), status.count(DONE))
    if status.seconds_left() <= DAY:
        return cost
    twin = file.with_stem(f"{file.stem}-small")
    smaller = f"{twin} is a small one; " if twin.is_file() else ""
    return (
        f"{cost}\nFor less, stop here with Ctrl-C: {smaller}--dry-run shows each cell; seeds and steps are in {file}."
    )


def _cost(status: Status, site: Site, n_cells: int, n_done: int) -> str:
    n_finished = len(status.finished)
    basis = f"the speed of {counted(n_finished, 'finished cell')}" if n_finished else "rough figures of other machines"
    where = "a GPU" if site.has_gpus else counted(site.cores, "core")
    return (
        f"{counted(n_cells, 'cell')}, {n_done} done; {site.width} at a time, each with {where}; "
        f"about {duration(status.seconds_left())} left (an estimate, from {basis})."
    )


def counted(number: int, what: str) -> str:
    """1 cell, 2 cells."""
    return f"{number} {what}{'s' * (number != 1)}"


def describe_end(status: Status) -> str:
    """Every cell and how it ended."""
    rows = [(name, *row_of(cell, status)[:3]) for name, cell in status.cells.items()]
    return plain_table(("cell", "state", "steps", "time"), rows)

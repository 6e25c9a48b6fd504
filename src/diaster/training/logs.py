"""Which logs a run writes for other programs, when it begins and when it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.rundir.records import METADATA, read_metadata
from diaster.training.board import BOARD, Board
from diaster.training.progress import Reporter
from diaster.training.wandb_log import WandbLog
from diaster.training.watching import Log

WANDB = "wandb"  # in the metadata


class Logs(NamedTuple):
    """The logs of a run, and what its metadata say of them."""

    logs: tuple[Log, ...]
    facts: dict[str, Any]


def make_logs(out: Path, config: RunConfig, tensorboard: bool, wandb: str) -> Logs:
    """Those that were asked for; a missing package is a sentence."""
    logs: list[Log] = [Board(out, config.seeds)] if tensorboard else []
    if not wandb:
        return Logs(tuple(logs), {})
    log = WandbLog(out, config, wandb)
    return Logs((*logs, log), {WANDB: log.facts})


def logs_again(out: Path, config: RunConfig, reporter: Reporter) -> tuple[Log, ...]:
    """Those that a run has had so far; one that cannot be had here is warned of, and the run goes on."""
    logs: list[Log] = []
    if (out / BOARD).is_dir():
        with _warning(reporter):
            logs.append(Board(out, config.seeds))
    found = read_metadata(out).get(WANDB) if os.path.lexists(out / METADATA) else None
    if isinstance(found, dict) and isinstance(found.get("project"), str):
        with _warning(reporter):
            logs.append(WandbLog(out, config, found["project"], str(found.get("group", ""))))
    return tuple(logs)


@contextmanager
def _warning(reporter: Reporter) -> Iterator[None]:
    try:
        yield
    except DiasterError as error:
        reporter.warn(f"the run goes on without one of its logs: {error}")

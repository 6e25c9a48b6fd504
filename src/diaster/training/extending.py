"""Making a run longer: what its settings become, and what has to be there for it to go on.

A run that was made longer is the run that had as many steps from the start: it goes on from a checkpoint, a state that
both pass through. Only the settings that were derived from the number of steps when it began stay as they are.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from diaster.config import RunConfig, validate
from diaster.errors import DiasterError
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.files import typed
from diaster.rundir.records import CONFIG, METADATA, STOPPED, read_metadata


def extended(path: Path, config: RunConfig, steps: int, is_complete: bool) -> RunConfig:
    """The settings of a run directory with more steps; those that have ended it early are taken out."""
    has_stopped = os.path.lexists(path / METADATA) and read_metadata(path).get(STOPPED) is not None
    least = config.steps + (not has_stopped)
    if steps < least:
        raise DiasterError(
            f"'{path}' has steps={config.steps}, and steps={steps} make it no longer; give at least {least}."
        )
    if is_complete and not generations(path / DIRECTORY):
        raise DiasterError(
            f"'{path}' is complete and has kept no checkpoint, without which it cannot be extended "
            f"(keep_checkpoint={config.keep_checkpoint} megabytes); begin another run with its nets: 'diaster train "
            f"--config {typed(path / CONFIG)} --from {typed(path)} --out …'."
        )
    evaluation = config.evaluation
    if has_stopped:
        evaluation = dataclasses.replace(evaluation, stop_at="never", stop_after=0)
    longer = dataclasses.replace(config, steps=steps, evaluation=evaluation)
    validate(longer)
    return longer

"""Numbers of a run for Weights & Biases: a run there for each seed, in one group, so that seeds overlay.

The package decides where they go: to its servers, or with WANDB_MODE=offline into `wandb/` of the run directory, from
where `wandb sync` sends them. Whatever fails there ends the logging, never the training.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from diaster.config import RunConfig
from diaster.errors import DiasterError, one_line
from diaster.rundir.results import ResultRow
from diaster.types import Episode

SECONDS_TO_FINISH = 60.0  # for what has not been sent when the run ends
STEP = "step"


class WandbLog:
    """The runs of all seeds there, begun when the first numbers arrive."""

    def __init__(self, out: Path, config: RunConfig, project: str, group: str = "") -> None:
        try:
            import wandb
        except ImportError:
            raise DiasterError("--wandb needs a package that is not installed; pip install 'diaster[wandb]'.") from None
        self._wandb: Any = wandb
        self._out, self._config, self._project = out, config, project
        self._group = group or f"{out.name}-{secrets.token_hex(4)}"
        self._runs: dict[int, Any] = {}
        self._has_failed = False
        try:
            if wandb.setup().settings.mode == "online":
                wandb.login()  # it may ask for the key: now, and not in the middle of the run
        except Exception as error:  # whatever the package raises
            raise DiasterError(
                f"--wandb cannot log in ({one_line(error)}); run 'wandb login', or set WANDB_MODE=offline."
            ) from None

    @property
    def facts(self) -> dict[str, str]:
        """What a run that goes on has to know to add to the same curves."""
        return {"project": self._project, "group": self._group}

    def evaluated(self, rows: Sequence[ResultRow]) -> None:
        """The columns of progress.csv under their names."""
        for row in rows:
            numbers = {name: value for name, value in row.items() if name not in (STEP, "seed") and value == value}
            self._log(int(row["seed"]), int(row[STEP]), numbers)

    def trained(self, step: int, episodes: Sequence[Sequence[Episode]]) -> None:
        """Return and length of the training episodes that have ended, as means; from the first evaluation on."""
        for seed, of_seed in zip(self._config.seeds, episodes, strict=True):
            if of_seed and self._runs:
                returns = float(np.mean([episode.episode_return for episode in of_seed]))
                lengths = float(np.mean([episode.length for episode in of_seed]))
                self._log(seed, step, {"episode_return": returns, "episode_length": lengths})

    def close(self) -> None:
        """Send what waits, for a minute at most."""
        with self._failing_once():
            for run in self._runs.values():
                run.finish()

    def _log(self, seed: int, step: int, numbers: Mapping[str, float]) -> None:
        if not self._has_failed:
            with self._failing_once():
                # Not as the package's own step: an evaluation arrives later than numbers of training after it.
                self._run_of(seed).log({STEP: step, **numbers})

    def _run_of(self, seed: int) -> Any:
        if seed not in self._runs:
            config = {**dataclasses.asdict(self._config), "seed": seed}
            run = self._wandb.init(
                project=self._project,
                group=self._group,
                name=f"{self._out.name} seed {seed}",
                id=f"{self._group}-{seed}",
                dir=str(self._out),
                config=config,
                resume="allow",
                reinit="create_new",
                settings=self._wandb.Settings(console="off", silent=True, finish_timeout=SECONDS_TO_FINISH),
            )
            run.define_metric("*", step_metric=STEP)
            self._runs[seed] = run
        return self._runs[seed]

    @contextmanager
    def _failing_once(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the package raises
            self._has_failed = True
            raise DiasterError(
                f"Weights & Biases has failed ({one_line(error)[:200]}); the run goes on without it."
            ) from None

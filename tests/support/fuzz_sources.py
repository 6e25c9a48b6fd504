"""What `make fuzz` damages: small runs, recordings and a sweep, all of them whole, and the same bytes each time."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

from made_runs import make_maze_rollouts, make_rollouts, make_run, make_run_with_nets
from small_runs import StoppingAt, small

from diaster.config import build_config, write_toml
from diaster.errors import Stopped
from diaster.media.recording import record_rollouts
from diaster.run import load
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.checkpoint.manifest import manifest_bytes, manifest_name, read_manifest
from diaster.rundir.records import CONFIG, DONE, METADATA
from diaster.sweep.conduct import make_plan
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training

STEPS, CHUNK = 240, 40
RUNS = {
    "rd": {"method": {"name": "rd", "hidden": 4, "batch_episodes": 4}, "agent": {"name": "ddpg", "hidden": 4}},
    "rudder": {
        "method": {"name": "rudder", "hidden": 4, "relabel_every": 1, "updates": 1, "every": 40},
        "agent": {"name": "td3", "hidden": 4},
    },
}
SWEEP = """\
record_episodes = 2

[settings]
seeds = [0, 4]
steps = 2000
horizon = 10
imports = ["toy_envs"]
evaluation = { every = 1000, episodes = 2 }

[axes]
env = ["Toy-v0", "ToyDiscrete-v0"]
method = ["diaster", "rrd", "uniform"]
"agent.hidden" = [4, 8]

[env."ToyDiscrete-v0"]
agent = "dqn"

[method.rrd]
"method.subset" = 4
"""
BLOCKS = """\
settings.env = "Toy-v0"
settings.horizon = 10
settings.steps = 1_000
settings.imports = ["toy_envs"]

[[axes]]
method = "diaster"
"method.n_cuts" = [0, 1, 5]
"method.head" = ["final", "cumulative"]

[[axes]]
method = ["dense", "ircr"]
"replay.capacity" = [5000]
preset = "paper"
"""


class Sources(NamedTuple):
    """Folders to copy from."""

    cut_off: list[Path]  # runs with checkpoints
    complete: list[Path]  # the same runs, with recordings
    outside: Path  # a run with everything that a run can have, for links to lead to
    recorded: list[Path]  # runs with made-up recordings: on a line, in a maze
    sweep: Path  # the results of a sweep: two cells are there, one of them complete
    grids: list[str]


def make_sources(folder: Path) -> Sources:
    """Train and write all of it into a new folder."""
    folder.mkdir()
    for name, settings in RUNS.items():
        config = build_config(
            **small(env="Toy-v0", seeds=2, steps=STEPS, chunk_steps=CHUNK, checkpoint_every=CHUNK, **settings)
        )
        run = folder / f"{name}-cut-off"
        with contextlib.suppress(Stopped):
            run_training(config, run, StoppingAt(STEPS - 2 * CHUNK))
        whole = folder / f"{name}-complete"
        shutil.copytree(run, whole)
        resume_training(whole, Silent())
        record_rollouts(load(whole), 2)
        for path in (run, whole):
            fix_what_the_clock_has_written(path)
    line = make_run_with_nets(folder / "line", "ToyRunner-v0")
    make_rollouts(line, (10, 8, 10), seed=[3, 3, 8])
    maze = make_run(folder / "maze", {0: [1.0, 2.0]}, env="PointMaze_UMaze-v3", method={"segments": "all"})
    make_maze_rollouts(maze, 1.0, episodes=4, length=30)
    make_sweep(folder / "sweep", folder / "rd-complete")
    shutil.copytree(folder / "rd-complete", folder / "outside")
    shutil.copytree(folder / "rd-cut-off" / DIRECTORY, folder / "outside" / DIRECTORY, dirs_exist_ok=True)
    for name in ("tensorboard", "logs"):
        (folder / "outside" / name).mkdir()
    return find_sources(folder)


def find_sources(folder: Path) -> Sources:
    """What `make_sources` has written."""
    cut_off, complete = ([folder / f"{name}-{state}" for name in RUNS] for state in ("cut-off", "complete"))
    return Sources(
        cut_off, complete, folder / "outside", [folder / "line", folder / "maze"], folder / "sweep", [SWEEP, BLOCKS]
    )


def make_sweep(path: Path, complete: Path) -> None:
    """The results of the first grid: one cell is complete, one has begun."""
    path.mkdir()
    (path / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    plan = make_plan(path / "sweep.toml", path)
    for number, cell in enumerate(plan.cells[:2]):
        shutil.copytree(complete, path / cell.name)
        (path / cell.name / CONFIG).write_text(write_toml(cell.config), encoding="utf-8")
        if number == 1:
            (path / cell.name / DONE).unlink()
    rows = {cell.name: {"state": "done", "step": 2000, "recorded": 2} for cell in plan.cells[:2]}
    (path / "sweep.json").write_text(json.dumps({"cells": rows}), encoding="utf-8")
    (path / "logs").mkdir()
    (path / "logs" / f"{plan.cells[0].name}.txt").write_text("warning: it is slow\n", encoding="utf-8")


def fix_what_the_clock_has_written(run: Path) -> None:
    """A case has to be the same each time, so times are; the folder that a run was made in is left out too."""
    metadata = json.loads((run / METADATA).read_text(encoding="utf-8"))
    kept = {name: metadata[name] for name in ("versions", "device", "platform", "cores")}
    (run / METADATA).write_text(json.dumps({**kept, "wall_seconds": 1.5}, indent=2), encoding="utf-8")
    directory = run / DIRECTORY
    for number in generations(directory):
        manifest = read_manifest(directory, number)
        facts = {**manifest.facts, "seconds": 1.5, "first_learning": 0.5}
        (directory / manifest_name(number)).write_bytes(manifest_bytes(manifest._replace(facts=facts)))

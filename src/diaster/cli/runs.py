"""evaluate, record and video: a trained run acts once more."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diaster.cli.parsing import Imports, parse
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once


@dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate the policies of a run on fresh episodes."""

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    episodes: int = 10
    """Deterministic episodes per seed."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Only this seed."""
    best: bool = False
    """The policy of each seed's best evaluation, not the last one."""
    per_episode: bool = False
    """A row for each episode: return, length, sum of the learnt rewards, and whether a time limit ended it."""
    json: bool = False
    """Print JSON."""
    imports: Imports = ()
    """A module to import first, where the run does not name the one that has its environment."""
    trust: bool = False
    """Import the modules that the run names, even if it was not made here by you."""


def evaluate(argv: Sequence[str]) -> None:
    """diaster evaluate"""
    arguments = parse("evaluate", argv, EvaluateArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster evaluate runs/hopper.")
    with leaving_at_once():
        from diaster.envs.source import import_modules
        from diaster.run import load

    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):  # an environment may print what it likes
        import_modules(arguments.imports)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        run = load(arguments.run, trust=arguments.trust)
        which: Literal["last", "best"] = "best" if arguments.best else "last"
        if arguments.per_episode:
            table = run.evaluate(arguments.episodes, arguments.seed, which, per_episode=True)
        else:
            results = run.evaluate(arguments.episodes, arguments.seed, which)
    if arguments.per_episode:
        print(json.dumps(table.rows(), indent=2) if arguments.json else table)
        return
    if arguments.json:
        # A number without a meaning is null: NaN is not JSON.
        rows = {
            str(seed): {k: v if v == v else None for k, v in {**a._asdict(), **b._asdict()}.items()}
            for seed, (a, b) in results.items()
        }
        print(json.dumps(rows, indent=2))
        return
    from diaster.analysis.diagnostics import HARDLY, Diagnostics
    from diaster.training.progress import number, outcome, score

    columns = ("return_mean", "return_std", "return_min", "return_max", "length_mean", *Diagnostics._fields)
    heads = ("return", "± std", "min", "max", "length", "fit_r2", "corr.", "gap", "within", "slope")
    print(f"{'seed':>5} " + " ".join(f"{head:>9}" for head in heads))
    for seed, (returns, fit) in results.items():
        values = {**returns._asdict(), **fit._asdict()}
        written = dict.fromkeys(Diagnostics._fields, partial(number, digits=2)) | {
            "fit_r2": score,
            "length_mean": number,
        }
        cells = [written.get(name, outcome)(values[name]) for name in columns]
        print(f"{seed:>5} " + " ".join(f"{cell:>9}" for cell in cells))
    if len(results) > 1:
        means = [returns.return_mean for returns, _ in results.values()]
        print(f"{'mean':>5} {outcome(sum(means) / len(means)):>9}")
    if any(fit.fit_r2 != fit.fit_r2 for _, fit in results.values()):
        print(
            f"No fit and no gap where returns hardly vary (± at most {100 * HARDLY:g} % of their root mean square): "
            "there is nothing to explain."
        )


@dataclass(frozen=True)
class RecordArguments:
    """Record episodes of a trained run into its directory, for the figures that show single steps."""

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    episodes: int = 10
    """Episodes of each seed's policy, and about as many of a spread of behaviours between it and random actions."""
    imports: Imports = ()
    """A module to import first, where the run does not name the one that has its environment."""
    trust: bool = False
    """Import the modules that the run names, even if it was not made here by you."""


def record(argv: Sequence[str]) -> None:
    """diaster record"""
    arguments = parse("record", argv, RecordArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster record runs/hopper.")
    with leaving_at_once():
        from diaster.envs.source import import_modules
        from diaster.media.recording import check_number, record_rollouts
        from diaster.run import load
        from diaster.rundir.recordings import ROLLOUTS

    import_modules(arguments.imports)
    check_number(arguments.episodes)
    record_rollouts(load(arguments.run, trust=arguments.trust), arguments.episodes)
    print(f"recorded: {arguments.run / ROLLOUTS}")


@dataclass(frozen=True)
class VideoArguments:
    """Film the policy of a run at work, with the learnt reward and its running sum below the picture."""

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("run.mp4")
    """Film to write: .mp4 or .gif."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The seed whose policy acts; by default the first."""
    imports: Imports = ()
    """A module to import first, where the run does not name the one that has its environment."""
    trust: bool = False
    """Import the modules that the run names, even if it was not made here by you."""


def video(argv: Sequence[str]) -> None:
    """diaster video"""
    arguments = parse("video", argv, VideoArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster video runs/hopper -o hopper.mp4.")
    with leaving_at_once():
        from diaster.envs.source import import_modules
        from diaster.media.video import check_film, write_video
        from diaster.run import load
        from diaster.training.progress import number

    import_modules(arguments.imports)
    check_film(arguments.out)
    episode = write_video(load(arguments.run, trust=arguments.trust), arguments.out, arguments.seed).episode.episode
    print(f"wrote {arguments.out} ({episode.length} steps, return {number(episode.episode_return)})")

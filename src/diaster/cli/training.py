"""train, resume, demo and bench: commands that learn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from diaster.cli.parsing import Imports, parse, value_of
from diaster.config import (
    AGENTS,
    METHODS,
    RunConfig,
    build_config,
    refuse_exact_sum,
    run_config_type,
    take_env_kwargs,
)
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once

if TYPE_CHECKING:
    from diaster.run import Run

Arguments = TypeVar("Arguments", bound="WithSettings")
EXACT_SUM = "--method.exact-sum", "--method.exact_sum"


@dataclass(frozen=True)
class WithSettings:
    """Arguments of a command that takes all settings of a run."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with settings (a run's config.toml, say); flags override it."""

    @property
    def run_config(self) -> RunConfig:
        """The settings of the run, as every other module knows them."""
        return RunConfig(**_fields(self.run))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class TrainArguments(WithSettings):
    """Train a policy from one number per episode."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Directory for the run; by default a new one below runs/."""
    tensorboard: bool = False
    """Also write event files for TensorBoard into the run directory."""
    wandb: Annotated[str, tyro.conf.arg(metavar="PROJECT")] = ""
    """Also log to this project of Weights & Biases (extra wandb); WANDB_MODE=offline keeps it in the run directory."""
    quiet: bool = False
    """Say nothing but warnings and errors."""


def train(argv: Sequence[str]) -> None:
    """diaster train"""
    with leaving_at_once():
        arguments = _parse_with_settings("train", argv, TrainArguments)

        from diaster.training.progress import Silent, make_reporter
        from diaster.training.train import run_training

    reporter = Silent() if arguments.quiet else make_reporter()
    run = run_training(arguments.run_config, arguments.out, reporter, arguments.tensorboard, arguments.wandb)
    if not arguments.quiet:
        _say_done(run)


def _parse_with_settings(command: str, argv: Sequence[str], base: type[Arguments], **own: Any) -> Arguments:
    """The arguments of a command that takes all settings of a run; `own` are its defaults where no file is given.

    Which flags there are depends on the method and the agent, which a preset may choose too, and their defaults on
    file, preset and environment: all of these have to be known first.
    """
    argv, env_kwargs = take_env_kwargs(argv)
    settings = [item for item in argv if item not in ("-h", "--help")]  # help shows the defaults that will apply
    file = value_of("--config", argv)
    chosen = {name: value for name in ("method", "agent") if (value := value_of(f"--{name}", argv))}
    blank = build_config(value_of("--preset", argv), Path(file) if file else None, **chosen)
    blank = dataclasses.replace(blank, env="", preset="")
    if any(item.startswith(EXACT_SUM) for item in argv):
        refuse_exact_sum(blank.method.name)
    _refuse_flags_of_others(argv, "method", blank.method.name, METHODS)
    _refuse_flags_of_others(argv, "agent", blank.agent.name, AGENTS)
    first = parse(command, settings, _arguments_of(base, blank)).run_config
    own = {**({} if file else own), **({"env": first.env} if first.env else {})}
    named = {**own, **chosen, "env_kwargs": env_kwargs}
    defaults = build_config(first.preset or None, Path(file) if file else None, **named)
    return parse(command, argv, _arguments_of(base, defaults))


def _refuse_flags_of_others(argv: Sequence[str], what: str, name: str, known: dict[str, Any]) -> None:
    """Flags that another method or agent has, and this one has not."""
    fields = {other: {field.name for field in dataclasses.fields(kind.settings)} for other, kind in known.items()}
    for flag in (item.partition("=")[0] for item in argv if item.startswith(f"--{what}.")):
        setting = flag.removeprefix(f"--{what}.").removeprefix("no-").replace("-", "_")
        others = [other for other in known if setting in fields[other]]
        if others and name not in others:
            raise DiasterError(
                f"{flag} is a setting of {' and '.join(others)}, and the {what} is '{name}'; "
                f"add --{what} {others[0]}, or leave it out."
            )


def _arguments_of(base: type[Arguments], run: RunConfig) -> Arguments:
    """Arguments with the settings of one method and one agent, and these as defaults."""
    kind = run_config_type(run.method.name, run.agent.name)
    field = ("run", Annotated[kind, tyro.conf.arg(name="")], kind(**_fields(run)))
    made = dataclasses.make_dataclass(base.__name__, [field], bases=(base,), frozen=True)
    made.__doc__ = base.__doc__
    arguments: Arguments = made()
    return arguments


def _fields(config: RunConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _say_done(run: Run) -> None:
    from diaster.rundir.files import typed

    if run.stopped:
        print(f"stopped early: {run.stopped}")
    shown = typed(run.path)
    print(f"done: {shown} (diaster evaluate {shown}; diaster plot {shown} -o curve.png)")


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was cut off, from its last checkpoint; it ends as if that had never happened.

    With --steps a run is made longer, also one that is complete, and ends as if it had been so from the start.
    """

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Environment steps per seed in all; by default as many as the run was begun with."""
    quiet: bool = False
    """Print nothing but warnings."""
    imports: Imports = ()
    """A module to import first, where the run does not name the one that has its environment."""
    trust: bool = False
    """Import the modules that the run names, even if it was not made here by you."""


def resume(argv: Sequence[str]) -> None:
    """diaster resume"""
    arguments = parse("resume", argv, ResumeArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster resume runs/hopper.")
    with leaving_at_once():
        from diaster.envs.source import import_modules
        from diaster.training.progress import Silent, make_reporter
        from diaster.training.train import resume_training

    import_modules(arguments.imports)
    reporter = Silent() if arguments.quiet else make_reporter()
    run = resume_training(arguments.run, reporter, arguments.trust, arguments.steps)
    if not arguments.quiet:
        _say_done(run)


@dataclass(frozen=True)
class DemoArguments:
    """Train InvertedPendulum-v5 from episodic feedback in two to four minutes and show what was learnt."""

    steps: int = 20_000
    """Environment steps."""
    seed: int = 0
    """Seed of the run."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Directory for the run; by default a new one below runs/."""


def demo(argv: Sequence[str]) -> None:
    """diaster demo"""
    arguments = parse("demo", argv, DemoArguments())
    with leaving_at_once():
        from diaster.analysis.plots import learning_curve, plot_learning_curves, terminal_curve
        from diaster.rundir.writer import free_directory
        from diaster.training.progress import make_reporter, number, score
        from diaster.training.train import run_training

    settings = {"every": max(1, arguments.steps // 20), "episodes": 3}
    config = build_config(
        env="InvertedPendulum-v5", steps=arguments.steps, seeds=(arguments.seed,), evaluation=settings
    )
    out = arguments.out or free_directory(Path("runs"), "demo")
    run = run_training(config, out, make_reporter())
    picture = out / "curve.png"
    plot_learning_curves([out], picture)
    curve = learning_curve(out)
    returns, _ = run.evaluate(episodes=10)[arguments.seed]
    fit = float(run.progress["fit_r2"][-1])
    explained = f"The learnt step rewards of held-out episodes add up to their returns with R² = {score(fit)}"
    if math.isnan(fit):
        explained = "The returns of held-out episodes hardly vary, so that there is nothing left to explain"
    print(f"\nreturn of an episode ({config.env}, learnt from one number per episode)\n")
    print(terminal_curve(curve))
    print(
        f"\nThe policy was told one number at the end of each episode and never the reward of a step; after "
        f"{arguments.steps:,} steps it keeps the pendulum up for {number(returns.return_mean, 0)} of 1000 "
        f"(mean of 10 fresh episodes; the first evaluation had {number(float(curve.mean[0]), 0)}).\n"
        f"{explained}; the curve is in {picture}, all numbers in {out / 'progress.csv'}.\n"
        f"Next, try 'diaster train Hopper-v5 --steps 100000', your own environment with "
        f"'diaster train YourEnv-v0 --import your_package', or 'diaster evaluate {out}'."
    )


@dataclass(frozen=True)
class BenchArguments(WithSettings):
    """Measure how fast this machine learns: what an update takes, what share is decomposition, and the whole loop.

    The settings are those of a run of 300,000 steps, of which half a minute is trained.
    """

    length: int = 1000
    """Steps of the episodes that updates are timed on; the whole loop has episodes of its own."""
    loop: bool = True
    """Train for half a minute as well, environments and all."""


def bench(argv: Sequence[str]) -> None:
    """diaster bench"""
    with leaving_at_once():
        arguments = _parse_with_settings("bench", argv, BenchArguments, env="Hopper-v5", steps=300_000)
        if arguments.length < 2:
            raise DiasterError(f"--length {arguments.length} is too short for an episode; give at least 2.")
        from diaster.training.bench import LOOP_SECONDS
        from diaster.training.bench import bench as measure

    rows = measure(arguments.run_config, arguments.length, LOOP_SECONDS if arguments.loop else 0.0)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")

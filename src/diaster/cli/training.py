"""train, resume, demo and bench: commands that learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from diaster.cli.parsing import parse, value_of
from diaster.config import RunConfig, build_config, run_config_type
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once


@dataclass(frozen=True)
class TrainArguments:
    """Train a policy from one number per episode."""

    out: Path | None = None
    """Directory for the run; by default a new one below runs/."""
    config: Path | None = None
    """TOML file with settings (a run's config.toml, say); flags override it."""
    tensorboard: bool = False
    """Also write event files for TensorBoard into the run directory."""
    quiet: bool = False
    """Say nothing but warnings and errors."""

    @property
    def run_config(self) -> RunConfig:
        """The settings of the run, as every other module knows them."""
        return RunConfig(**_fields(self.run))  # type: ignore[attr-defined]


def train(argv: Sequence[str]) -> None:
    """diaster train"""
    with leaving_at_once():
        # Which flags there are depends on the method and the agent, and their defaults on file, preset and
        # environment: all of these have to be known first.
        settings = [item for item in argv if item not in ("-h", "--help")]  # help shows the defaults that will apply
        file = value_of("--config", argv)
        chosen = {name: value for name in ("method", "agent") if (value := value_of(f"--{name}", argv))}
        named = build_config(None, Path(file) if file else None, **chosen)
        blank = dataclasses.replace(named, env="", preset="")
        first = parse("train", settings, _train_arguments(blank)).run_config
        env = {"env": first.env} if first.env else {}
        defaults = build_config(first.preset or None, Path(file) if file else None, **chosen, **env)
        arguments = parse("train", argv, _train_arguments(defaults))

        from diaster.training.progress import Silent, make_reporter
        from diaster.training.train import run_training

    reporter = Silent() if arguments.quiet else make_reporter()
    run = run_training(arguments.run_config, arguments.out, reporter, arguments.tensorboard)
    if not arguments.quiet:
        _say_done(run.path)


def _train_arguments(run: RunConfig) -> TrainArguments:
    """The arguments of `train` with the settings of one method and one agent, and these as defaults."""
    kind = run_config_type(run.method.name, run.agent.name)
    field = ("run", Annotated[kind, tyro.conf.arg(name="")], kind(**_fields(run)))
    made = dataclasses.make_dataclass("TrainArguments", [field], bases=(TrainArguments,), frozen=True)
    made.__doc__ = TrainArguments.__doc__
    arguments: TrainArguments = made()
    return arguments


def _fields(config: RunConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _say_done(path: Path) -> None:
    from diaster.rundir.files import typed

    shown = typed(path)
    print(f"done: {shown} (diaster evaluate {shown}; diaster plot {shown} -o curve.png)")


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was cut off, from its last checkpoint; it ends as if that had never happened."""

    run: tyro.conf.Positional[Path | None] = None
    """Run directory."""
    quiet: bool = False
    """Print nothing but warnings."""
    trust: bool = False
    """Import the modules that the run names, even if it was not made here by you."""


def resume(argv: Sequence[str]) -> None:
    """diaster resume"""
    arguments = parse("resume", argv, ResumeArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster resume runs/hopper.")
    with leaving_at_once():
        from diaster.training.progress import Silent, make_reporter
        from diaster.training.train import resume_training

    run = resume_training(arguments.run, Silent() if arguments.quiet else make_reporter(), arguments.trust)
    if not arguments.quiet:
        _say_done(run.path)


@dataclass(frozen=True)
class DemoArguments:
    """Train InvertedPendulum-v5 from episodic feedback in about two minutes and show what was learnt."""

    steps: int = 20_000
    """Environment steps."""
    seed: int = 0
    """Seed of the run."""
    out: Path | None = None
    """Directory for the run; by default a new one below runs/."""


def demo(argv: Sequence[str]) -> None:
    """diaster demo"""
    arguments = parse("demo", argv, DemoArguments())
    with leaving_at_once():
        from diaster.analysis.plots import learning_curve, plot_learning_curves, terminal_curve
        from diaster.rundir.writer import free_directory
        from diaster.training.progress import make_reporter, number
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
    print(f"\nreturn of an episode ({config.env}, learnt from one number per episode)\n")
    print(terminal_curve(curve))
    print(
        f"\nThe policy was told one number at the end of each episode and never the reward of a step; after "
        f"{arguments.steps:,} steps it keeps the pendulum up for {number(returns.return_mean, 0)} of 1000 "
        f"(mean of 10 fresh episodes; the first evaluation had {number(float(curve.mean[0]), 0)}).\n"
        f"The learnt step rewards of held-out episodes add up to their returns with R² = "
        f"{number(float(run.progress['fit_r2'][-1]), 2)}; the curve is in {picture}, all numbers in "
        f"{out / 'progress.csv'}.\n"
        f"Next, try 'diaster train Hopper-v5 --steps 100000', your own environment with "
        f"'diaster train YourEnv-v0 --import your_package', or 'diaster evaluate {out}'."
    )


@dataclass(frozen=True)
class BenchArguments:
    """Measure how fast this machine learns: what an update takes, what share is decomposition, and the whole loop."""

    env: tyro.conf.Positional[str] = "Hopper-v5"
    """Gymnasium id."""
    seeds: int = 1
    """How many seeds train together."""
    envs: int = 1
    """Environments that share the steps of each seed."""
    method: str = "diaster"
    """How returns are decomposed."""
    agent: str = "sac"
    """What learns from the step rewards."""
    preset: str = "default"
    """default or paper."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where learning runs; auto takes a GPU if there is one."""
    length: int = 1000
    """Steps of the episodes that updates are timed on; the whole loop has episodes of its own."""
    loop: bool = True
    """Train for half a minute as well, environments and all."""


def bench(argv: Sequence[str]) -> None:
    """diaster bench"""
    arguments = parse("bench", argv, BenchArguments())
    if arguments.length < 2:
        raise DiasterError(f"--length {arguments.length} is too short for an episode; give at least 2.")
    settings = {name: getattr(arguments, name) for name in ("env", "seeds", "envs", "method", "agent", "device")}
    config = build_config(arguments.preset, steps=300_000, **settings)
    with leaving_at_once():
        from diaster.training.bench import LOOP_SECONDS
        from diaster.training.bench import bench as measure

    rows = measure(config, arguments.length, LOOP_SECONDS if arguments.loop else 0.0)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")

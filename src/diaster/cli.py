"""diaster train | evaluate | plot | list | demo. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

import diaster
from diaster.config import AGENT_HELP, METHOD_HELP, PAPER_TASKS, PRESET_HELP, RunConfig, build_config, run_config_type
from diaster.errors import DiasterError, Stopped, unknown

USAGE_ERROR, INTERRUPTED = 2, 130
Arguments = TypeVar("Arguments")


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


def _train_arguments(run: RunConfig) -> TrainArguments:
    """The arguments of `train` with the settings of one method and one learner, and these as defaults."""
    kind = run_config_type(run.method, run.agent)
    field = ("run", Annotated[kind, tyro.conf.arg(name="")], kind(**_fields(run)))
    made = dataclasses.make_dataclass("TrainArguments", [field], bases=(TrainArguments,), frozen=True)
    made.__doc__ = TrainArguments.__doc__
    arguments: TrainArguments = made()
    return arguments


def _fields(config: RunConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


@dataclass(frozen=True)
class ResumeArguments:
    """Go on with a run that was cut off, from its last checkpoint; it ends as if that had never happened."""

    run: tyro.conf.Positional[Path | None] = None
    """Run directory."""
    quiet: bool = False
    """Print nothing but warnings."""


@dataclass(frozen=True)
class EvaluateArguments:
    """Evaluate the policies of a run on fresh episodes."""

    run: tyro.conf.Positional[Path | None] = None
    """Run directory."""
    episodes: int = 10
    """Deterministic episodes per seed."""
    seed: int | None = None
    """Only this seed."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class PlotArguments:
    """Draw the learning curves of one or several runs of an environment."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curve.png")
    """Picture to write: .png, .svg or .pdf."""


@dataclass(frozen=True)
class ListArguments:
    """Say what there is: methods, agents, presets, the paper's tasks, registered environments."""

    what: tyro.conf.Positional[str] = "all"
    """all, methods, agents, presets, tasks or envs."""
    imports: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE")]] = ()
    """A module to import first, for the environments it registers."""


@dataclass(frozen=True)
class DemoArguments:
    """Train InvertedPendulum-v5 from episodic feedback in about two minutes and show what was learnt."""

    steps: int = 20_000
    """Environment steps."""
    seed: int = 0
    """Seed of the run."""
    out: Path | None = None
    """Directory for the run; by default a new one below runs/."""


def train(argv: Sequence[str]) -> None:
    """diaster train"""
    # Which flags there are depends on the method and the learner, and their defaults on file, preset and
    # environment: all of these have to be known first.
    settings = [item for item in argv if item not in ("-h", "--help")]  # help shows the defaults that will apply
    file = _value_of("--config", argv)
    chosen = {name: value for name in ("method", "agent") if (value := _value_of(f"--{name}", argv))}
    named = build_config(None, Path(file) if file else None, **chosen)
    blank = dataclasses.replace(named, env="", preset="")
    first = _parse("train", settings, _train_arguments(blank)).run_config
    env = {"env": first.env} if first.env else {}
    defaults = build_config(first.preset or None, Path(file) if file else None, **chosen, **env)
    arguments = _parse("train", argv, _train_arguments(defaults))

    from diaster.report import Silent, make_reporter
    from diaster.training import run_training

    reporter = Silent() if arguments.quiet else make_reporter()
    run = run_training(arguments.run_config, arguments.out, reporter, arguments.tensorboard)
    if not arguments.quiet:
        _say_done(run.path)


def _say_done(path: Path) -> None:
    print(f"done: {path} (diaster evaluate {path}; diaster plot {path} -o curve.png)")


def resume(argv: Sequence[str]) -> None:
    """diaster resume"""
    arguments = _parse("resume", argv, ResumeArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster resume runs/hopper.")
    from diaster.report import Silent, make_reporter
    from diaster.training import resume_training

    run = resume_training(arguments.run, Silent() if arguments.quiet else make_reporter())
    if not arguments.quiet:
        _say_done(run.path)


def evaluate(argv: Sequence[str]) -> None:
    """diaster evaluate"""
    arguments = _parse("evaluate", argv, EvaluateArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster evaluate runs/hopper.")
    from diaster.run import load

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        results = load(arguments.run).evaluate(arguments.episodes, arguments.seed)
    if arguments.json:
        # A number without a meaning is null: NaN is not JSON.
        rows = {
            str(seed): {k: v if v == v else None for k, v in {**a._asdict(), **b._asdict()}.items()}
            for seed, (a, b) in results.items()
        }
        print(json.dumps(rows, indent=2))
        return
    from diaster.evaluate import Diagnostics
    from diaster.report import number, short

    columns = ("return_mean", "return_std", "return_min", "return_max", "length_mean", *Diagnostics._fields)
    heads = ("return", "± std", "min", "max", "length", "fit_r2", "corr.", "gap")
    print(f"{'seed':>5} " + " ".join(f"{head:>9}" for head in heads))
    for seed, (returns, fit) in results.items():
        values = {**returns._asdict(), **fit._asdict()}
        cells = [short(values[name]) if name in Diagnostics._fields else number(values[name]) for name in columns]
        print(f"{seed:>5} " + " ".join(f"{cell:>9}" for cell in cells))
    if len(results) > 1:
        means = [returns.return_mean for returns, _ in results.values()]
        print(f"{'mean':>5} {number(sum(means) / len(means)):>9}")


def plot(argv: Sequence[str]) -> None:
    """diaster plot"""
    arguments = _parse("plot", argv, PlotArguments())
    if not arguments.runs:
        raise DiasterError("no run directory was given; e.g. diaster plot runs/hopper -o hopper.png.")
    from diaster.plots import plot_learning_curves

    plot_learning_curves(list(arguments.runs), arguments.out)
    print(f"wrote {arguments.out}")


def list_(argv: Sequence[str]) -> None:
    """diaster list"""
    arguments = _parse("list", argv, ListArguments())
    tables: dict[str, Callable[[], dict[str, str]]] = {
        "methods": lambda: METHOD_HELP,
        "agents": lambda: AGENT_HELP,
        "presets": lambda: PRESET_HELP,
        "tasks": lambda: {name: f"{task.steps:,} steps in the paper's figures" for name, task in PAPER_TASKS.items()},
        "envs": lambda: _registered_envs(arguments.imports),
    }
    if arguments.what not in ("all", *tables):
        raise unknown("thing to list", arguments.what, ("all", *tables))
    for name in tables if arguments.what == "all" else (arguments.what,):
        if arguments.what == "all":
            if name == "envs":
                continue  # hundreds; only when asked for
            print(f"{name}:")
        for entry, line in tables[name]().items():
            print(f"  {entry:<22} {line}" if line else f"  {entry}")
    if arguments.what == "all":
        print(
            "environments: any Gymnasium id with vector observations and Box or Discrete actions; "
            "'diaster list envs' shows them"
        )


def demo(argv: Sequence[str]) -> None:
    """diaster demo"""
    arguments = _parse("demo", argv, DemoArguments())
    from diaster.plots import learning_curve, plot_learning_curves, terminal_curve
    from diaster.records import free_directory
    from diaster.report import make_reporter, number
    from diaster.training import run_training

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


def _registered_envs(imports: Sequence[str]) -> dict[str, str]:
    import gymnasium as gym

    from diaster.envs import import_modules, register_robotics

    import_modules(imports)
    with contextlib.suppress(ImportError):
        register_robotics()
    return dict.fromkeys(sorted(gym.registry), "")


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "train": (train, "train a policy from one number per episode"),
    "resume": (resume, "go on with a run that was cut off"),
    "evaluate": (evaluate, "evaluate the policies of a run on fresh episodes"),
    "plot": (plot, "draw learning curves"),
    "list": (list_, "methods, agents, presets, tasks, environments"),
    "demo": (demo, "two minutes on InvertedPendulum-v5"),
}


def help_text() -> str:
    """The overview of all commands."""
    lines = [f"  {name:<10} {line}" for name, (_, line) in COMMANDS.items()]
    return (
        "usage: diaster COMMAND [options]\n\n"
        "Reinforcement learning from one number per episode.\n\n"
        + "\n".join(lines)
        + "\n\n'diaster COMMAND --help' explains a command and all of its settings."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(help_text(), flush=True)
        elif argv[0] == "--version":
            print(f"diaster {diaster.__version__}")
        elif argv[0] not in COMMANDS:
            raise unknown("command", argv[0], COMMANDS)
        else:
            COMMANDS[argv[0]][0](argv[1:])
    except DiasterError as error:
        print(f"diaster: {error}", file=sys.stderr)
        return USAGE_ERROR
    except Stopped as stop:
        print(f"diaster: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except KeyboardInterrupt:
        print(
            "diaster: interrupted; what was recorded so far, if anything, stays in the run directory.", file=sys.stderr
        )
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, say) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    """What a flag is given on the command line, before the line can be parsed; the last one counts."""
    found = None
    for item, following in zip_longest(argv, argv[1:]):
        if item == flag and following is not None:
            found = following
        elif item.startswith(f"{flag}="):
            found = item.removeprefix(f"{flag}=")
    return found


def _parse(command: str, argv: Sequence[str], default: Arguments) -> Arguments:
    """The typed arguments. What the parser complains of becomes a sentence like every other."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(type(default), prog=f"diaster {command}", args=list(argv), default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise DiasterError(_sentence(complaint.getvalue(), command)) from None


def _sentence(box: str, command: str) -> str:
    """The first paragraph of the parser's framed message, and the nearest option where it names one."""
    lines = [line.strip(" │") for line in box.splitlines() if line.strip() and line[0] not in "╭╰"]
    rules = [n for n, line in enumerate(lines) if not line.strip("─-")]
    if "╭" not in box:  # where the terminal has no frames, a title and a rule come first
        lines, rules = lines[2:], [n - 2 for n in rules[1:]]
    end = rules[0] if rules else len(lines)
    text = " ".join(lines[:end]).removeprefix("Error parsing ").rstrip(".")
    not_a_number = re.fullmatch(r"(\S+): (?:invalid literal for int\(\)|could not convert string).*('.*')", text)
    if not_a_number:
        text = f"{not_a_number[1]} is {not_a_number[2]}, which is no number it can take"
    near = next((line.split()[0] for line in lines[end:] if line.startswith("--") and line.strip("-")), "").rstrip(",")
    hint = f" Did you mean {near}?" if near and "Perhaps" in box else ""
    return f"{text[:1].lower() + text[1:]}.{hint} 'diaster {command} --help' lists what is allowed."

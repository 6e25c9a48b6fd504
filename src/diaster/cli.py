"""The command line: what a person types, and what is printed. Bad input is one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
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
from typing import Annotated, Any, Literal, TypeVar

import tyro

import diaster
from diaster.config import AGENTS, METHODS, PAPER_TASKS, PRESET_HELP, RunConfig, build_config, run_config_type
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
    """The arguments of `train` with the settings of one method and one agent, and these as defaults."""
    kind = run_config_type(run.method.name, run.agent.name)
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
class SweepArguments:
    """Train every cell of a grid (environment × method × settings), its seeds together.

    Finished cells are skipped and broken ones resumed: the same command goes on where it was stopped.
    """

    file: tyro.conf.Positional[Path | None] = None
    """TOML file with [axes] and [settings], see docs/sweeps.md."""
    out: Path | None = None
    """Directory for the results; by default runs/ and the name of the file."""
    dry_run: bool = False
    """Print the cells with their expected time and memory, and train nothing."""
    jobs: int | None = None
    """Cells at a time on this machine; by default as many as cores and memory allow."""
    cpus: int | None = None
    """CPU cores of each cell; by default all cores are shared out evenly, on Ray one for each cell."""
    gpus: float | None = None
    """Share of a GPU for each cell, 0 to 1; by default a whole one where there are any."""
    launcher: Literal["local", "ray"] = "local"
    """Where cells run: in processes of this machine, or as tasks of a Ray cluster (extra ray)."""
    address: str | None = None
    """With --launcher ray: address of the cluster, e.g. 10.0.0.1:6379; by default the one this machine belongs to."""
    quiet: bool = False
    """Print nothing but errors."""


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
class RecordArguments:
    """Record episodes of a trained run into its directory, for the figures that show single steps."""

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    episodes: int = 10
    """Episodes of each seed's policy, and about as many of a spread of behaviours between it and random actions."""


@dataclass(frozen=True)
class FigureArguments:
    """Draw a figure of all runs below a folder, from recorded files alone."""

    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]] = ""
    """proxy-reward, performance, heatmap, cut-points, step-reward, credit or summary."""
    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None
    """Picture to write: .png, .svg or .pdf; by default NAME.png."""
    width: float = 6.75
    """Width in inches, as printed: 6.75 is a page, 3.3 a column. Print has the same size in both."""


@dataclass(frozen=True)
class ReportArguments:
    """Write one page with the tables, curves and figures of all runs below a folder; it needs no network."""

    results: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RESULTS")]] = None
    """Folder with run directories below it, or a run directory."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Page to write: .html."""


@dataclass(frozen=True)
class VideoArguments:
    """Film the policy of a run at work, with the learnt reward and its running sum below the picture."""

    run: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="RUN")]] = None
    """Run directory."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("run.mp4")
    """Film to write: .mp4 or .gif."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The seed whose policy acts; by default the first."""


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


def train(argv: Sequence[str]) -> None:
    """diaster train"""
    # Which flags there are depends on the method and the agent, and their defaults on file, preset and
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

    from diaster.training.loop import run_training
    from diaster.training.progress import Silent, make_reporter

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
    from diaster.training.loop import resume_training
    from diaster.training.progress import Silent, make_reporter

    run = resume_training(arguments.run, Silent() if arguments.quiet else make_reporter())
    if not arguments.quiet:
        _say_done(run.path)


def sweep(argv: Sequence[str]) -> None:
    """diaster sweep"""
    arguments = _parse("sweep", argv, SweepArguments())
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
    from diaster.sweep.conduct import (
        conduct,
        counted,
        describe_end,
        describe_plan,
        local_site,
        make_plan,
        refuse_failures,
    )
    from diaster.sweep.display import make_display
    from diaster.sweep.resources import Wishes, check_wishes, find_machine

    wishes = Wishes(arguments.jobs, arguments.cpus, arguments.gpus)
    check_wishes(wishes)
    plan = make_plan(arguments.file, arguments.out)
    with contextlib.ExitStack() as stack:
        if arguments.launcher == "ray":
            from diaster.sweep.launch_ray import ray_cluster

            site = stack.enter_context(ray_cluster(arguments.address, wishes, plan))
        else:
            site = local_site(find_machine(), wishes, plan)
        if arguments.dry_run:
            print(describe_plan(plan, site))
            return
        status = conduct(plan, site, make_display(arguments.quiet), ["diaster", "sweep", *argv])
    if not arguments.quiet:
        print(describe_end(status))
    refuse_failures(status)
    if not arguments.quiet:
        print(f"done: {counted(len(status.cells), 'cell')} in {plan.out}")


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
    from diaster.analysis.diagnostics import Diagnostics
    from diaster.training.progress import number, short

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
    from diaster.analysis.plots import plot_learning_curves

    plot_learning_curves(list(arguments.runs), arguments.out)
    print(f"wrote {arguments.out}")


def record(argv: Sequence[str]) -> None:
    """diaster record"""
    arguments = _parse("record", argv, RecordArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster record runs/hopper.")
    from diaster.media.recording import record_rollouts
    from diaster.rundir.recordings import ROLLOUTS

    record_rollouts(arguments.run, arguments.episodes)
    print(f"recorded: {arguments.run / ROLLOUTS}")


def figure(argv: Sequence[str]) -> None:
    """diaster figure"""
    arguments = _parse("figure", argv, FigureArguments())
    if arguments.results is None:
        raise DiasterError("a figure and a folder with runs are needed; e.g. diaster figure performance runs -o p.png.")
    from diaster.analysis.figures import write_figure

    out = arguments.out or Path(f"{arguments.name}.png")
    caption = write_figure(arguments.name, arguments.results, out, arguments.width)
    print("\n".join([f"wrote {out}", *(f"  {line}" for line in caption)]))


def report(argv: Sequence[str]) -> None:
    """diaster report"""
    arguments = _parse("report", argv, ReportArguments())
    if arguments.results is None:
        raise DiasterError("no folder with runs was given; e.g. diaster report runs -o report.html.")
    from diaster.analysis.report import write_page

    left_out = write_page(arguments.results, arguments.out)
    print("\n".join([f"wrote {arguments.out}", *(f"  {line}" for line in left_out)]))


def video(argv: Sequence[str]) -> None:
    """diaster video"""
    arguments = _parse("video", argv, VideoArguments())
    if arguments.run is None:
        raise DiasterError("no run directory was given; e.g. diaster video runs/hopper -o hopper.mp4.")
    from diaster.media.video import write_video
    from diaster.training.progress import number

    episode = write_video(arguments.run, arguments.out, arguments.seed).episode.episode
    print(f"wrote {arguments.out} ({episode.length} steps, return {number(episode.episode_return)})")


def list_(argv: Sequence[str]) -> None:
    """diaster list"""
    arguments = _parse("list", argv, ListArguments())
    tables: dict[str, Callable[[], dict[str, str]]] = {
        "methods": lambda: {name: method.help for name, method in METHODS.items()},
        "agents": lambda: {name: agent.help for name, agent in AGENTS.items()},
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
    from diaster.analysis.plots import learning_curve, plot_learning_curves, terminal_curve
    from diaster.rundir.writer import free_directory
    from diaster.training.loop import run_training
    from diaster.training.progress import make_reporter, number

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

    from diaster.envs.making import import_modules, register_robotics

    import_modules(imports)
    with contextlib.suppress(ImportError):
        register_robotics()
    return dict.fromkeys(sorted(gym.registry), "")


def bench(argv: Sequence[str]) -> None:
    """diaster bench"""
    arguments = _parse("bench", argv, BenchArguments())
    if arguments.length < 2:
        raise DiasterError(f"--length {arguments.length} is too short for an episode; give at least 2.")
    settings = {name: getattr(arguments, name) for name in ("env", "seeds", "envs", "method", "agent", "device")}
    config = build_config(arguments.preset, steps=300_000, **settings)
    from diaster.training.bench import LOOP_SECONDS
    from diaster.training.bench import bench as measure

    rows = measure(config, arguments.length, LOOP_SECONDS if arguments.loop else 0.0)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "train": (train, "train a policy from one number per episode"),
    "resume": (resume, "go on with a run that was cut off"),
    "sweep": (sweep, "train every cell of a grid, here or on a Ray cluster"),
    "evaluate": (evaluate, "evaluate the policies of a run on fresh episodes"),
    "plot": (plot, "draw learning curves"),
    "record": (record, "record episodes of a run, for figures that show single steps"),
    "figure": (figure, "draw a figure of a folder of runs"),
    "report": (report, "one page with tables, curves and figures of a folder of runs"),
    "video": (video, "film the policy of a run"),
    "list": (list_, "methods, agents, presets, tasks, environments"),
    "bench": (bench, "how fast this machine learns, in two minutes"),
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

"""fit and relabel: rewards for the steps of a data set."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from diaster.cli.parsing import parse, value_of
from diaster.config.fit import METHOD_OF_TURNS, FitConfig, build_fit, default_fit, fit_config_type
from diaster.config.methods import DEFAULT_METHOD
from diaster.errors import DiasterError
from diaster.signals import leaving_at_once

DATA = "a file (.npz, .parquet, .hdf5, .jsonl) or the name of a Minari data set"


@dataclass(frozen=True)
class FitArguments:
    """Fit rewards of single steps to a data set of episodes and their returns; half of the held-out ones judge them.

    Of a method's settings `updates`, `updates_per_episode`, `every` and `relabel_every` are a run's; here --updates
    says how many there are at most.
    """

    data: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]] = ""
    """A file (.npz, .parquet, .hdf5, .jsonl) or the name of a Minari data set."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="PATH")] = None
    """Folder for the model and its report; a new one, or an empty one."""
    skip_bad: bool = False
    """Go on without episodes in which something is wrong, and count them."""
    quiet: bool = False
    """Say nothing but warnings and errors."""


def fit(argv: Sequence[str]) -> None:
    """diaster fit"""
    with leaving_at_once():
        arguments = _parse_fit(argv)
        if not arguments.data:
            raise DiasterError(f"no data set was given; give {DATA}, e.g. diaster fit episodes.npz -o model.")
        if arguments.out is None:
            raise DiasterError("no folder for the model was given; e.g. diaster fit episodes.npz -o model.")
        from diaster.offline.faults import Faults
        from diaster.offline.fit import fit_source, has_turns
        from diaster.offline.measures import text_of
        from diaster.offline.opening import open_source
        from diaster.offline.progress import Quiet, make_progress
        from diaster.offline.saved import REPORT, check_folder
        from diaster.rundir.files import typed

    out = arguments.out
    check_folder(out)
    progress = Quiet() if arguments.quiet else make_progress()
    with closing(open_source(arguments.data, Faults(arguments.skip_bad))) as source:
        if value_of("--method", argv) is None and has_turns(source):
            arguments = _parse_fit(argv, METHOD_OF_TURNS)
        settings: FitConfig = arguments.fit  # type: ignore[attr-defined]
        model = fit_source(source, build_fit(**dataclasses.asdict(settings)), progress)
    model.save(out)
    if not arguments.quiet:
        fit = "no fit_r2"
        if math.isfinite(model.fit_r2):
            said = text_of(model.fit_r2, model.fit_r2_interval)
            fit = f"fit_r2 {said} on {model.data['measured_on']:,} held-out episodes"
        lines = [
            f"{fit}; {model.results['updates']:,} updates",
            *source.faults.summary(),
            f"wrote {typed(out)} and its {REPORT}; next: diaster relabel {shlex.quote(arguments.data)} --model "
            f"{typed(out)} -o OUT",
        ]
        print("\n".join(lines))


def _parse_fit(argv: Sequence[str], method: str = DEFAULT_METHOD) -> FitArguments:
    """The arguments, with the settings of the method that is named, or of this one."""
    defaults = default_fit(value_of("--method", argv) or method)
    kind = fit_config_type(defaults.method.name)
    field = ("fit", Annotated[kind, tyro.conf.arg(name="")], kind())
    made = dataclasses.make_dataclass("FitArguments", [field], bases=(FitArguments,), frozen=True)
    made.__doc__ = FitArguments.__doc__
    arguments: FitArguments = parse("fit", argv, made())
    return arguments


@dataclass(frozen=True)
class RelabelArguments:
    """Write a copy of a data set with learnt rewards; the reward at t belongs to (s_t, a_t).

    The data set itself is never changed. What it had as rewards stays beside them, as original_rewards.
    """

    data: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]] = ""
    """A file (.npz, .parquet, .hdf5, .jsonl) or the name of a Minari data set."""
    model: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder that 'diaster fit' has written."""
    out: Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="PATH|NAME")] = None
    """File to write, of the same format; or the name of a new Minari data set."""
    exact_sum: bool = False
    """Add to rewards an even share of what they miss of their return; turns, and models fitted with it, always do."""
    skip_bad: bool = False
    """Leave out episodes in which something is wrong, and count them."""
    quiet: bool = False
    """Say nothing but warnings and errors."""


def relabel(argv: Sequence[str]) -> None:
    """diaster relabel"""
    arguments = parse("relabel", argv, RelabelArguments())
    example = "e.g. diaster relabel episodes.npz --model model -o dense.npz"
    if not arguments.data:
        raise DiasterError(f"no data set was given; give {DATA}, {example}.")
    if arguments.model is None:
        raise DiasterError(f"no model was given; fit one with 'diaster fit' and name its folder, {example}.")
    if arguments.out is None:
        raise DiasterError(f"no place for the result was given; {example}.")
    with leaving_at_once():
        from diaster.learning.machine import use_compilation_cache
        from diaster.offline.decomposition import Decomposition
        from diaster.offline.faults import Faults
        from diaster.offline.opening import check_out, open_source, write
        from diaster.offline.progress import Quiet, make_progress

    use_compilation_cache()
    progress = Quiet() if arguments.quiet else make_progress()
    model = Decomposition.load(arguments.model)
    with closing(open_source(arguments.data, Faults(arguments.skip_bad))) as source:
        check_out(source, arguments.out)
        relabelled = model.relabelled(source, arguments.exact_sum or None, progress)
        write(source, arguments.out, relabelled)
    if not arguments.quiet:
        lines = [
            *source.faults.summary(),
            f"wrote {arguments.out}: {len(relabelled.rewards):,} rewards of {len(relabelled.lengths):,} episodes; the "
            f"reward at t belongs to {'(s_t, a_t)' if model.form.obs_dim else 'turn t'}",
        ]
        print("\n".join(lines))

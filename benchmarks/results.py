"""Runs that are kept in results/: their table, and an archive of their small files, to bring from another machine.

    python benchmarks/results.py table results/2026-11-16-xqc                # a row for each curve
    python benchmarks/results.py table results/2026-11-16-xqc --at 150000    # where it was at this step
    python benchmarks/results.py pack results/campaign-sac -o kept.tar.gz    # of complete runs
    python benchmarks/results.py pack results -o kept.tar.gz --unfinished    # of the others: what they have so far

Nothing is trained here; results/README.md says what the runs are, and how more of them are made.
"""

from __future__ import annotations

import argparse
import signal
import tarfile
from pathlib import Path

import numpy as np

from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.notes import mean_and_error
from diaster.analysis.results import read_results, run_directories
from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import CONFIG, DONE, METADATA, PROGRESS
from diaster.sweep.conduct import FILE as SWEEP

SMALL_FILES = (CONFIG, PROGRESS, METADATA, DONE, ROLLOUTS)
HEAD = (
    "| run | steps | return, mean ± standard error | of each seed | mean of the last evaluations | area "
    "| fit_r2 | correlation | within |\n|---|---|---|---|---|---|---|---|---|"
)


def row(curve: Curve, at: int | None) -> str:
    """One curve, at its last evaluation or at the one nearest to a step."""
    place = len(curve.steps) - 1 if at is None else int(np.abs(curve.steps - at).argmin())
    step = int(curve.steps[place])

    def column(name: str) -> str:
        value = curve.mean_of(name)[place]
        return "–" if np.isnan(value) else f"{value:.2f}"

    returns, spans = curve.returns[place], np.diff(curve.steps, prepend=0)
    cells = [
        ", ".join(curve.folders),
        f"{step:,}",
        mean_and_error(returns),
        ", ".join(f"{value:,.0f}" for value in returns),
        mean_and_error(curve.final(step)),
        mean_and_error(np.average(curve.returns[: place + 1], axis=0, weights=spans[: place + 1])),
        *(column(name) for name in ("fit_r2", "reward_correlation", "within_correlation")),
    ]
    return f"| {' | '.join(cells)} |"


def pack(folder: Path, out: Path, is_unfinished: bool) -> None:
    """An archive to unpack in the folder's place on another machine: `tar xzf kept.tar.gz -C results/campaign-sac`.

    Complete runs of a sweep come with its file, so that the sweep can go on there. Unfinished runs come without what
    resuming them needs, and so below a name of their own, where no sweep finds them.
    """
    runs = [run for run in run_directories(folder) if (run / DONE).exists() != is_unfinished]
    with tarfile.open(out, "w:gz") as archive:
        if (folder / SWEEP).is_file() and not is_unfinished:
            archive.add(folder / SWEEP, SWEEP, recursive=False)
        for run in runs:
            inside = Path("unfinished" if is_unfinished else "") / run.relative_to(folder)
            for file in filter(Path.is_file, (run / name for name in SMALL_FILES)):
                archive.add(file, str(inside / file.name), recursive=False)
    print(f"{len(runs)} {'unfinished' if is_unfinished else 'complete'} runs in {out}, {out.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="a row for each curve")
    table.add_argument("folder", type=Path)
    table.add_argument("--at", type=int, metavar="STEP", help="by default at the last evaluation")
    packing = commands.add_parser("pack", help="small files of runs in one archive")
    packing.add_argument("folder", type=Path)
    packing.add_argument("-o", "--out", type=Path, default=Path("kept.tar.gz"))
    packing.add_argument(
        "--unfinished", action="store_true", help="of runs that are not complete, in place of the others"
    )
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.folder, given.out, given.unfinished)
        return
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads the table may stop: `… | head`
    print(HEAD)
    for curve in curves_in(read_results(given.folder)):
        print(row(curve, given.at))


if __name__ == "__main__":
    main()

"""Train what docs/results.md shows, one run after another, and print its table. Meant for a GPU.

    python benchmarks/results.py                     # all of it, below results/
    python benchmarks/results.py --only Hopper-v5    # one of them
    python benchmarks/results.py --table FOLDER      # only the table, from run directories or CSV files

Finished runs are not trained again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

import numpy as np

RUNS: dict[str, list[str]] = {
    "InvertedPendulum-v5": ["InvertedPendulum-v5", "--steps", "20000", "--seeds", "5"],
    "Hopper-v5": ["Hopper-v5", "--steps", "300000", "--seeds", "5"],
    "HalfCheetah-v5": ["HalfCheetah-v5", "--steps", "300000", "--seeds", "5"],
    "Ant-v5": ["Ant-v5", "--steps", "250000", "--seeds", "5"],
    "Hopper-v5-paper": ["Hopper-v5", "--steps", "100000", "--seeds", "5", "--preset", "paper"],
    **{
        f"Hopper-v5-{method}": [
            *("Hopper-v5", "--method", method, "--steps", "100000", "--seeds", "5", "--evaluation.every", "10000")
        ]
        for method in ("dense", "ircr", "uniform", "rd", "rudder", "rrd", "episodic")
    },
}


def table(folder: Path) -> None:
    print("| run | steps per seed | return, mean ± standard error | of each seed | fit_r2 | correlation |")
    print("|---|---|---|---|---|---|")
    for name in RUNS:
        path = folder / f"{name}.csv" if (folder / f"{name}.csv").exists() else folder / name / "progress.csv"
        if not path.exists():
            continue
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        last = max(int(row["step"]) for row in rows)
        final = [row for row in rows if int(row["step"]) == last]

        def column(key: str, rows: list[dict[str, str]] = final) -> np.ndarray:
            return np.array([float(row[key] or "nan") for row in rows])

        returns = column("return_mean")
        error = returns.std(ddof=1) / np.sqrt(len(returns))
        fit, correlation = (np.nanmean(column(key)) for key in ("fit_r2", "reward_correlation"))
        each = ", ".join(f"{value:,.0f}" for value in returns)
        print(f"| {name} | {last:,} | {returns.mean():,.0f} ± {error:,.0f} | {each} | {fit:.2f} | {correlation:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    folder = arguments.table or Path("results")
    if arguments.table is None:
        for name, command in RUNS.items():
            if arguments.only in (None, name) and not (folder / name / "DONE").exists():
                subprocess.run(
                    [sys.executable, "-m", "diaster", "train", *command, "--out", str(folder / name)], check=True
                )
    table(folder)


if __name__ == "__main__":
    main()

"""A data set that is larger than memory should have to hold: 10 million steps, fitted and relabelled.

    python benchmarks/datasets.py                      # 10,000 episodes of 1,000 steps, HalfCheetah's sizes, 1 GB
    python benchmarks/datasets.py --steps 1000000      # a tenth of it
    python benchmarks/datasets.py --updates 500        # all of it, with a short fit

Prints, for `diaster fit` and for `diaster relabel`, the wall time, the processor time of all threads (which other work
on the machine changes little), steps per second and the most memory the process ever had (its largest resident set, as
the kernel counts it). Rewards are known: their correlation with the learnt ones
is printed too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

LENGTH, OBS, ACTIONS = 1000, 17, 6
PIECE = 1000  # episodes that are made at a time


def make(path: Path, n_steps: int) -> None:
    """Random walks in an .npz file, written in pieces; rewards are linear in where a step leads, less its effort."""
    n = n_steps // LENGTH
    random = np.random.default_rng(0)
    weight = random.normal(size=OBS).astype(np.float32)
    columns = {"observations": (n * LENGTH, OBS), "actions": (n * LENGTH, ACTIONS), "rewards": (n * LENGTH,)}
    parts = {name: path.with_suffix(f".{name}") for name in columns}
    files = {name: part.open("wb") for name, part in parts.items()}
    for name, shape in columns.items():
        np.lib.format.write_array_header_1_0(files[name], {"descr": "<f4", "fortran_order": False, "shape": shape})
    for first in range(0, n, PIECE):
        size = (min(PIECE, n - first), LENGTH)
        level = random.normal(size=(size[0], 1, OBS), scale=0.5)
        obs = level + np.cumsum(random.normal(size=(*size, OBS), scale=0.03), axis=1)
        actions = random.uniform(-1.0, 1.0, size=(*size, ACTIONS))
        rewards = obs @ weight - 0.1 * (actions**2).sum(axis=-1)
        for name, values in (("observations", obs), ("actions", actions), ("rewards", rewards)):
            files[name].write(values.astype("<f4").tobytes())
    for file in files.values():
        file.close()
    with zipfile.ZipFile(path, "w") as made:
        for name, part in parts.items():
            made.write(part, f"{name}.npy")
            part.unlink()
        with made.open("lengths.npy", "w") as lengths:
            np.lib.format.write_array(lengths, np.full(n, LENGTH))


def measured(*command: str) -> tuple[float, float, float]:
    """Seconds, those of processors, and megabytes of a command."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "diaster", *command])
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"diaster {command[0]} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def correlation(path: Path, n_steps: int) -> float:
    """Of the learnt rewards with those of the data set."""
    arrays = np.load(path)
    return float(np.corrcoef(arrays["rewards"][:n_steps], arrays["original_rewards"][:n_steps])[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--updates", type=int, default=20_000, help="of the fit, at most")
    parser.add_argument("--repeat", type=int, default=1, help="how often to relabel")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="datasets-") as folder:
        data, model, out = (Path(folder) / name for name in ("episodes.npz", "model", "dense.npz"))
        make(data, arguments.steps)
        print(f"{arguments.steps:,} steps, {data.stat().st_size / 1e6:,.0f} MB", flush=True)
        seconds, busy, most = measured("fit", str(data), "-o", str(model), "--updates", str(arguments.updates))
        print(f"fit: {seconds:.0f} s, {busy:.0f} s of processors, at most {most:,.0f} MB", flush=True)
        for _ in range(arguments.repeat):
            seconds, busy, most = measured("relabel", str(data), "--model", str(model), "-o", str(out), "--quiet")
            speeds = f"{arguments.steps / seconds:,.0f} steps/s, {arguments.steps / busy:,.0f} per second of processors"
            print(f"relabel: {seconds:.0f} s, {busy:.0f} s of processors, {speeds}, at most {most:,.0f} MB", flush=True)
        print(f"correlation with the hidden rewards: {correlation(out, arguments.steps):.3f}")


if __name__ == "__main__":
    main()

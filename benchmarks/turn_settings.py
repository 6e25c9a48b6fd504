"""Which settings of `diaster.fit` find the decisive turns of the agent in `examples/turns.py`.

    python benchmarks/turn_settings.py                     # all of them: some ten minutes of processor time
    python benchmarks/turn_settings.py "binary, rrd"       # those whose names contain this

100 tasks with eight attempts at each, at most 5,000 updates. Prints the share of credit on the two decisive turns of
attempts at fresh tasks, without the even share that makes credit sum to the outcome; uniform credit has 0.23.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import diaster

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from turns import Attempt, attempts_at, make_world, share

TASKS, FRESH_TASKS = 100, 40

LARGE = {"batch_episodes": 32}
# Compared with returns as RRD's perceptron is.
SINGLE_STEPS = {**LARGE, "segment_length": 1, "learning_rate": 1e-3, "variance_penalty": 0.0, "averaging": 0.0}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "binary, rrd": ("binary", {"name": "rrd"}),
    "binary, rrd, without groups": ("binary", {"name": "rrd"}),
    "sum, rrd": ("sum", {"name": "rrd"}),
    "sum, rrd, without groups": ("sum", {"name": "rrd"}),
    "sum, rrd, 32 episodes x 16 steps": ("sum", {"name": "rrd", "subset": 16, **LARGE}),
    "sum, rrd, the same, biased": ("sum", {"name": "rrd", "subset": 16, **LARGE, "unbiased": False}),
    "sum, rd, 32 episodes": ("sum", {"name": "rd", **LARGE}),
    "sum, diaster, single steps": ("sum", {"name": "diaster", **SINGLE_STEPS}),
    "binary, diaster": ("binary", {"name": "diaster"}),
    "binary, diaster, no base": ("binary", {"name": "diaster", "base": "none"}),
    "binary, diaster, differences": ("binary", {"name": "diaster", "base": "none", "reward_source": "difference"}),
}


def measured(fitted: list[Attempt], fresh: list[Attempt], outcome: str, method: dict[str, Any], groups: bool) -> str:
    """The share with its standard error, and fit_r2."""
    episodes = [attempt.episode for attempt in fitted]
    if not groups:
        episodes = [{name: value for name, value in episode.items() if name != "group"} for episode in episodes]
    model = diaster.fit(episodes, outcome=outcome, method=method, updates=5000)
    mean, error = share([model.rewards(attempt.episode, exact_sum=False) for attempt in fresh], fresh)
    return f"{mean:.2f} ± {error:.2f}   {model.fit_r2:.2f}   {model.results['updates']:>6,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="?", default="", help="part of a name")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of few held-out groups
    random = np.random.default_rng(0)
    world = make_world(random)
    attempts = [attempts_at(world, task, random) for task in range(TASKS + FRESH_TASKS)]
    fitted, fresh = (list(chain.from_iterable(part)) for part in (attempts[:TASKS], attempts[TASKS:]))
    print(f"{'settings':<34} share         fit_r2  updates")
    for name, (outcome, method) in SETTINGS.items():
        if arguments.wanted in name:
            began = time.process_time()
            found = measured(fitted, fresh, outcome, method, "without groups" not in name)
            print(f"{name:<34} {found}   {time.process_time() - began:.0f} s of processors", flush=True)


if __name__ == "__main__":
    main()

"""Decomposition without an environment: step rewards that are known come back from totals alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_default_recovers_hidden_step_rewards_of_held_out_episodes() -> None:
    # A fresh interpreter: this one compiles for quick tests, not for quick programs (conftest.py). With the minute that
    # `make synthetic` takes the correlation is above 0.9; a quarter of its updates has to come near.
    script = "from synthetic import *; print(recovered_correlation('default', updates=3000, seconds=240)[0])"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=BENCHMARKS, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.8

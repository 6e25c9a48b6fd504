"""Processes of this package's own: they end when the one that started them does, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import diaster

HANGING_ENV = """
    import toy_envs
    from diaster.envs.source import find_source, pack
    from diaster.envs.isolation import IsolatedEnv

    def hang():
        env = IsolatedEnv(pack(find_source("{env}", imports=("toy_envs",))), 100, 3600.0)
        env.reset(seed=0)
        for step in range(13):
            if step == 12:
                print("now", flush=True)
            env.step([0.0, 0.0])
    """
HANGING_WORKER = """
    from toy_specs import spec_of, toy_source

    from diaster.actors.acting import TANH_GAUSSIAN
    from diaster.actors.placement import Placement, make_collectors

    def hang():
        collectors = make_collectors(Placement(toy_source("{env}"), spec_of("{env}"), TANH_GAUSSIAN, (0,), 1))
        collectors.states()
        print("now", flush=True)
        collectors.collect([None], 0, 13)
    """
FROM_A_THREAD = """
    import threading

    thread = threading.Thread(target=hang)
    thread.start()
    thread.join()
    """
HERE = """
    hang()
    """


CASES = {
    "environment": (HANGING_ENV, "ToyHangs-v0", HERE),
    "environment of a thread": (HANGING_ENV, "ToyHangs-v0", FROM_A_THREAD),
    "environment, in C": (HANGING_ENV, "ToyHangsInC-v0", HERE),
    "worker": (HANGING_WORKER, "ToyHangs-v0", HERE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_child_that_hangs_ends_when_its_parent_is_killed(case: str, tmp_path: Path) -> None:
    script, env, way = CASES[case]
    places = [str(Path(diaster.__file__).parents[1]), str(Path(__file__).parents[1] / "support")]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script.format(env=env)) + textwrap.dedent(way)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"now\n"
    time.sleep(0.5)  # by now the step that hangs has begun
    assert parent.poll() is None
    parent.kill()
    # The child would hang for an hour. It has the same output, which ends with the last process that can write to it.
    parent.communicate(timeout=300)

"""Processes of this package's own: they end when the one that started them does, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import diaster

HANGING_ENV = """
    import toy_envs
    from diaster.envs.making import gym_spec
    from diaster.envs.isolation import IsolatedEnv

    def hang():
        env = IsolatedEnv(gym_spec("{env}").to_json(), 100, ("toy_envs",), 60.0)
        env.reset(seed=0)
        for step in range(13):
            if step == 12:
                print("now", flush=True)
            env.step([0.0, 0.0])
    """
HANGING_WORKER = """
    from toy_specs import spec_of

    from diaster.actors.acting import TANH_GAUSSIAN
    from diaster.actors.placement import Placement, make_collectors

    def hang():
        collectors = make_collectors(Placement(spec_of("{env}"), TANH_GAUSSIAN, (0,), ("toy_envs",), 1))
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


@pytest.mark.parametrize(
    ("script", "env", "way"),
    [
        (HANGING_ENV, "ToyHangs-v0", HERE),
        (HANGING_ENV, "ToyHangs-v0", FROM_A_THREAD),
        (HANGING_ENV, "ToyHangsInC-v0", HERE),
        (HANGING_WORKER, "ToyHangs-v0", HERE),
    ],
    ids=["environment", "environment of a thread", "environment, in C", "worker"],
)
def test_a_child_that_hangs_ends_when_its_parent_is_killed(script: str, env: str, way: str, tmp_path: Path) -> None:
    places = [str(Path(diaster.__file__).parents[1]), str(Path(__file__).parents[1] / "support")]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script.format(env=env)) + textwrap.dedent(way)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"now\n"
    with pytest.raises(subprocess.TimeoutExpired):  # it hangs
        parent.wait(timeout=0.5)
    parent.kill()
    # The child has the same output: it ends when the last process that could write to it is gone.
    parent.communicate(timeout=20)

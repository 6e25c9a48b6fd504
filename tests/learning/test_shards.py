"""Seeds on several devices: the run of one device, up to rounding. Cores of this machine stand in for devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import diaster
from diaster.errors import DiasterError

SCRIPT = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
import jax, numpy as np, diaster
from diaster.learning import learner
from pathlib import Path
from diaster.training.train import run_training
from diaster.config import build_config
from diaster.rundir.records import read_tensors
from diaster.training.progress import Silent

places = []
make = learner.Learner.__init__

def noted(self, decomposer, agent, spec, seeds, *rest):
    make(self, decomposer, agent, spec, seeds, *rest)
    places.append((list(seeds), {leaf.device.id for leaf in jax.tree.leaves((self.state, self.store))}))

learner.Learner.__init__ = noted
settings = dict(
    steps=200, seeds=5, imports=("toy_envs",), workers=0, chunk_steps=40, warmup_steps=80, device="cpu",
    method="uniform", agent={"name": "ddpg", "hidden": 8, "batch_size": 16},  # quick to compile, as every device does
    evaluation={"every": 120, "episodes": 2},
)
one = diaster.train("Toy-v0", out="one", **settings)
places.clear()

class Cut(Silent):
    def advance(self, progress):
        if progress.step == 160:
            raise RuntimeError("cut off")

config = build_config(env="Toy-v0", devices="all", checkpoint_every=40, **settings)
try:
    run_training(config, Path("several"), Cut())
except RuntimeError:
    pass
assert places == [([0, 1], {0}), ([2], {1}), ([3], {2}), ([4], {3})], places
several = diaster.resume("several")
for name in ("policy.safetensors", "decomposer.safetensors"):
    reference, found = (read_tensors(run.path / name) for run in (one, several))
    assert found.keys() == reference.keys()
    for key, array in reference.items():
        np.testing.assert_allclose(found[key], array, rtol=2e-3, atol=2e-4, err_msg=key)
for column in ("step", "seed", "episodes", "return_mean"):
    np.testing.assert_allclose(several.progress[column], one.progress[column], rtol=1e-3)
print("same run")
"""


def test_five_seeds_on_four_devices_cut_off_and_resumed_are_the_run_of_one_device(
    tmp_path: Path, python: Callable
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python(str(script))
    assert done.stdout.endswith("same run\n"), done.stderr


def test_more_devices_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match="99 devices were asked for and JAX finds 1 of the kind cpu"):
        diaster.train("Toy-v0", out=tmp_path / "run", imports=("toy_envs",), steps=200, device="cpu", devices=99)
    assert not (tmp_path / "run").exists()

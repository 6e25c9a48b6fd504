"""A sweep on a real Ray cluster of two nodes on this machine. `make ray-test` runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import diaster
from diaster.config import build_config
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.records import DECOMPOSER, DONE, METADATA, POLICY, PROGRESS
from diaster.sweep.cell import At, CellOrder, Ended
from diaster.sweep.launch_local import CellToRun
from diaster.sweep.mirror import DirectoryReceiver

ray = pytest.importorskip("ray")
launch_ray = pytest.importorskip("diaster.sweep.launch_ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

SWEEP = """
[settings]
imports = ["toy_envs"]
steps = {steps}
chunk_steps = 40
warmup_steps = 80
checkpoint_every = 200
seeds = 2
agent = {{ hidden = 8, batch_size = 16 }}
evaluation = {{ every = 2500, episodes = 2 }}

[axes]
env = "Toy-v0"
method = ["uniform", "dense", "episodic"]
"""
CELLS = ("Toy-v0_uniform", "Toy-v0_dense", "Toy-v0_episodic")


class Ground(NamedTuple):
    cluster: Any
    second: Any


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process finds this package and the toy environments."""
    places = [str(Path(diaster.__file__).parents[1]), str(Path(__file__).parents[1] / "support")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))


@pytest.fixture
def ground(toys: None) -> Iterator[Ground]:
    """Two nodes of one core each."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    yield Ground(cluster, second)
    cluster.shutdown()


def start_sweep(folder: Path, steps: int, *flags: str, out: str = "results") -> subprocess.Popen[str]:
    (folder / "toy.toml").write_text(SWEEP.format(steps=steps), encoding="utf-8")
    command = [sys.executable, "-m", "diaster", "sweep", "toy.toml", "--out", out, *flags]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def status_of(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "sweep.json").read_text(encoding="utf-8"))["cells"]
    return found


def with_checkpoint(results: Path) -> list[str]:
    return [name for name in CELLS if generations(results / name / DIRECTORY)]


def learnt_bytes(results: Path, name: str) -> list[bytes]:
    return [(results / name / file).read_bytes() for file in (PROGRESS, POLICY, DECOMPOSER)]


def test_when_a_node_is_killed_its_cell_is_resumed_elsewhere_and_nothing_is_lost_or_run_twice(
    tmp_path: Path, ground: Ground
) -> None:
    results = tmp_path / "results"
    process = start_sweep(tmp_path, 20000, "--launcher", "ray", "--address", ground.cluster.address)
    wait_for(lambda: len(with_checkpoint(results)) == 2, process)
    ground.cluster.remove_node(ground.second, allow_graceful=False)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, (out, err)
    cells = status_of(results)
    assert {name: cell["state"] for name, cell in cells.items()} == dict.fromkeys(CELLS, "done")
    [killed] = [name for name in CELLS if cells[name]["starts"] > 1]
    assert cells[killed]["starts"] == 2
    assert cells[killed]["from_step"] >= 200
    assert all(cells[name]["from_step"] == 0 for name in CELLS if name != killed)
    assert "resumed" in json.loads((results / killed / METADATA).read_text(encoding="utf-8"))
    assert f"waiting  {killed}: its worker was lost" in err
    # The same sweep uninterrupted, in processes of this machine with as many threads.
    quiet = start_sweep(tmp_path, 20000, "--cpus", "1", out="local")
    assert quiet.wait(400) == 0
    for name in CELLS:
        assert learnt_bytes(results, name) == learnt_bytes(tmp_path / "local", name)
        names = [sorted(item.name for item in (folder / name).iterdir()) for folder in (results, tmp_path / "local")]
        assert names[0] == names[1]
        assert DONE in names[0]


def test_a_signal_lets_cells_send_their_checkpoints_and_the_same_command_goes_on(
    tmp_path: Path, ground: Ground
) -> None:
    results, flags = tmp_path / "results", ("--launcher", "ray", "--address", ground.cluster.address)
    process = start_sweep(tmp_path, 20000, *flags)
    wait_for(lambda: len(with_checkpoint(results)) == 2, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 143, (out, err)
    # On a busy machine one cell may have ended before the other had its first checkpoint.
    assert re.match(r"diaster: stopped with [012] of 3 cells done; go on with the same command: ", err.splitlines()[-1])
    stopped = [name for name, cell in status_of(results).items() if cell["state"] == "stopped"]
    assert stopped
    again = start_sweep(tmp_path, 20000, *flags)
    assert again.wait(400) == 0, again.communicate()
    cells = status_of(results)
    assert all(cells[name]["from_step"] >= 200 for name in stopped)
    assert all(cell["state"] == "done" for cell in cells.values())


def test_a_cell_that_fits_on_no_node_is_refused(tmp_path: Path, ground: Ground) -> None:
    flags = ("--launcher", "ray", "--address", ground.cluster.address, "--cpus", "64")
    process = start_sweep(tmp_path, 200, *flags)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert "a cell is to have 64 CPUs, and no node of the cluster has more than 1" in err
    assert not (tmp_path / "results").exists()


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    for address in ([], ["--address", "127.0.0.1:1"], ["--address", "ray://127.0.0.1:10001"]):
        process = start_sweep(tmp_path, 200, "--launcher", "ray", *address)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (2, ""), address
        assert err.startswith("diaster: ") and err.count("\n") == 1, address
        assert "Ray cluster" in err or "--address" in err, address


class Watching:
    """Notes how cells end and which of them wait again."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def started(self, name: str) -> None: ...

    def told(self, name: str, at: At) -> None: ...

    def ended(self, name: str, ended: Ended) -> None:
        self.events.append(ended)

    def waits(self, name: str, why: str) -> None:
        self.events.append(why)

    def look(self) -> None: ...


def test_a_cell_is_given_up_after_three_losses_without_a_new_checkpoint(tmp_path: Path) -> None:
    launcher, watching = launch_ray.RayLauncher(launch_ray.Shares(1, 0.0), tmp_path / "logs"), Watching()
    order = CellOrder(tmp_path / "cell", build_config(env="x"), 0, (), ())
    cell = CellToRun("cell", order, 10**9, uses_gpu=False)

    def lose(newest: int = 0) -> CellToRun | None:
        task = launch_ray.RayTask(cell, DirectoryReceiver(order.path), newest)
        return launcher._lost(task, ray.exceptions.NodeDiedError("gone\nfor good"), watching, is_stopping=False)

    assert [lose(), lose()] == [cell, cell]
    assert watching.events[0] == "its worker was lost (NodeDiedError: gone); it goes on from its last checkpoint"
    (tmp_path / "cell" / DIRECTORY).mkdir(parents=True)
    (tmp_path / "cell" / DIRECTORY / "manifest-4.json").touch()  # it had come further: counted anew
    assert [lose(), lose(4), lose(4)] == [cell, cell, None]
    assert watching.events[-1].failure.startswith("its worker was lost 3 times without a new checkpoint")


def test_a_task_that_raises_is_described_by_what_it_raised_and_not_by_the_way_to_it() -> None:
    error = ray.exceptions.RayTaskError(
        "attempt_cell", "\x1b[36mray::attempt_cell()\x1b[39m\nValueError: why", ValueError()
    )
    assert launch_ray.described(error) == "RayTaskError: ValueError: why"

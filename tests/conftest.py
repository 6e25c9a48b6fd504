"""What tests share: the toy environments, tiny runs, and how programs are compiled and kept between runs."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diaster.actors.acting import HostParameters

SUPPORT = Path(__file__).parent / "support"  # toy environments and methods, and what several tests share
CACHE = Path(__file__).parents[1] / "build" / "test-cache"  # nobody's but the tests', and theirs to throw away
MOST_BYTES = 2**30
sys.path.insert(0, str(SUPPORT))
# Tests compile much and run little: a program of theirs costs a quarter without optimisation, without XLA's newer
# emitters of fusions, and in one piece. A version of XLA that does not know one of the flags says so and ends.
FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
# JAX reads these when it is imported, here and in every process that tests start. Processes share the cache: an entry
# that one of them reads while another writes it, or that was cut off, is a warning, and the program is compiled anew.
TORN_ENTRIES = [f"ignore:Error {doing} persistent compilation cache entry" for doing in ("reading", "writing")]


def extended(name: str, separator: str, *parts: str) -> str:
    """A list in the environment with these at its end, once: workers inherit it, and it is part of a program's key."""
    before = [part for part in os.environ.get(name, "").split(separator) if part and part not in parts]
    return separator.join([*before, *parts])


os.environ |= {
    # Each process has a core: threads of linear algebra that wait for each other cost more than they gain.
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": extended("XLA_FLAGS", " ", *FLAGS),
    "XDG_CACHE_HOME": str(CACHE),  # Matplotlib's fonts are there too
    "XDG_STATE_HOME": str(CACHE / "state"),  # the key that marks runs as made here
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # where in Python an operation was written; nobody reads it here
    "PYTHONWARNINGS": extended("PYTHONWARNINGS", ",", *TORN_ENTRIES),
}


def pytest_configure(config: pytest.Config) -> None:
    """Entries of programs that no test compiles any more are never read again: start anew when they are too many."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and sum(entry.stat().st_size for entry in CACHE.rglob("*")) > MOST_BYTES:
        shutil.rmtree(CACHE, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process is left alone with it in the end."""
    first = ("training", "learning", "test_run.py", "agents", "decomposers")
    folders = {item: item.path.relative_to(SUPPORT.parent).parts[0] for item in items}
    items.sort(key=lambda item: first.index(folders[item]) if folders[item] in first else len(first))


def pytest_collection_finish() -> None:
    """Tracing makes millions of small records: what is imported by now need not be looked at again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A fresh interpreter, in a folder of its own, that finds this package and the toy environments."""
    import diaster

    places = [str(Path(diaster.__file__).parents[1]), str(SUPPORT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    return run


@pytest.fixture
def random_parameters() -> Callable[..., HostParameters]:
    """What a policy of `acting.py` acts with, of no meaning; `tanh_gaussian` has two outputs for each action."""

    def make(obs_dim: int, outputs: int, seed: int = 0, hidden: int = 8, exploration: float = 0.0) -> HostParameters:
        random = np.random.default_rng(seed)
        sizes = [(obs_dim, hidden), (hidden, hidden), (hidden, outputs)]
        layers = tuple(
            (
                random.normal(size=(rows, columns)).astype(np.float32),
                random.normal(size=columns).astype(np.float32),
            )
            for rows, columns in sizes
        )
        return HostParameters(layers, exploration)

    return make


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a toy that moves and can draw itself, with nets that nobody has trained; to be read, or copied."""
    from made_runs import make_run_with_nets

    return make_run_with_nets(tmp_path_factory.mktemp("runner") / "run", "ToyRunner-v0")


@pytest.fixture
def empty_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; what a command adds to the search path is taken back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Small runs that all tests share, one for each setting: `trained(seeds=2)`. They are not to be changed."""
    from small_runs import trained as train_once

    root = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # a worker's folder is in the one of all
        root = root.parent
    folder = root / "trained"
    folder.mkdir(exist_ok=True)
    return partial(train_once, folder)

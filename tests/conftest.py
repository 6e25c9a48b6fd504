"""What tests share: the toy environments, tiny runs, and a compilation cache that is gone when they are."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diaster.actors.acting import HostParameters

SUPPORT = Path(__file__).parent / "support"  # toy environments and methods, and what several tests share
sys.path.insert(0, str(SUPPORT))
# Tests compile much and run little: three quarters of their time would go into optimising tiny programs.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()


@pytest.fixture(scope="session", autouse=True)
def compilation_cache() -> Iterator[None]:
    """Runs of the tests neither read the user's cache nor leave anything in it."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A fresh interpreter, in a folder of its own, that finds this package and the toy environments."""
    import diaster

    places = [str(Path(diaster.__file__).parents[1]), str(SUPPORT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)

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
def trained(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Any]:
    """Small runs that all tests share, one for each setting: `trained(seeds=2)`. They are not to be changed."""
    from small_runs import trained as train_once

    root = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = root / "trained"
    folder.mkdir(exist_ok=True)
    return partial(train_once, folder)

"""A small run to damage, and a watch over whatever reads it.

Nothing is executed, nothing is written, nothing outside is opened, nothing waits, and memory stays bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
import toy_envs  # noqa: F401

from diaster.agents import make_agent
from diaster.analysis.plots import learning_curve
from diaster.config import (
    AGENTS,
    METHODS,
    EvaluationConfig,
    ImageConfig,
    ReplayConfig,
    RunConfig,
    build_config,
    write_toml,
)
from diaster.decomposers import make_decomposer
from diaster.envs.making import describe_env, make_env
from diaster.errors import DiasterError
from diaster.nn.trees import leaf_names
from diaster.rundir.records import (
    CONFIG,
    DECOMPOSER,
    DONE,
    METADATA,
    POLICY,
    PROGRESS,
    read_config,
    read_metadata,
    read_tensors,
)
from diaster.rundir.results import progress_csv, read_progress
from diaster.rundir.trust import sign

FILES = (CONFIG, METADATA, PROGRESS, POLICY, DECOMPOSER)
SEEDS, HORIZON = (3, 8), 10
LONGEST_WAIT = 300.0  # seconds; reading takes a millisecond
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What no reader has reason to do; an audit hook can be added but not removed, so a list says when it is on.
FORBIDDEN = (
    "os.", "shutil.", "subprocess.", "pickle.", "marshal.", "socket.", "ctypes.", "exec", "compile", "import",
)  # fmt: skip
HARMLESS = ("os.listdir", "os.scandir")
SETTINGS = (
    RunConfig,
    ReplayConfig,
    EvaluationConfig,
    ImageConfig,
    *(method.settings for method in METHODS.values()),
    *(agent.settings for agent in AGENTS.values()),
)
ANNOTATIONS = {
    text.encode() for settings in SETTINGS for kind in settings.__mro__[:-1] for text in kind.__annotations__.values()
}
audited: list[list[tuple[str, tuple[Any, ...]]]] = []


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if audited and (event == "open" or event.startswith(FORBIDDEN)) and event not in HARMLESS:
        audited[-1].append((event, arguments))


sys.addaudithook(note)


def write_run(path: Path) -> None:
    """A small run, with the package's own writers: two evaluations of two seeds, untrained nets."""
    path.mkdir()
    settings: dict[str, Any] = {
        "steps": 60,
        "warmup_steps": 40,
        "imports": ("toy_envs",),
        "workers": 0,
        "method": {"hidden": 4},
        "agent": {"hidden": 4},
    }
    config = build_config(env="Toy-v0", seeds=SEEDS, horizon=HORIZON, **settings)
    spec = describe_env(make_env("Toy-v0", HORIZON), "Toy-v0", HORIZON)
    agent, decomposer = make_agent(config.agent, spec), make_decomposer(config.method, HORIZON)
    policy = jax.eval_shape(lambda key: agent.policy(agent.init(key, spec)), jax.random.key(0))
    state = jax.eval_shape(lambda key: decomposer.init(key, spec), jax.random.key(0))
    random = np.random.default_rng(0)
    rows = [
        {"step": step, "seed": seed, "episodes": step // HORIZON, "return_mean": 1.5 * step, "fit_r2": 0.25}
        for step in (30, 60)
        for seed in SEEDS
    ]
    (path / CONFIG).write_text(write_toml(config), encoding="utf-8")
    (path / METADATA).write_text(json.dumps({"device": "cpu", "cores": 2, "wall_seconds": 1.5, "versions": {}}))
    (path / PROGRESS).write_text(progress_csv(rows), encoding="utf-8")
    for file, tree, fields in ((POLICY, policy, None), (DECOMPOSER, state, decomposer.saved)):
        arrays = {
            name: random.uniform(0.1, 0.5, (len(SEEDS), *leaf.shape)).astype(leaf.dtype)
            for name, leaf in leaf_names(tree, fields)
        }
        (path / file).write_bytes(safetensors.numpy.save(arrays))
    (path / DONE).touch()
    sign(path, config)


class HostileRuns:
    """Makes copies of a run, each to be damaged, each with a file outside that must not be read or changed."""

    def __init__(self, pristine: Path, folder: Path) -> None:
        self.pristine, self._folder, self._count = pristine, folder, 0

    def new(self) -> Path:
        self._count += 1
        case = self._folder / f"case-{self._count}"
        (case / "outside").mkdir(parents=True)
        (case / "outside" / "secret").write_bytes(b"secret = 1\n")
        shutil.copytree(self.pristine, case / "run")
        return case / "run"

    def reader(self, file: str) -> Callable[[Path], object]:
        """What reads a file; nets are compared with those that the settings imply."""
        if file in (POLICY, DECOMPOSER):
            whole = read_tensors(self.pristine / file)
            forms = {name: (array.shape, array.dtype) for name, array in whole.items()}
            return lambda path: read_tensors(path / file, forms)
        readers: dict[str, Callable[[Path], object]] = {
            CONFIG: read_config,
            METADATA: read_metadata,
            PROGRESS: lambda path: (read_progress(path), learning_curve(path)),
        }
        return readers[file]


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """A reader that waits for a pipe is interrupted."""

    def stop(*_: object) -> None:
        raise TimeoutError("the reader waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def little_memory(megabytes: int) -> Iterator[None]:
    """No more memory than this is taken at any time, as Python counts it and as the system does."""
    unit = 1024 if sys.platform == "linux" else 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert peak < megabytes * 2**20
    assert after - before < 4 * megabytes * 2**20  # the parser's own, and what tracing takes


def contents(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything in a folder, and when it was changed."""
    found = {}
    for item in (folder, *folder.rglob("*")):
        status = item.lstat()
        found[str(item)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def sentence_of(call: Callable[[Path], object], run: Path) -> str | None:
    """What is said of a run, None where it is read; anything but a sentence is an error of ours."""
    before = contents(run.parent)
    audited.append([])
    try:
        with without_waiting():
            call(run)
    except DiasterError as error:
        sentence = str(error)
        assert sentence and sentence.isprintable() and len(sentence) < 2500
        return sentence
    finally:
        events = audited.pop()
        assert contents(run.parent) == before
        check_events(events, run)
    return None


def check_events(events: list[tuple[str, tuple[Any, ...]]], run: Path) -> None:
    """Files of the run were opened for reading; nothing else happened."""
    for event, arguments in events:
        if event == "open":
            path, _, flags = arguments  # a file that is already open is a number
            assert isinstance(path, int) or Path(path).is_relative_to(run), arguments
            assert not flags & WRITING, arguments
        elif event == "compile":  # annotations of settings are texts, which Python evaluates when it checks types
            assert arguments[0] in ANNOTATIONS, arguments
        else:
            assert event == "exec" and arguments[0].co_filename == "<string>", (event, arguments)
    names = [event for event, _ in events]
    assert names.count("exec") <= names.count("compile")


def which_are_read(run: Path, file: str, variants: Iterable[bytes], call: Callable[[Path], object]) -> list[bool]:
    """Whether each variant of a file is read; those that are not have a sentence."""
    is_read = []
    assert sentence_of(call, run) is None  # whatever is imported on first use is imported now
    for number, content in enumerate(variants):
        (run / file).write_bytes(content)
        try:
            is_read.append(sentence_of(call, run) is None)
        except BaseException as error:
            error.add_note(f"variant {number} of {file}, which is still in {run}")
            raise
    return is_read

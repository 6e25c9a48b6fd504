"""The cases of `make fuzz`: each number is one damage and one way to read it, the same each time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from damage import damaged_bytes, damaged_value, to_toml
from fuzz_sources import Sources

from diaster.analysis.figures import write_figure
from diaster.analysis.plots import plot_learning_curves
from diaster.analysis.report import write_page
from diaster.config import RunConfig
from diaster.errors import Stopped
from diaster.media.recording import record_rollouts
from diaster.run import load
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.checkpoint.manifest import checksum, manifest_name
from diaster.rundir.recordings import ROLLOUTS, read_rollouts
from diaster.rundir.records import CONFIG, METADATA, read_config
from diaster.sweep.conduct import local_site, make_plan
from diaster.sweep.describe import describe_plan
from diaster.sweep.resources import Wishes, find_machine
from diaster.training.progress import Progress, Silent
from diaster.training.train import resume_training

SEED = 15
CASES = 5000
KINDS = ("run", "manifest", "recording", "sweep")
TURNS = (0, 1, 3, 0, 2, 1, 0, 3, 2, 1, 0, 3, 2, 0, 1, 3, 0, 2, 1, 3)  # kinds of twenty cases in a row
LONGEST_HORIZON = 1000  # a longer episode takes as long as it is asked to
SIZES = (0, 1, 10**5, 300 * 2**20, 3 * 2**30, 5 * 2**30, 2**40)  # of sparse files
LEFTOVERS = ("lock", f".{CONFIG}.0123", f".{METADATA}.0123", f"{DIRECTORY}/.state-9.safetensors.0123", "tensorboard")


class Sandbox:
    """A folder of a worker: what is damaged, and what has to stay as it is."""

    def __init__(self, root: Path, outside: Path) -> None:
        self.root, self.run, self.out = root, root / "case" / "run", root / "out"
        self.outside = root / "outside"
        for name in ("home", "cwd", "tmp", "outside"):
            (root / name).mkdir(parents=True)
        (self.outside / "secret").write_bytes(b"secret = 1\n")
        shutil.copytree(outside, self.outside / "run")

    def clear(self) -> None:
        """Make room for the next case."""
        for folder in (self.run.parent, self.out):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()


class Case(NamedTuple):
    """A damage that has been done."""

    kind: str
    what: str
    read: Callable[[], object]
    own: tuple[Path, ...]  # what the reader may write to


def kind_of(number: int) -> str:
    return KINDS[TURNS[number % len(TURNS)]]


def make_case(number: int, sources: Sources, sandbox: Sandbox) -> Case:
    """Do the damage; the random numbers are those of this case alone."""
    random = np.random.default_rng([SEED, number + 1000])  # numbers below 0 are for warming up
    sandbox.clear()
    makers = {"run": run_case, "manifest": manifest_case, "recording": recording_case, "sweep": sweep_case}
    return makers[kind_of(number)](random, sources, sandbox)


def pick(random: np.random.Generator, options: Any) -> Any:
    return options[int(random.integers(len(options)))]


# Run directories


def run_case(random: np.random.Generator, sources: Sources, sandbox: Sandbox) -> Case:
    is_cut_off = random.random() < 0.45
    wholes = sources.cut_off if is_cut_off else sources.complete
    place = int(random.integers(len(wholes)))
    shutil.copytree(wholes[place], sandbox.run)
    if random.random() < 0.3:
        (sandbox.run / "tensorboard").mkdir()
    harm = "; ".join(
        damage_directory(sandbox.run, wholes[1 - place], sandbox, random) for _ in range(random.integers(1, 4))
    )
    readers = ["load", "load", "plot", "figure", "figure", "report"] + ["resume"] * (9 if is_cut_off else 0)
    name = pick(random, readers)
    figure = pick(random, ("performance", "credit", "proxy-reward", "summary"))
    config = read_config(wholes[place])
    run, out = sandbox.run, sandbox.out
    calls: dict[str, Callable[[], object]] = {
        "load": lambda: use(run),
        "plot": lambda: plot_learning_curves([run], out / "curve.png"),
        "figure": lambda: write_figure(figure, run, out / "figure.png"),
        "report": lambda: write_page(run, out / "report.html"),
        "resume": lambda: resume_a_little(run, config),
    }
    return Case("run", f"{name} {wholes[place].name}: {harm}", calls[name], (run if name == "resume" else out,))


def use(path: Path) -> None:
    """Load a run, and let it act where its episodes are not too long for that."""
    run = load(path, trust=True)  # the damage is to be met, not refused at the door
    assert len(run.progress["step"]) >= 0
    run.policy()(np.zeros(run.spec.obs_dim, np.float32))
    if run.spec.horizon <= LONGEST_HORIZON and not run.config.isolate_envs:
        run.evaluate(1, run.seeds[0])


class StoppingSoon(Silent):
    """Lets a run go on for a few chunks, and keeps its warnings."""

    def __init__(self) -> None:
        self.left = 3
        self.warnings: list[str] = []

    def advance(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


def resume_a_little(run: Path, begun_with: RunConfig) -> None:
    """Resume for a few chunks. Without a checkpoint other settings would be trained, for as long as they ask for."""
    if not generations(run / DIRECTORY) and read_config(run) != begun_with:
        return
    reporter = StoppingSoon()
    with contextlib.suppress(Stopped):
        resume_training(run, reporter, trust=True)
    assert all(warning.isprintable() and len(warning) < 3000 for warning in reporter.warnings), reporter.warnings


def damage_directory(run: Path, other: Path, sandbox: Sandbox, random: np.random.Generator) -> str:
    """Do something to a file or a folder of a directory; returns what."""
    there = sorted(str(item.relative_to(run)) for item in run.rglob("*"))
    weighted = [name for name in there for _ in range(1 if name.startswith(DIRECTORY) else 3)]
    path = run / "nowhere" / "nothing"
    while not path.parent.is_dir() or path.parent.is_symlink():
        name = pick(random, weighted) if there and random.random() < 0.9 else pick(random, LEFTOVERS)
        path, twin = run / name, other / name
    is_file = path.is_file() and not path.is_symlink()
    content = path.read_bytes() if is_file and path.stat().st_size < 10**7 else b""
    deed = int(random.integers(14))
    if deed < 5 and is_file:
        put(path, damaged_bytes(content, random))
        return f"{name} damaged in its bytes"
    if deed == 5 and is_file:
        changed = pick(random, [item for item in there if (run / item).is_file() and item != name] or [name])
        with_other = (run / changed).read_bytes() if (run / changed).stat().st_size < 10**7 else b""
        put(run / changed, content)
        put(path, with_other)
        return f"{name} and {changed} swapped"
    first = 0 if os.path.lexists(path) else 1  # what is not there cannot be removed
    remove(path)
    if deed in (6, 7) and twin.is_file():
        path.write_bytes(twin.read_bytes())
        return f"{name} of another run"
    return f"{name} {put_something_else(path, sandbox, random, first)}"


def put(path: Path, content: bytes) -> None:
    """A file of its own: the one that was there may have a second name outside."""
    remove(path)
    path.write_bytes(content)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_something_else(path: Path, sandbox: Sandbox, random: np.random.Generator, first: int) -> str:
    """What is no file that diaster writes, in the place of one."""
    match random.integers(first, 9):
        case 0:
            return "removed"
        case 1:
            path.symlink_to(sandbox.outside / "run" / path.name)
            return "is a link to a whole one outside"
        case 2:
            path.symlink_to(pick(random, (sandbox.outside / "secret", Path(path.name), Path("/dev/zero"), Path(".."))))
            return "is a link to elsewhere"
        case 3:
            os.link(sandbox.outside / "secret", path)
            return "is a second name of a file outside"
        case 4:
            path.mkdir()
            if random.random() < 0.5:
                (path / "more").write_bytes(b"x")
            return "is a folder"
        case 5:
            os.mkfifo(path)
            return "is a pipe"
        case 6:
            path.write_bytes(random.bytes(200))
            return "is noise"
        case _:
            size = pick(random, SIZES)
            path.touch()
            os.truncate(path, size)
            return f"has {size} bytes of zeros"


# Checkpoints whose checksums are right


def manifest_case(random: np.random.Generator, sources: Sources, sandbox: Sandbox) -> Case:
    whole = pick(random, sources.cut_off)
    shutil.copytree(whole, sandbox.run)
    directory = sandbox.run / DIRECTORY
    newest, *older = generations(directory)
    for number in older if random.random() < 0.8 else ():
        (directory / manifest_name(number)).unlink()
    path = directory / manifest_name(newest)
    body = json.loads(path.read_text(encoding="utf-8"))["body"]
    if random.random() < 0.25:
        harm = damage_tensors_of(body, directory, random)
    else:
        part = "facts" if random.random() < 0.7 else None
        before = json.dumps(body, sort_keys=True)
        while json.dumps(body, sort_keys=True) == before:
            for _ in range(random.integers(1, 3)):
                if part is None or not isinstance(body, dict) or not isinstance(body.get(part), dict):
                    body = damaged_value(body, random)
                else:
                    body[part] = damaged_value(body[part], random)
        harm = "values"
    text = json.dumps(body, sort_keys=True)
    path.write_text(json.dumps({"sha256": checksum(text.encode()), "body": body}, sort_keys=True), encoding="utf-8")
    config = read_config(whole)
    run = sandbox.run
    return Case("manifest", f"resume {whole.name}: {harm}", lambda: resume_a_little(run, config), (run,))


def damage_tensors_of(body: dict[str, Any], directory: Path, random: np.random.Generator) -> str:
    """Other arrays in a file of a checkpoint, and its size and checksum as they are then."""
    entry = pick(random, [body["state"], *(file for file, _ in body["replay"]), *body["held_out"].values()])
    path = directory / entry[0]
    arrays, harm = damaged_arrays(safetensors.numpy.load(path.read_bytes()), random)
    content = safetensors.numpy.save(arrays)
    path.write_bytes(content)
    entry[1:] = [len(content), checksum(content)]
    return f"{entry[0]}: {harm}"


def damaged_arrays(arrays: dict[str, Any], random: np.random.Generator) -> tuple[dict[str, Any], str]:
    """One array has other numbers, another shape or another kind, is missing, or is there under another name."""
    name = pick(random, sorted(arrays))
    array = arrays.pop(name).copy()
    deed = int(random.integers(8))
    if deed == 0:
        return arrays, f"{name} is missing"
    if deed == 1:
        arrays[pick(random, (f"{name}x", "x", "", "metrics.0.x", "metrics.x", "5.length", "collector.9.obs"))] = array
        return arrays, f"{name} has another name"
    if deed == 2:
        kind = pick(random, (np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_, np.complex64))
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(kind)
        return arrays, f"{name} is of {np.dtype(kind)}"
    if deed == 3:
        shapes = ((-1,), (1, *array.shape), (*array.shape, 1), array.shape[::-1], (1,) * 8 + array.shape)
        arrays[name] = array.reshape(pick(random, shapes))
        return arrays, f"{name} has the shape {arrays[name].shape}"
    if deed == 4:
        flat = array.ravel()
        arrays[name] = pick(random, (flat[:0], array[..., :0], array[:-1] if array.ndim else flat, np.repeat(flat, 2)))
        return arrays, f"{name} has the shape {arrays[name].shape}"
    is_real = np.issubdtype(array.dtype, np.floating)
    values = (np.nan, np.inf, -np.inf, 1e30, 1e-30, -1.0) if is_real else (-1, 0, 1, 2, 100, 2**31, 2**62, -(2**62))
    value = pick(random, values)
    with np.errstate(all="ignore"):
        value = np.array(value).astype(array.dtype)
    if deed == 5 or not array.size:
        array[...] = value
        return {**arrays, name: array}, f"{name} is {value} everywhere"
    array.reshape(-1)[random.integers(array.size)] = value
    return {**arrays, name: array}, f"{name} is {value} somewhere"


# Recordings


def recording_case(random: np.random.Generator, sources: Sources, sandbox: Sandbox) -> Case:
    whole = pick(random, [*sources.recorded, *sources.complete])
    run, out = sandbox.run, sandbox.out
    shutil.copytree(whole, run)
    content = (run / ROLLOUTS).read_bytes()
    changed, harm = damaged_recording(content, random)
    (run / ROLLOUTS).write_bytes(changed)
    figure = {"maze": "heatmap", "line": pick(random, ("credit", "proxy-reward"))}.get(whole.name, "credit")
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: read_rollouts(run),
        "figure": lambda: write_figure(figure, run, out / "figure.png"),
        "report": lambda: write_page(run, out / "report.html"),
        "record": lambda: record_rollouts(load(run, trust=True), 1),
    }
    names = ["read", "figure", "figure", "figure", "figure", "report"] + ["record"] * (whole.name != "maze")
    name = pick(random, names)
    own = run if name == "record" else out
    return Case("recording", f"{name} ({figure}) {whole.name}: {harm}", calls[name], (own,))


def damaged_recording(content: bytes, random: np.random.Generator) -> tuple[bytes, str]:
    length = int.from_bytes(content[:8], "little")
    header, payload = json.loads(content[8 : 8 + length]), content[8 + length :]
    match random.integers(10):
        case 0 | 1:
            return damaged_bytes(content, random), "bytes"
        case 2:
            text = damaged_bytes(content[8 : 8 + length], random)
            return struct.pack("<Q", len(text)) + text + payload, "bytes of the header"
        case 3:
            text = json.dumps(damaged_value(header, random)).encode()
            return struct.pack("<Q", len(text)) + text + payload, "values of the header"
        case 4 | 5:
            scene = damaged_value(json.loads(header["__metadata__"]["scene"]), random)
            metadata, harm = {"scene": json.dumps(scene)}, "values of the scene"
            return safetensors.numpy.save(safetensors.numpy.load(content), metadata), harm
        case _:
            arrays, harm = damaged_arrays(safetensors.numpy.load(content), random)
            return safetensors.numpy.save(arrays, header["__metadata__"]), harm


# Sweeps


def sweep_case(random: np.random.Generator, sources: Sources, sandbox: Sandbox) -> Case:
    text = pick(random, sources.grids)
    file, out = sandbox.run.parent / "grid.toml", sandbox.run
    harm = []
    has_results = random.random() < 0.5
    if has_results:
        text = sources.grids[0]
        shutil.copytree(sources.sweep, out, symlinks=True)
    file.write_text(text, encoding="utf-8")
    if has_results and random.random() < 0.7:
        for _ in range(random.integers(1, 4)):
            harm.append(damage_directory(out, sources.complete[0], sandbox, random))
    elif random.random() < 0.4:
        file.write_bytes(damaged_bytes(text.encode(), random))
        harm.append("bytes of the grid")
    else:
        grid = tomllib.loads(text)
        for _ in range(random.integers(1, 3)):
            grid = damaged_value(grid, random)
        file.write_text(to_toml(grid) if isinstance(grid, dict) else str(grid), encoding="utf-8", errors="replace")
        harm.append("values of the grid")
    return Case("sweep", f"plan: {'; '.join(harm)}", lambda: plan(file, out), ())


def plan(file: Path, out: Path) -> None:
    """What `diaster sweep FILE --dry-run` does."""
    found = make_plan(file, out)
    describe_plan(found, local_site(find_machine(), Wishes(1, 1, 0), found))

"""Run directories from a stranger: whatever they hold, it is read or refused in a sentence.

Nothing is executed, nothing is written, nothing outside is opened, nothing waits, and memory stays bounded.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import toy_envs  # noqa: F401

import diaster
from diaster.agents import make_agent
from diaster.analysis.plots import learning_curve
from diaster.cli import main
from diaster.config import (
    AGENTS,
    METHODS,
    EvaluationConfig,
    ReplayConfig,
    RunConfig,
    build_config,
    write_toml,
)
from diaster.decomposers import make_decomposer
from diaster.envs.making import describe_env, make_env
from diaster.errors import DiasterError
from diaster.nn.trees import is_recorded, leaf_names
from diaster.rundir import records
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

FILES = (CONFIG, METADATA, PROGRESS, POLICY, DECOMPOSER)
SEEDS, HORIZON = (3, 8), 10
MUTANTS = 400  # of each file; 2,000 in all, beside about as many that are made on purpose
LONGEST_WAIT = 20.0  # seconds; reading takes a millisecond
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What no reader has reason to do; the audit of a process can be begun but not ended, so a list says when it is on.
FORBIDDEN = (
    "os.", "shutil.", "subprocess.", "pickle.", "marshal.", "socket.", "ctypes.", "exec", "compile", "import",
)  # fmt: skip
HARMLESS = ("os.listdir", "os.scandir")
SETTINGS = (
    RunConfig,
    ReplayConfig,
    EvaluationConfig,
    *(method.settings for method in METHODS.values()),
    *(agent.settings for agent in AGENTS.values()),
)
ANNOTATIONS = {text.encode() for settings in SETTINGS for text in settings.__annotations__.values()}
audited: list[list[tuple[str, tuple[Any, ...]]]] = []


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if audited and (event == "open" or event.startswith(FORBIDDEN)) and event not in HARMLESS:
        audited[-1].append((event, arguments))


sys.addaudithook(note)


def write_run(path: Path) -> None:
    """A small run, with the package's own writers: two evaluations of two seeds, nets that nobody has trained."""
    path.mkdir()
    settings: dict[str, Any] = {
        "steps": 60,
        "warmup_steps": 40,
        "imports": ("toy_envs",),
        "workers": 0,
        "decomposer": {"hidden": 4},
        "learner": {"hidden": 4},
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
    for name, tree in ((POLICY, policy), (DECOMPOSER, state)):
        arrays = {
            name: random.uniform(0.1, 0.5, (len(SEEDS), *leaf.shape)).astype(leaf.dtype)
            for name, leaf in leaf_names(tree)
            if is_recorded(name)
        }
        (path / name).write_bytes(safetensors.numpy.save(arrays))
    (path / DONE).touch()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "pristine"
    write_run(path)
    return path


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged, with a file outside that nobody may read or change."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret = 1\n")
    shutil.copytree(pristine, tmp_path / "run")
    return tmp_path / "run"


# How reading is watched


def readers(pristine: Path) -> dict[str, Callable[[Path], object]]:
    """For each file, what reads it; nets are compared with those that the settings imply."""
    forms = {
        name: {key: (array.shape, array.dtype) for key, array in read_tensors(pristine / name).items()}
        for name in (POLICY, DECOMPOSER)
    }
    return {
        CONFIG: read_config,
        METADATA: read_metadata,
        PROGRESS: lambda path: (read_progress(path), learning_curve(path)),
        POLICY: lambda path: read_tensors(path / POLICY, forms[POLICY]),
        DECOMPOSER: lambda path: read_tensors(path / DECOMPOSER, forms[DECOMPOSER]),
    }


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
            path, _, flags = arguments  # an open file that is given another form is a number
            assert isinstance(path, int) or Path(path).is_relative_to(run), arguments
            assert not flags & WRITING, arguments
        elif event == "compile":  # annotations of settings are texts, which Python evaluates when it checks types
            assert arguments[0] in ANNOTATIONS, arguments
        else:
            assert event == "exec" and arguments[0].co_filename == "<string>", (event, arguments)
    names = [event for event, _ in events]
    assert names.count("exec") <= names.count("compile")


def check_all(run: Path, file: str, variants: Iterator[bytes], call: Callable[[Path], object]) -> list[bool]:
    """Whether each variant of a file is read; those that are not have a sentence."""
    is_read = []
    assert sentence_of(call, run) is None  # whatever is imported on first use is imported now
    for content in variants:
        (run / file).write_bytes(content)
        is_read.append(sentence_of(call, run) is None)
    return is_read


# Damage by chance


def flip_bits(content: bytearray, random: np.random.Generator) -> None:
    for _ in range(random.integers(1, 9)):
        content[random.integers(len(content))] ^= 1 << random.integers(8)


def cut_off(content: bytearray, random: np.random.Generator) -> None:
    del content[random.integers(len(content)) :]


def insert_noise(content: bytearray, random: np.random.Generator) -> None:
    place = random.integers(len(content))
    content[place:place] = random.bytes(int(random.integers(1, 50)))


def remove_slice(content: bytearray, random: np.random.Generator) -> None:
    first, last = sorted(random.integers(len(content), size=2))
    del content[first : min(last, first + 50) + 1]


def repeat_slice(content: bytearray, random: np.random.Generator) -> None:
    first, last = sorted(random.integers(len(content), size=2))
    content[first:first] = content[first:last]


def swap_slices(content: bytearray, random: np.random.Generator) -> None:
    a, b, c = sorted(random.integers(len(content), size=3))
    content[a:c] = content[b:c] + content[a:b]


def blank_slice(content: bytearray, random: np.random.Generator) -> None:
    first = random.integers(len(content))
    last = min(len(content), first + random.integers(1, 100))
    content[first:last] = bytes([random.choice([0, 32, 255])]) * (last - first)


STRANGE_NUMBERS = (
    b"-1", b"0", b"1e999", b"nan", b"NaN", b"-Infinity", b"9" * 30, b"9" * 5000, b"0x" + b"f" * 5000, b"1.5", b"",
    b"9223372036854775807", b"9223372036854775808", b"4294967296", b"1000000000", b"[1]", b"{}", b"\"\"", b"null",
)  # fmt: skip


def replace_number(content: bytearray, random: np.random.Generator) -> None:
    numbers = list(re.finditer(rb"\d+", bytes(content)))
    if numbers:
        number = numbers[random.integers(len(numbers))]
        content[number.start() : number.end()] = STRANGE_NUMBERS[random.integers(len(STRANGE_NUMBERS))]


DAMAGES = (
    flip_bits, cut_off, insert_noise, remove_slice, repeat_slice, swap_slices, blank_slice, replace_number,
)  # fmt: skip


def mutants(content: bytes, seed: int) -> Iterator[bytes]:
    """The same ones each time: one to three damages of random kinds in random places."""
    random = np.random.default_rng(seed)
    for _ in range(MUTANTS):
        changed = bytearray(content)
        for _ in range(random.integers(1, 4)):
            if changed:
                DAMAGES[random.integers(len(DAMAGES))](changed, random)
        yield bytes(changed)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_damaged_by_chance_is_read_or_refused_in_a_sentence(
    file: str, run: Path, pristine: Path
) -> None:
    content = (run / file).read_bytes()
    is_read = check_all(run, file, mutants(content, FILES.index(file)), readers(pristine)[file])
    assert len(is_read) == MUTANTS
    assert not all(is_read)


@pytest.mark.parametrize("file", FILES)
def test_a_file_in_the_place_of_another_is_refused(file: str, run: Path, pristine: Path) -> None:
    others = [(pristine / other).read_bytes() for other in FILES if other != file]
    assert check_all(run, file, iter(others), readers(pristine)[file]) == [False] * len(others)


# Damage on purpose

STRANGE_SETTINGS = (
    "nan", "-inf", "1e400", "-1", "0", "true", "[]", "{}", "[[[[[[1]]]]]]", "1979-05-27", '""', "2.5", "[1, 1]",
    "9223372036854775807", "9223372036854775808", "1000000000", "0x" + "f" * 5000, "9" * 5000, "[-1]", '["a.b", ".."]',
    r'"\u001b[2J\n\u0000"', f'"{"x" * 5000}"', "{a.b.c.d.e.f = 1}",
)  # fmt: skip


def strange_configs(text: str) -> Iterator[bytes]:
    """Each setting with each strange value."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        for value in STRANGE_SETTINGS if " = " in line else ():
            changed = [*lines[:place], f"{line.split(' = ')[0]} = {value}", *lines[place + 1 :]]
            yield "\n".join(changed).encode()


def test_settings_of_strange_values_are_refused_or_give_a_run_that_is_loaded_or_refused(run: Path) -> None:
    variants = list(strange_configs((run / CONFIG).read_text(encoding="utf-8")))
    is_read = check_all(run, CONFIG, iter(variants), read_config)
    assert len(is_read) > 500
    assert 30 < sum(is_read) < 0.3 * len(is_read)
    for content in (content for content, is_good in zip(variants, is_read, strict=True) if is_good):
        (run / CONFIG).write_bytes(content)
        with contextlib.suppress(DiasterError):
            diaster.load(run)


BOMBS = {
    "dotted name": b".".join([b"a"] * 100_000) + b" = 1",
    "dotted table": b"[" + b".".join([b"a"] * 100_000) + b"]",
    "many dotted names": b"\n".join(b".".join([b"a%d" % n, *[b"b"] * 90]) + b" = 1" for n in range(500)),
    "lists": b"steps = " + b"[" * 200_000,
    "tables": b"steps = " + b"{a = " * 50_000,
    "digits": b"steps = " + b"9" * 200_000,
    "hexadecimal digits": b"steps = 0x" + b"f" * 200_000,
    "seeds": b"seeds = 9000000000000000000",
    "many seeds": b"seeds = [" + b"1," * 50_000 + b"]",
    "many tables": b"[[a]]\n" * 40_000,
    "zeros": b"\x00" * 250_000,
    "long name": b"a" * 250_000 + b" = 1",
    "long text": b'env = "' + b"a" * 250_000 + b'"\nseeds = []',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_settings_that_are_to_exhaust_the_reader_are_refused(bomb: str, run: Path) -> None:
    (run / CONFIG).write_bytes(BOMBS[bomb])
    with little_memory(256):
        assert sentence_of(read_config, run) is not None


def strange_headers(content: bytes) -> Iterator[bytes]:
    """Each entry of a safetensors file with each strange value, and lengths that are not those of the header."""
    length = int.from_bytes(content[:8], "little")
    header, payload = json.loads(content[8 : 8 + length]), content[8 + length :]

    def made(header: Any, payload: bytes = payload) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + payload

    for wrong in (0, 1, length - 1, length + 1, len(content), 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        yield struct.pack("<Q", wrong) + content[8:]
    for text in (b"[" * 10**5, b'{"a":' * 10**5, b"{}", b"null", b"", b" " * 2 * 10**6, b'{"a": 1e999}', b'{"a": NaN}'):
        yield made(text)
    strange = {
        "dtype": ["F64", "F16", "BF16", "F8_E4M3", "I32", "U8", "BOOL", "C64", "O", "", None, 4, ["F32"]],
        "shape": [[], [-1], [2**63], [2**64], [0, 2**62], [2**31, 2**31, 4], [1] * 100, ["2"], [2.5], None, "2", {}],
        "data_offsets": [[0, 0], [0, 2**63], [2**64, 0], [-4, 0], [4, 0], [0], [0, 4, 8], None, ["0", "4"]],
    }
    for name, entry in header.items():
        yield made({**header, f"{name}.more": entry})
        yield made({key: value for key, value in header.items() if key != name})
        yield made(json.dumps(header)[:-1].encode() + f', "{name}": {json.dumps(entry)}}}'.encode())
        yield made({key + ("\x1b[2J\n" if key == name else ""): value for key, value in header.items()})
        for field, values in strange.items():
            for value in (value for value in values if value != entry[field]):
                yield made({**header, name: {**entry, field: value}})


@pytest.mark.parametrize("file", [POLICY, DECOMPOSER])
def test_tensors_of_strange_headers_are_refused(file: str, run: Path, pristine: Path) -> None:
    variants = list(strange_headers((run / file).read_bytes()))
    is_read = check_all(run, file, iter(variants), readers(pristine)[file])
    assert len(is_read) > 200
    assert sum(is_read) == 0


STRANGE_CELLS = (
    "nan", "inf", "-1", "1.5", "", " ", "x", "1e5", "9" * 30, "9" * 5000, "18446744073709551616", '"1', "1,1",
    "4294967296", "\x00", "\x1b[2J", "x" * 70_000, "1\n1", "٣",
)  # fmt: skip


def strange_tables(text: str) -> Iterator[bytes]:
    """Each cell of a row, and of the header, with each strange text."""
    lines = [line.split(",") for line in text.splitlines()]
    for row in (0, 2):
        for place in range(len(lines[0])):
            for cell in STRANGE_CELLS:
                changed = [list(line) for line in lines]
                changed[row][place] = cell
                yield "\n".join(",".join(line) for line in changed).encode()


def test_tables_of_strange_cells_are_refused_or_do_no_harm(run: Path) -> None:
    text = (run / PROGRESS).read_text(encoding="utf-8")
    is_read = check_all(run, PROGRESS, strange_tables(text), read_progress)
    assert len(is_read) > 500
    assert sum(is_read) < 0.5 * len(is_read)


@pytest.mark.parametrize(
    "rows",
    [
        ["30,3", "30,8", "30,3", "30,8"],
        ["60,3", "60,8", "30,3", "30,8"],
        ["30,3", "60,8", "90,3", "90,8"],
        ["30,3", "30,9"],
        [f"30,{seed}" for seed in range(1000)],
    ],
    ids=["steps twice", "steps back", "steps apart", "another seed", "many seeds"],
)
def test_a_table_that_no_run_of_these_settings_writes_gives_no_curve(rows: list[str], run: Path) -> None:
    header = (run / PROGRESS).read_text(encoding="utf-8").splitlines()[0]
    rest = ",1" * (header.count(",") - 1)
    (run / PROGRESS).write_text("\n".join([header, *(row + rest for row in rows)]), encoding="utf-8")
    assert sentence_of(read_progress, run) is None
    assert "is damaged" in str(sentence_of(learning_curve, run))


@pytest.mark.parametrize("value", ["inf", "-inf", "1e308"])
def test_returns_that_no_picture_can_show_give_no_curve(value: str, run: Path) -> None:
    text = (run / PROGRESS).read_text(encoding="utf-8")
    (run / PROGRESS).write_text(text.replace("45.0", value), encoding="utf-8")
    assert sentence_of(read_progress, run) is None
    assert "is damaged" in str(sentence_of(learning_curve, run))


def test_a_table_of_too_many_rows_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (run / PROGRESS).read_text(encoding="utf-8").splitlines()
    (run / PROGRESS).write_text("\n".join([lines[0], *[lines[1]] * 101]), encoding="utf-8")
    assert sentence_of(read_progress, run) is None
    monkeypatch.setattr(records, "MOST_ROWS", 100)
    assert "more than 100 rows" in str(sentence_of(read_progress, run))


@pytest.mark.parametrize("sign", [b",", b"\x00", b'"', b"\n", b"\r", b"1,"])
def test_a_table_of_one_endless_line_is_refused(sign: bytes, run: Path) -> None:
    content = (run / PROGRESS).read_bytes()
    for start in (b"", content, content[:-1]):
        (run / PROGRESS).write_bytes(start + sign * (10**6 // len(sign)))
        with little_memory(64):
            sentence = sentence_of(read_progress, run)
        assert sentence is not None or (sign in b"\r\n" and start)  # empty lines are nothing


STRANGE_JSON = (
    b"[" * 10**5, b'{"a":' * 10**5, b'{"a": 1e999}', b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1, "a": 2}', b"[]",
    b'{"a": ' + b"9" * 10**5 + b"}", b"null", b"{" + b" " * 2**20 + b"}", b"\xff\xfe{\x00}\x00", b'"\\ud800"',
)  # fmt: skip


def test_metadata_that_are_to_exhaust_the_reader_are_refused(run: Path) -> None:
    with little_memory(64):
        assert check_all(run, METADATA, iter(STRANGE_JSON), read_metadata) == [False] * len(STRANGE_JSON)


# Files that are none


@contextlib.contextmanager
def little_memory(megabytes: int) -> Iterator[None]:
    """No more memory than this is taken at any time, as Python counts it and as the machine does."""
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


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has to be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def move_out(path: Path) -> None:
    """The right file, but outside."""
    target = path.parent.parent / "outside" / path.name
    path.rename(target) if path.exists() else target.touch()
    path.symlink_to(target)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "link to a secret": lambda path: path.symlink_to("../outside/secret"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to the process": lambda path: path.symlink_to("/proc/self/environ"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a neighbour": lambda path: path.symlink_to(DONE),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": listen,
}


@pytest.mark.parametrize("kind", [*SPECIAL, "link to its own content"])
@pytest.mark.parametrize("file", FILES)
def test_what_is_no_regular_file_is_refused_without_waiting_or_looking(
    file: str, kind: str, run: Path, pristine: Path
) -> None:
    read = readers(pristine)[file]
    if kind in SPECIAL:
        (run / file).unlink()
        SPECIAL[kind](run / file)
    else:
        move_out(run / file)
    sentence = sentence_of(read, run)
    assert sentence is not None and str(run / file) in sentence
    assert "secret" not in sentence


def test_a_run_is_not_done_because_of_a_link(run: Path) -> None:
    loaded = diaster.load(run)
    assert loaded.done
    (run / DONE).unlink()
    (run / DONE).symlink_to("../outside/secret")
    assert not loaded.done


@pytest.mark.parametrize("size", [2**31, 10**11], ids=["2 GiB", "100 GB"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_of_any_size_takes_little_memory(file: str, size: int, run: Path, pristine: Path) -> None:
    read = readers(pristine)[file]
    os.truncate(run / file, size)  # the disk has nothing of it
    with little_memory(16):
        sentence = sentence_of(read, run)
    assert sentence is not None and f"{size:,} bytes" in sentence


def test_a_table_as_large_as_allowed_takes_little_more_memory_than_its_size(run: Path) -> None:
    os.truncate(run / PROGRESS, records.MOST_PROGRESS_BYTES)
    with little_memory(records.MOST_PROGRESS_BYTES // 2**20 + 64):
        assert "is damaged" in str(sentence_of(read_progress, run))


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


@pytest.mark.parametrize("file", FILES)
def test_nothing_in_a_file_is_executed(file: str, run: Path, pristine: Path) -> None:
    sprung = run.parent / "sprung"
    array = np.empty(1, object)
    array[0] = Trap(str(sprung))
    saved = io.BytesIO()
    np.save(saved, array, allow_pickle=True)
    code = f"__import__('pathlib').Path({str(sprung)!r}).touch()".encode()
    for content in (pickle.dumps(Trap(str(sprung))), saved.getvalue(), code, b"!!python/object/apply:os.system [ls]"):
        (run / file).write_bytes(content)
        assert sentence_of(readers(pristine)[file], run) is not None
    assert not sprung.exists()


# Whole runs, as users load them


def command(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), without_waiting():
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def refused(*arguments: object) -> str:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("diaster: ") and err.count("\n") == 1 and err[:-1].isprintable()
    return err


def retyped(content: bytes, change: Callable[[str, np.ndarray], np.ndarray]) -> bytes:
    arrays = safetensors.numpy.load(content)
    return safetensors.numpy.save({name: np.ascontiguousarray(change(name, array)) for name, array in arrays.items()})


def test_the_run_is_evaluated_and_plotted_as_long_as_it_is_whole_even_through_a_link(run: Path) -> None:
    link = run.parent / "link"
    link.symlink_to(run)
    assert command("evaluate", link, "--episodes", 1)[0] == 0
    assert command("plot", link, "-o", run.parent / "curve.svg")[0] == 0


CHANGES: dict[str, Callable[[str, np.ndarray], np.ndarray]] = {
    "float64": lambda name, array: array.astype(np.float64),
    "float16": lambda name, array: array.astype(np.float16),
    "integers": lambda name, array: array.astype(np.int64),
    "one seed": lambda name, array: array[:1],
    "three seeds": lambda name, array: np.concatenate([array, array[:1]]),
    "no seed": lambda name, array: array[:0],
    "flat": lambda name, array: array.reshape(-1),
    "another axis": lambda name, array: array[..., None],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("file", [POLICY, DECOMPOSER])
def test_nets_that_the_settings_do_not_imply_are_refused_when_a_run_is_loaded(
    file: str, change: str, run: Path
) -> None:
    (run / file).write_bytes(retyped((run / file).read_bytes(), CHANGES[change]))
    with pytest.raises(DiasterError, match=f"{file}' does not belong to this run's configuration: '.*' has"):
        diaster.load(run)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("file", [POLICY, DECOMPOSER])
def test_nets_without_finite_numbers_are_loaded_but_not_evaluated(file: str, value: float, run: Path) -> None:
    def spoil(name: str, array: np.ndarray) -> np.ndarray:
        spoilt = array.copy()
        if name.endswith("weight"):
            spoilt[-1] = value  # of the last seed
        return spoilt

    (run / file).write_bytes(retyped((run / file).read_bytes(), spoil))
    loaded = diaster.load(run)  # training returns the run, even if it has diverged
    if file == POLICY:
        assert np.isfinite(loaded.policy(seed=3)(np.zeros(3))).all()
        with pytest.raises(DiasterError, match="not finite"):
            loaded.policy(seed=8)
    assert f"'{run / file}' has numbers in '" in refused("evaluate", run, "--episodes", 1, "--seed", 8)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("horizon = 9223372036854775807", "horizon=9223372036854775807 is too large"),
        ("hidden = 1000000000000", "hidden=1000000000000 is too large"),
        ("hidden = 60000", "does not belong"),
        ("seeds = 1000000000", "1000000000 seeds were asked for"),
        ("seeds = [3, 8, 9]", "does not belong"),
        ("seeds = [3, 3]", "name one twice"),
        ('env = "Toy-v0\\n\\u001b[2J"', "unknown environment"),
        ('env = "../../etc/passwd"', "unknown environment"),
        ('env = ["Toy-v0"]', "'env'"),
        ('imports = ["../outside/secret"]', "cannot be imported"),
        ('imports = ["..outside"]', "cannot be imported"),
        ('imports = [""]', "cannot be imported"),
        (f'env = "Toy-v{"9" * 5000}"', "unknown environment"),
        ('method = "rrd"', "unknown setting"),
        ('agent = "dqn"', "unknown setting"),
    ],
)
def test_a_run_of_hostile_settings_is_refused_by_the_command(line: str, words: str, run: Path) -> None:
    text = (run / CONFIG).read_text(encoding="utf-8")
    name = line.split(" = ")[0]
    changed = re.sub(rf"(?m)^{name} = .*$", lambda _: line, text)
    assert changed != text
    (run / CONFIG).write_text(changed, encoding="utf-8")
    before = contents(run.parent)
    with little_memory(256):
        assert words in refused("evaluate", run, "--episodes", 1)
    assert contents(run.parent) == before


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "1 / 0", "print 1"])
def test_a_module_that_does_not_let_itself_be_imported_is_refused(
    code: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.parent / "outside" / "stubborn_module.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(run.parent / "outside")
    text = (run / CONFIG).read_text(encoding="utf-8")
    (run / CONFIG).write_text(text.replace('"toy_envs"', '"stubborn_module"'), encoding="utf-8")
    assert "'stubborn_module' cannot be imported" in refused("evaluate", run)


def test_episodes_that_no_memory_can_hold_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.run.device_memory", lambda _: 10**8)
    text = (run / CONFIG).read_text(encoding="utf-8")
    (run / CONFIG).write_text(text.replace(f"horizon = {HORIZON}", "horizon = 10000000"), encoding="utf-8")
    assert "8 episodes of horizon=10000000 need" in refused("evaluate", run)


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "folder", "link to a secret"])
@pytest.mark.parametrize("file", FILES)
def test_commands_refuse_what_is_no_regular_file(file: str, kind: str, run: Path) -> None:
    (run / file).unlink()
    SPECIAL[kind](run / file)
    arguments = ("plot", run, "-o", run.parent / "curve.png") if file == PROGRESS else ("evaluate", run)
    assert str(run / file) in refused(*arguments)


def test_a_configuration_without_end_is_refused(tmp_path: Path) -> None:
    with little_memory(64):
        assert "'/dev/zero' has more than" in refused("train", "--config", "/dev/zero", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()

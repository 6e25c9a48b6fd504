"""Run directories from a stranger: whatever they hold, it is read or refused in a sentence."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hostile_runs import (
    FILES,
    HORIZON,
    HostileRuns,
    contents,
    little_memory,
    sentence_of,
    which_are_read,
    without_waiting,
)

import diaster
from diaster.analysis.plots import learning_curve
from diaster.cli import main
from diaster.errors import DiasterError
from diaster.rundir import results
from diaster.rundir.records import CONFIG, DECOMPOSER, DONE, METADATA, POLICY, PROGRESS, read_config, read_metadata
from diaster.rundir.results import read_progress


@pytest.fixture
def run(runs: HostileRuns) -> Path:
    return runs.new()


# Content


def test_a_file_in_the_place_of_another_is_refused(runs: HostileRuns) -> None:
    for file in FILES:
        others = [(runs.pristine / other).read_bytes() for other in FILES if other != file]
        assert which_are_read(runs.new(), file, others, runs.reader(file)) == [False] * len(others), file


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


def test_settings_that_are_to_exhaust_the_reader_are_refused(run: Path) -> None:
    for bomb, content in BOMBS.items():
        (run / CONFIG).write_bytes(content)
        with little_memory(256):
            assert sentence_of(read_config, run) is not None, bomb


FALSE_STEPS = {
    "steps twice": ["30,3", "30,8", "30,3", "30,8"],
    "steps back": ["60,3", "60,8", "30,3", "30,8"],
    "steps apart": ["30,3", "60,8", "90,3", "90,8"],
    "another seed": ["30,3", "30,9"],
    "many seeds": [f"30,{seed}" for seed in range(1000)],
}


def test_a_table_that_no_run_of_these_settings_writes_gives_no_curve(run: Path) -> None:
    header = (run / PROGRESS).read_text(encoding="utf-8").splitlines()[0]
    rest = ",1" * (header.count(",") - 1)
    for what, rows in FALSE_STEPS.items():
        (run / PROGRESS).write_text("\n".join([header, *(row + rest for row in rows)]), encoding="utf-8")
        assert sentence_of(read_progress, run) is None, what
        assert "is damaged" in str(sentence_of(learning_curve, run)), what


def test_returns_that_no_picture_can_show_give_no_curve(run: Path) -> None:
    text = (run / PROGRESS).read_text(encoding="utf-8")
    for value in ("inf", "-inf", "1e308"):
        (run / PROGRESS).write_text(text.replace("45.0", value), encoding="utf-8")
        assert sentence_of(read_progress, run) is None, value
        assert "is damaged" in str(sentence_of(learning_curve, run)), value


def test_a_table_of_too_many_rows_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (run / PROGRESS).read_text(encoding="utf-8").splitlines()
    (run / PROGRESS).write_text("\n".join([lines[0], *[lines[1]] * 101]), encoding="utf-8")
    assert sentence_of(read_progress, run) is None
    monkeypatch.setattr(results, "MOST_ROWS", 100)
    assert "more than 100 rows" in str(sentence_of(read_progress, run))


def test_a_table_of_one_endless_line_is_refused(run: Path) -> None:
    content = (run / PROGRESS).read_bytes()
    for sign in (b",", b"\x00", b'"', b"\n", b"\r", b"1,"):
        for start in (b"", content, content[:-1]):
            (run / PROGRESS).write_bytes(start + sign * (10**6 // len(sign)))
            with little_memory(64):
                sentence = sentence_of(read_progress, run)
            assert sentence is not None or (sign in b"\r\n" and start), sign  # empty lines are nothing


STRANGE_JSON = (
    b"[" * 10**5, b'{"a":' * 10**5, b'{"a": 1e999}', b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1, "a": 2}', b"[]",
    b'{"a": ' + b"9" * 10**5 + b"}", b"null", b"{" + b" " * 2**20 + b"}", b"\xff\xfe{\x00}\x00", b'"\\ud800"',
)  # fmt: skip


def test_metadata_that_are_to_exhaust_the_reader_are_refused(run: Path) -> None:
    with little_memory(64):
        assert which_are_read(run, METADATA, STRANGE_JSON, read_metadata) == [False] * len(STRANGE_JSON)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_nothing_in_a_file_is_executed(runs: HostileRuns) -> None:
    for file in FILES:
        run = runs.new()
        sprung = run.parent / "sprung"
        array = np.empty(1, object)
        array[0] = Trap(str(sprung))
        saved = io.BytesIO()
        np.save(saved, array, allow_pickle=True)
        code = f"__import__('pathlib').Path({str(sprung)!r}).touch()".encode()
        pickled = pickle.dumps(Trap(str(sprung)))
        for content in (pickled, saved.getvalue(), code, b"!!python/object/apply:os.system [ls]"):
            (run / file).write_bytes(content)
            assert sentence_of(runs.reader(file), run) is not None, (file, content)
        assert not sprung.exists(), file


# Files that are none


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


def test_what_is_no_regular_file_is_refused_without_waiting_or_looking(runs: HostileRuns) -> None:
    for file in FILES:
        for kind, make in {**SPECIAL, "link to its own content": move_out}.items():
            run = runs.new()
            if kind in SPECIAL:
                (run / file).unlink()
            make(run / file)
            sentence = sentence_of(runs.reader(file), run)
            assert sentence is not None and str(run / file) in sentence, (file, kind)
            assert "secret" not in sentence, (file, kind)


def test_a_run_is_not_done_because_of_a_link(run: Path) -> None:
    loaded = diaster.load(run)
    assert loaded.done
    (run / DONE).unlink()
    (run / DONE).symlink_to("../outside/secret")
    assert not loaded.done


def test_a_file_of_any_size_takes_little_memory(runs: HostileRuns) -> None:
    for file in FILES:
        read = runs.reader(file)
        for size in (2**31, 10**11):
            run = runs.new()
            os.truncate(run / file, size)  # the disk has nothing of it
            with little_memory(16):
                sentence = sentence_of(read, run)
            assert sentence is not None and f"{size:,} bytes" in sentence, (file, size)


def test_a_table_as_large_as_allowed_takes_little_more_memory_than_its_size(run: Path) -> None:
    os.truncate(run / PROGRESS, results.MOST_PROGRESS_BYTES)
    with little_memory(results.MOST_PROGRESS_BYTES // 2**20 + 64):
        assert "is damaged" in str(sentence_of(read_progress, run))


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


def test_nets_that_the_settings_do_not_imply_are_refused_when_a_run_is_loaded(runs: HostileRuns) -> None:
    for file in (POLICY, DECOMPOSER):
        for what, change in CHANGES.items():
            run = runs.new()
            (run / file).write_bytes(retyped((run / file).read_bytes(), change))
            with pytest.raises(DiasterError, match=f"{file}' does not belong to this run's configuration: '.*' has"):
                pytest.fail(f"{file} of {what} was loaded: {diaster.load(run)}")


def test_nets_without_finite_numbers_are_loaded_but_not_evaluated(runs: HostileRuns) -> None:
    def spoil(name: str, array: np.ndarray) -> np.ndarray:
        spoilt = array.copy()
        if name.endswith("weight"):
            spoilt[-1] = value  # of the last seed
        return spoilt

    for file in (POLICY, DECOMPOSER):
        for value in (np.nan, np.inf):
            run = runs.new()
            (run / file).write_bytes(retyped((run / file).read_bytes(), spoil))
            loaded = diaster.load(run)  # training returns the run, even if it has diverged
            if file == POLICY:
                assert np.isfinite(loaded.policy(seed=3)(np.zeros(3))).all()
                with pytest.raises(DiasterError, match="not finite"):
                    loaded.policy(seed=8)
            sentence = refused("evaluate", run, "--episodes", 1, "--seed", 8)
            assert f"'{run / file}' has numbers in '" in sentence, value


HOSTILE_SETTINGS = [  # a line of the settings, what it becomes, and what is said of it
    (r"horizon = .*", "horizon = 9223372036854775807", "horizon=9223372036854775807 is too large"),
    (r"hidden = .*", "hidden = 1000000000000", "hidden=1000000000000 is too large"),
    (r"hidden = .*", "hidden = 60000", "does not belong"),
    (r"seeds = .*", "seeds = 1000000000", "1000000000 seeds were asked for"),
    (r"seeds = .*", "seeds = [3, 8, 9]", "does not belong"),
    (r"seeds = .*", "seeds = [3, 3]", "name one twice"),
    (r"env = .*", 'env = "Toy-v0\\n\\u001b[2J"', "unknown environment"),
    (r"env = .*", 'env = "../../etc/passwd"', "unknown environment"),
    (r"env = .*", 'env = ["Toy-v0"]', "'env'"),
    (r"env = .*", f'env = "Toy-v{"9" * 5000}"', "unknown environment"),
    (r"imports = .*", 'imports = ["../outside/secret"]', "cannot be imported"),
    (r"imports = .*", 'imports = ["..outside"]', "cannot be imported"),
    (r"imports = .*", 'imports = [""]', "cannot be imported"),
    (r'name = "diaster"', 'name = "rrd"', "unknown setting"),
    (r'name = "xqc"', 'name = "dqn"', "unknown setting"),
    (r'name = "xqc"', 'name = "../sac"', "unknown agent"),
]


def test_a_run_of_hostile_settings_is_refused_by_the_command(run: Path) -> None:
    text = (run / CONFIG).read_text(encoding="utf-8")
    for line, hostile, words in HOSTILE_SETTINGS:
        changed = re.sub(f"(?m)^{line}$", lambda _, hostile=hostile: hostile, text)  # type: ignore[misc]
        assert changed != text, line
        (run / CONFIG).write_text(changed, encoding="utf-8")
        before = contents(run.parent)
        with little_memory(256):
            assert words in refused("evaluate", run, "--episodes", 1, "--trust"), hostile
        assert contents(run.parent) == before, hostile


def test_a_module_that_does_not_let_itself_be_imported_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(run.parent / "outside")
    text = (run / CONFIG).read_text(encoding="utf-8")
    for number, code in enumerate(("raise SystemExit(0)", "1 / 0", "print 1")):
        module = f"stubborn_module_{number}"
        (run.parent / "outside" / f"{module}.py").write_text(code, encoding="utf-8")
        (run / CONFIG).write_text(text.replace('"toy_envs"', f'"{module}"'), encoding="utf-8")
        assert f"'{module}' cannot be imported" in refused("evaluate", run, "--trust"), code


def test_episodes_that_no_memory_can_hold_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.run.device_memory", lambda _: 10**8)
    text = (run / CONFIG).read_text(encoding="utf-8")
    (run / CONFIG).write_text(text.replace(f"horizon = {HORIZON}", "horizon = 10000000"), encoding="utf-8")
    assert "8 episodes of horizon=10000000 need" in refused("evaluate", run)


def test_commands_refuse_what_is_no_regular_file(runs: HostileRuns) -> None:
    for file in FILES:
        for kind in ("pipe", "link to a device", "folder", "link to a secret"):
            run = runs.new()
            (run / file).unlink()
            SPECIAL[kind](run / file)
            arguments = ("plot", run, "-o", run.parent / "curve.png") if file == PROGRESS else ("evaluate", run)
            assert str(run / file) in refused(*arguments), (file, kind)


def test_a_configuration_without_end_is_refused(tmp_path: Path) -> None:
    with little_memory(64):
        assert "'/dev/zero' has more than" in refused("train", "--config", "/dev/zero", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""Files that are read: regular, in their place, of a bounded size, and nothing else; and how they are written."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from diaster.errors import DiasterError
from diaster.rundir.files import (
    MOST_HEADER_BYTES,
    MissingFileError,
    check_tensors,
    is_file,
    read_bytes,
    read_json,
    read_tensors,
    tensor_bytes,
    write_atomically,
    written_in_pieces,
)

WEIGHT, STEPS = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2], np.int32)
TENSORS = {"weight": WEIGHT, "steps": STEPS}
FORMS = {name: (array.shape, array.dtype) for name, array in TENSORS.items()}


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(DiasterError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def safetensors_bytes(header: Any, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# Bytes


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    for content in (b"", b"four", b"\x00" * 5000):
        assert read_bytes(written(tmp_path / "file", content), len(content)) == content


def test_a_file_of_one_byte_too_many_is_refused_with_its_size_and_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path / "file", b"x" * 5001)
    sentence = refusal(read_bytes, path, 5000)
    assert f"'{path}' has 5,001 bytes, and at most 5,000 are allowed" in sentence


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "file", b"old")
    seen = os.fstat

    def grow(handle: int) -> os.stat_result:
        result = seen(handle)
        path.write_bytes(b"x" * 10_000)
        return result

    monkeypatch.setattr(os, "fstat", grow)
    assert "changed while it was read" in refusal(read_bytes, path, 5000)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "none", written(tmp_path / "file", b"") / "below"):
        with pytest.raises(MissingFileError, match="does not exist"):
            read_bytes(path, 10)


def link(path: Path) -> None:
    path.symlink_to(written(path.parent / "target", b"secret"))


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has to be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "link": (link, "a link"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a link"),
    "broken link": (lambda path: path.symlink_to("nowhere"), "a link"),
    "link to itself": (lambda path: path.symlink_to(path), "a link"),
    "folder": (Path.mkdir, "a folder"),
    "pipe": (os.mkfifo, "a pipe"),
    "socket": (listen, "a socket"),
}


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    for what, (make, kind) in SPECIAL.items():
        path = tmp_path / what
        make(path)
        sentence = refusal(read_bytes, path, 1000)
        assert f"'{path}' is " in sentence and kind in sentence, what
        assert not is_file(path), what


def test_a_pipe_that_takes_the_place_of_a_file_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.lstat(written(tmp_path / "file", b""))
    monkeypatch.setattr(Path, "lstat", lambda _: before)
    assert "a pipe" in refusal(read_bytes, tmp_path / "pipe", 1000)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read_is_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "file", b"x")
    path.chmod(0)
    assert "Permission denied" in refusal(read_bytes, path, 10)


def test_a_run_directory_may_be_reached_through_a_link_but_a_folder_in_it_may_not(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "real"
    for folder in (outside, run, run / "inner"):
        folder.mkdir()
    written(outside / "file", b"secret")
    written(run / "inner" / "file", b"own")
    (run / "leak").symlink_to(outside)
    reached = tmp_path / "run"
    reached.symlink_to(run)
    assert read_bytes(reached / "inner" / "file", 10, reached) == b"own"
    assert f"'{reached / 'leak'}' is a link" in refusal(read_bytes, reached / "leak" / "file", 10, reached)


def test_a_way_out_of_a_run_directory_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    written(tmp_path / "outside", b"secret")
    for way in ("../outside", "inner/../../outside", "/outside", "."):
        assert "leads out of" in refusal(read_bytes, run / way, 10, run), way


# JSON


def test_a_json_object_is_read(tmp_path: Path) -> None:
    assert read_json(written(tmp_path / "file", '{"a": [1, 2.5, "ä", null]}'.encode()), 100) == {
        "a": [1, 2.5, "ä", None]
    }


BAD_JSON = {
    b"": "not valid JSON",
    b"\xff": "not valid JSON",
    b"[1]": "no JSON object",
    b"null": "no JSON object",
    b'{"a": NaN}': "NaN",
    b'{"a": -Infinity}': "-Infinity",
    b'{"a": 1e999}': "1e999",
    b'{"a": ' + b"9" * 5000 + b"}": "not valid JSON",
    b"[" * 100_000: "nested too deeply",
    b'{"a":' * 100_000: "nested too deeply",
    b'{"a": ' + b"[" * 50 + b"1" + b"]" * 50 + b"}": "nested too deeply",
    b'{"a": 1, "a": 2}': "one name twice",
}


def test_json_that_is_no_object_of_finite_numbers_is_a_sentence(tmp_path: Path) -> None:
    for content, words in BAD_JSON.items():
        path = written(tmp_path / "file", content)
        sentence = refusal(read_json, path, 10**6)
        assert sentence.startswith(f"'{path}' is damaged: ") and words in sentence, content[:50]


def test_json_may_be_nested_as_deeply_as_anybody_writes_it(tmp_path: Path) -> None:
    content = b'{"a": ' + b"[" * 40 + b"1" + b"]" * 40 + b"}"
    assert read_json(written(tmp_path / "file", content), 1000)["a"][0]


def test_json_may_hold_nan_where_that_is_asked_for(tmp_path: Path) -> None:
    found = read_json(written(tmp_path / "file", b'{"a": NaN, "b": Infinity}'), 100, allow_nan=True)
    assert np.isnan(found["a"]) and found["b"] == np.inf


# Tensors


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "file", safetensors.numpy.save(TENSORS))
    found = read_tensors(path, tensor_bytes(FORMS))
    check_tensors(found, FORMS, path, finite=True)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(found[name], array)


DAMAGED_TENSORS = {
    "nothing": b"",
    "no length": b"1234567",
    "a header of 2^63 bytes": safetensors_bytes({}, length=2**63),
    "a header of 2^64 - 1 bytes": safetensors_bytes({}, length=2**64 - 1),
    "a header that is cut off": safetensors_bytes({}, length=3),
    "a header that is too long": safetensors_bytes(b" " * (MOST_HEADER_BYTES + 1)),
    "a list": safetensors_bytes([]),
    "no JSON": safetensors_bytes(b"["),
    "brackets": safetensors_bytes(b"[" * 100_000),
    "no entry": safetensors_bytes({"a": 1}),
    "no numbers": safetensors_bytes({"a": entry()}),
    "too many numbers": safetensors_bytes({"a": entry()}, b"12345"),
    "offsets in the wrong order": safetensors_bytes({"a": entry(offsets=(4, 0))}, b"1234"),
    "offsets out of range": safetensors_bytes({"a": entry(offsets=(0, 2**64))}, b"1234"),
    "offsets below zero": safetensors_bytes({"a": entry(offsets=(-4, 0))}, b"1234"),
    "offsets with a hole": safetensors_bytes({"a": entry(offsets=(4, 8))}, b"12345678"),
    "offsets that overlap": safetensors_bytes({"a": entry(), "b": entry()}, b"1234"),
    "a negative shape": safetensors_bytes({"a": entry(shape=(-1,))}, b"1234"),
    "a huge shape": safetensors_bytes({"a": entry(shape=(2**62, 4))}, b"1234"),
    "a huge shape of nothing": safetensors_bytes({"a": entry(shape=(0, 2**62), offsets=(0, 0))}),
    "a shape of more than 64 bits": safetensors_bytes({"a": entry(shape=(0, 2**63), offsets=(0, 0))}),
    "a hundred axes": safetensors_bytes({"a": entry(shape=(1,) * 100)}, b"1234"),
    "a shape of text": safetensors_bytes({"a": entry(shape=("1",))}, b"1234"),
    "numbers that NumPy has not": safetensors_bytes({"a": entry(dtype="BF16", shape=(2,))}, b"1234"),
    "objects": safetensors_bytes({"a": entry(dtype="O")}, b"1234"),
    "one name twice": safetensors_bytes(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), b"1234"),
}


def test_tensors_that_are_damaged_are_a_sentence(tmp_path: Path) -> None:
    for what, content in DAMAGED_TENSORS.items():
        path = written(tmp_path / "file", content)
        assert refusal(read_tensors, path, 2**24).startswith(f"'{path}' is damaged: "), what


OTHER_TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"weight": WEIGHT}, "'steps' is missing"),
    ({**TENSORS, "more": WEIGHT}, "'more' is no part of it"),
    ({**TENSORS, "weight": WEIGHT.T}, "'weight' has float32 [3, 2], and float32 [2, 3] is expected"),
    ({**TENSORS, "weight": WEIGHT.astype(np.float64)}, "'weight' has float64 [2, 3], and float32 [2, 3]"),
    ({**TENSORS, "steps": STEPS.astype(np.int64)}, "'steps' has int64 [2], and int32 [2] is expected"),
    ({**TENSORS, "weight": WEIGHT + np.float32("nan")}, "'weight' that are not finite"),
    ({**TENSORS, "weight": WEIGHT - np.float32("inf")}, "'weight' that are not finite"),
]


def test_tensors_that_are_not_those_expected_are_a_sentence(tmp_path: Path) -> None:
    for found, words in OTHER_TENSORS:
        assert words in refusal(check_tensors, found, FORMS, tmp_path / "file", finite=True)


def test_numbers_that_are_not_finite_pass_where_nobody_minds(tmp_path: Path) -> None:
    check_tensors({**TENSORS, "weight": WEIGHT + np.float32("nan")}, FORMS, tmp_path / "file", finite=False)


# Writing


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets it for the time of a test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_the_umask_decides_who_may_read_a_file(tmp_path: Path, umask: Callable[[int], int]) -> None:
    for mask, mode in ((0o077, 0o600), (0o002, 0o664), (0o022, 0o644)):
        umask(mask)
        write_atomically(tmp_path / "file", b"new")
        assert oct((tmp_path / "file").stat().st_mode & 0o777) == oct(mode), oct(mask)


def test_an_unfinished_write_has_the_name_of_its_file_between_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.extend(item.name for item in tmp_path.iterdir()))
    write_atomically(tmp_path / "some.file", b"new")
    assert re.fullmatch(r"\.some\.file\.[^.]+", seen[0])  # what clean-up recognises


def test_a_name_that_is_taken_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["taken", "taken", "free"])
    link(tmp_path / ".file.taken")
    monkeypatch.setattr("diaster.rundir.files.secrets.token_hex", lambda _: next(names))
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "target").read_bytes() == b"secret"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for part in ("fsync", "replace"):
        for old in (None, b"old"):
            path = tmp_path / f"{part}-{old}" / "file"
            path.parent.mkdir()
            if old is not None:
                path.write_bytes(old)
            with monkeypatch.context() as patch:
                patch.setattr(os, part, fail)
                sentence = refusal(write_atomically, path, b"new")
            assert sentence == f"'{path}' cannot be written: No space left on device."
            left = {item.name: item.read_bytes() for item in path.parent.iterdir()}
            assert left == ({} if old is None else {"file": old}), (part, old)


def test_a_write_that_is_interrupted_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_write_into_a_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    assert "cannot be written" in refusal(write_atomically, tmp_path / "gone" / "file", b"new")


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    link(tmp_path / "file")
    write_atomically(tmp_path / "file", b"new")
    assert is_file(tmp_path / "file") and (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "target").read_bytes() == b"secret"


def test_a_file_and_then_its_folder_are_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, list[str]]] = []
    sync = os.fsync

    def note(handle: int) -> None:
        is_folder = os.path.samestat(os.fstat(handle), tmp_path.stat())
        synced.append((is_folder, [item.name for item in tmp_path.iterdir() if item.name == "file"]))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(tmp_path / "file", b"new")
    assert synced == [(False, []), (True, ["file"])]


def test_a_folder_that_cannot_be_synced_is_no_error_but_a_broken_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fail(handle: int) -> None:
        if os.path.samestat(os.fstat(handle), tmp_path.stat()):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    number = errno.EINVAL
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    number = errno.EIO
    assert "cannot be written" in refusal(write_atomically, tmp_path / "file", b"newer")


def test_a_file_that_is_written_in_pieces_comes_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with written_in_pieces(tmp_path / "file") as temporary:
        temporary.write_bytes(b"new")
        assert (tmp_path / "file").read_bytes() == b"old"
    assert (tmp_path / "file").read_bytes() == b"new" and [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_file_whose_pieces_were_not_all_written_is_none(tmp_path: Path) -> None:
    def cut_off(error: Exception) -> None:
        with written_in_pieces(tmp_path / "file") as temporary:
            temporary.write_bytes(b"ne")
            raise error

    with pytest.raises(KeyError):
        cut_off(KeyError("x"))
    assert "No space left on device" in refusal(cut_off, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(DiasterError, match="cannot be written"), written_in_pieces(tmp_path / "gone" / "file"):
        pass

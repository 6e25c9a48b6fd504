"""Single files damaged by chance and by tables of strange values: every variant is read or refused in a sentence.

The suite takes a sample, the same each time. `make fuzz` takes all of the tables and many more random damages:
DIASTER_FUZZ is the number of damages of each file.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from damage import damaged_bytes
from hostile_runs import FILES, HostileRuns, which_are_read

import diaster
from diaster.errors import DiasterError
from diaster.rundir.records import CONFIG, DECOMPOSER, POLICY, PROGRESS, read_config
from diaster.rundir.results import read_progress

FUZZ = int(os.environ.get("DIASTER_FUZZ", "0"))
MUTANTS = FUZZ or 60  # of each file
SAMPLE = 100  # of each table


def sampled(variants: Sequence[bytes]) -> Sequence[bytes]:
    if FUZZ or len(variants) <= SAMPLE:
        return variants
    return [variants[n] for n in np.random.default_rng(0).choice(len(variants), SAMPLE, replace=False)]


# Damage by chance


def mutants(content: bytes, seed: int) -> Iterator[bytes]:
    """The same ones each time."""
    random = np.random.default_rng(seed)
    for _ in range(MUTANTS):
        yield damaged_bytes(content, random)


def test_a_file_that_is_damaged_by_chance_is_read_or_refused_in_a_sentence(runs: HostileRuns) -> None:
    for seed, file in enumerate(FILES):
        run = runs.new()
        is_read = which_are_read(run, file, mutants((run / file).read_bytes(), seed), runs.reader(file))
        assert len(is_read) == MUTANTS
        assert not all(is_read), file


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


def test_settings_of_strange_values_are_refused_or_give_a_run_that_is_loaded_or_refused(runs: HostileRuns) -> None:
    run = runs.new()
    every = list(strange_configs((run / CONFIG).read_text(encoding="utf-8")))
    assert len(every) > 500
    variants = sampled(every)
    is_read = which_are_read(run, CONFIG, variants, read_config)
    assert 0 < sum(is_read) < 0.4 * len(is_read)  # of all there are, one in twenty is a setting one can have
    for content in (content for content, is_good in zip(variants, is_read, strict=True) if is_good):
        (run / CONFIG).write_bytes(content)
        with contextlib.suppress(DiasterError):
            diaster.load(run)


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


def test_tensors_of_strange_headers_are_refused(runs: HostileRuns) -> None:
    for file in (POLICY, DECOMPOSER):
        run = runs.new()
        every = list(strange_headers((run / file).read_bytes()))
        assert len(every) > 200
        assert not any(which_are_read(run, file, sampled(every), runs.reader(file))), file


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


def test_tables_of_strange_cells_are_refused_or_do_no_harm(runs: HostileRuns) -> None:
    run = runs.new()
    every = list(strange_tables((run / PROGRESS).read_text(encoding="utf-8")))
    assert len(every) > 500
    is_read = which_are_read(run, PROGRESS, sampled(every), read_progress)
    assert 0 < sum(is_read) < 0.6 * len(is_read)

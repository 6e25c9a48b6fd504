"""Damage to bytes and to values, by chance: the same random numbers give the same damage."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import numpy as np

# Bytes


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


def damaged_bytes(content: bytes, random: np.random.Generator) -> bytes:
    """One to three damages of random kinds in random places."""
    changed = bytearray(content)
    for _ in range(random.integers(1, 4)):
        if changed:
            DAMAGES[random.integers(len(DAMAGES))](changed, random)
    return bytes(changed)


# Values: of JSON, and of TOML as far as it has them

DEEP: Any = 1
for _ in range(60):
    DEEP = [DEEP]
STRANGE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 1.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    -(2**63), 10**30, "", "x", "nan", "inf", "-inf", "0", "../../outside/secret", "/dev/zero", "x" * 3000,
    "\x1b[2J\n\x00", "\ud800", [], [[]], [0], [1, 1], [None], {}, {"": 0}, {"a": {"b": [1, {"c": "d"}]}}, DEEP,
)  # fmt: skip


def damaged_value(value: Any, random: np.random.Generator) -> Any:
    """A copy in which something has another value, is missing, is there twice or is nested more deeply."""
    root = [copy.deepcopy(value)]
    holder, key = root, 0
    while isinstance(holder[key], dict | list) and holder[key] and (holder is root or random.random() < 0.85):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[int(random.integers(len(keys)))]
    found = holder[key]
    match random.integers(10):
        case 0 if holder is not root:
            del holder[key]
        case 1 if isinstance(holder, list) and holder is not root:
            holder.insert(key, copy.deepcopy(found))
        case 1 if isinstance(holder, dict):
            holder[strange_name(random)] = found
        case 2:
            holder[key] = [found]
        case 3:
            holder[key] = str(found)
        case 4 | 5 | 6 if type(found) in (int, float):
            changes = (-found, found + 1, found - 1, found * 1000, found + 0.5, float(found), 10**12 * (found + 1))
            holder[key] = changes[random.integers(len(changes))]
        case 4 | 5 if isinstance(found, list) and found:
            holder[key] = (found[:-1], found + found, found[::-1], found * 1000)[random.integers(4)]
        case _:
            holder[key] = copy.deepcopy(STRANGE_VALUES[random.integers(len(STRANGE_VALUES))])
    return root[0]


def strange_name(random: np.random.Generator) -> str:
    return ("", "x", "__proto__", "name", "seeds", "1", "-1", "a.b", "\x1b[2J")[random.integers(9)]


def to_toml(table: dict[str, Any]) -> str:
    """Tables of the first level with heads, all below them inline; what TOML lacks is written as if it had it."""
    plain = [f"{json.dumps(name)} = {_inline(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, value in table.items():
        if isinstance(value, dict):
            plain += [f"[{json.dumps(name)}]", *(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items())]
    return "\n".join(plain) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_inline(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)

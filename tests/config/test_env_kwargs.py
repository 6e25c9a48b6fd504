"""Arguments of an environment: on the command line, in files and in calls, and back as they were."""

from __future__ import annotations

import datetime
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from all_settings import refusal, settings_file

from diaster.config import build_config, is_placeholder, task_name, unkept, write_toml
from diaster.config.env_kwargs import as_kept, as_scalar, as_typed, overlaid, take_env_kwargs
from diaster.errors import DiasterError

KEPT: dict[str, Any] = {
    "text": 'a "b" \\ é\n\x7f',
    "empty": "",
    "whole": 3,
    "number": 0.1,
    "as_a_number": 1.0,
    "infinite": -math.inf,
    "no_number": math.nan,
    "yes": True,
    "long": [0.5] * 500,
    "map": [[1, 1, 1], [1, "r", 1]],
    "nothing": [],
    "table": {"deep": {"deeper": [1, 2]}, "odd key": 1},
}


def read_back(tmp_path: Path, kwargs: dict[str, Any]) -> dict[str, Any]:
    text = write_toml(build_config(env="Toy-v0", env_kwargs=kwargs))
    return build_config(file=settings_file(tmp_path, text)).env_kwargs


@pytest.mark.parametrize("name", KEPT)
def test_a_value_comes_back_from_a_file_as_it_was(tmp_path: Path, name: str) -> None:
    assert unkept({name: KEPT[name]}) == []
    assert repr(read_back(tmp_path, {name: KEPT[name]})) == repr({name: KEPT[name]})


def test_all_values_come_back_together(tmp_path: Path) -> None:
    assert repr(read_back(tmp_path, KEPT)) == repr(KEPT)


def test_tuples_and_numbers_of_numpy_are_kept_as_lists_and_numbers_of_python() -> None:
    given = {"a": (1, (2.5,)), "b": np.float32(0.5), "c": np.int64(3), "d": np.bool_(True), "e": {"f": (np.int8(1),)}}
    kept = as_kept(given)
    assert kept == {"a": [1, [2.5]], "b": 0.5, "c": 3, "d": True, "e": {"f": [1]}}
    assert [type(kept[name]) for name in "bcd"] == [float, int, bool]
    assert unkept(kept) == []


@pytest.mark.parametrize(
    "value",
    [None, object(), print, {1, 2}, np.zeros(2), 2**64, b"bytes", "\ud800", "." * 200, [None], {"a": None}, Path("a")],
)
def test_what_no_file_can_hold_is_named(value: Any) -> None:
    assert unkept({"fine": 1, "bad": value}) == ["bad"]
    said = refusal(lambda: build_config(env="Toy-v0", env_kwargs={"fine": 1, "bad": value}))
    assert "'env_kwargs' in the call has bad, which a file of settings cannot hold" in said


def test_a_value_that_is_nested_too_deeply_is_named() -> None:
    value: Any = 1
    for _ in range(20):
        value = [value]
    assert unkept({"deep": value}) == ["deep"]


def test_arguments_are_a_table() -> None:
    assert "'env_kwargs' in the call is 3" in refusal(lambda: build_config(env="Toy-v0", env_kwargs=3))


def test_a_run_without_arguments_has_no_table_of_them() -> None:
    assert "env_kwargs" not in write_toml(build_config(env="Toy-v0"))


def test_settings_with_arguments_can_be_looked_up_and_sent() -> None:
    config = build_config(env="Toy-v0", env_kwargs={"a": [1]})
    assert {config: 1}[build_config(env="Toy-v0", env_kwargs={"a": [1]})] == 1
    assert config != build_config(env="Toy-v0", env_kwargs={"a": [2]})
    assert pickle.loads(pickle.dumps(config)) == config


def test_arguments_of_a_call_go_before_those_of_a_file_one_by_one(tmp_path: Path) -> None:
    file = settings_file(tmp_path, 'env = "Toy-v0"\n[env_kwargs]\na = 1\nb = { c = 2, d = 3 }\n')
    assert build_config(file=file, env_kwargs={"e": 4, "b": {"c": 5}}).env_kwargs == {
        "a": 1,
        "b": {"c": 5, "d": 3},
        "e": 4,
    }


def test_overlaid_leaves_both_as_they_are() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert overlaid(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})


# The command line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-0.5", -0.5), ("1e-3", 1e-3), ("inf", math.inf), ("true", True), ("false", False),
        ("True", True), ("False", False), ("hard", "hard"), ("8x8", "8x8"), ('"3"', "3"), ("[1, 2.5]", [1, 2.5]),
        ('["SF", "HG"]', ["SF", "HG"]), ("", ""), ("a = 1", "a = 1"), ("1\nb = 2", "1\nb = 2"), ("[1", "[1"),
        ("2026-01-01", "2026-01-01"), ("99999999999999999999", "99999999999999999999"),
    ],
)  # fmt: skip
def test_a_value_is_read_as_in_a_file_and_all_else_is_a_text(text: str, value: Any) -> None:
    found = as_scalar(text)
    assert (found, type(found)) == (value, type(value))
    assert not isinstance(found, datetime.date)


@pytest.mark.parametrize("value", [*KEPT.values(), "None", "True", "3", "8x8", "  two  spaces ", ["  a  "], "[1]"])
def test_a_value_can_be_typed(value: Any) -> None:
    assert repr(as_scalar(as_typed(value))) == repr(value)


def test_none_is_refused_with_a_way_to_say_it() -> None:
    with pytest.raises(DiasterError, match=r"None is nothing that a file.*lambda"):
        as_scalar("None")


def test_arguments_are_taken_off_the_line_wherever_they_stand() -> None:
    line = ["Toy-v0", "--env-kwargs.map-name", "8x8", "--steps", "3", "--env-kwargs.a.b=-1", "--env_kwargs.a.c", "x=y"]
    assert take_env_kwargs(line) == (["Toy-v0", "--steps", "3"], {"map_name": "8x8", "a": {"b": -1, "c": "x=y"}})


@pytest.mark.parametrize(
    "line",
    [
        ["--env-kwargs.a"],
        ["--env-kwargs.a", "--steps", "800"],
        ["--env-kwargs."],
        ["--env-kwargs.", "1"],
        ["--env-kwargs.a..b", "1"],
    ],
)
def test_an_argument_without_a_name_or_a_value_is_refused(line: list[str]) -> None:
    with pytest.raises(DiasterError, match=r"needs a name and a value, e\.g\. --env-kwargs\.difficulty hard"):
        take_env_kwargs(line)


# Names


def test_runs_with_other_arguments_are_other_tasks() -> None:
    names = [
        task_name(build_config(env="Lake-v1", env_kwargs=kwargs))
        for kwargs in ({}, {"map_name": "8x8"}, {"map_name": "8x8", "is_slippery": False}, {"rows": [["a" * 200]]})
    ]
    assert names[:3] == ["Lake-v1", "Lake-v1 (map_name=8x8)", "Lake-v1 (map_name=8x8, is_slippery=false)"]
    assert all("\n" not in name for name in names)


def test_a_placeholder_is_no_id_and_no_module() -> None:
    assert is_placeholder("<MyEnv>")
    assert not any(map(is_placeholder, ("Hopper-v5", "module:Env-v0", "<MyEnv", "")))

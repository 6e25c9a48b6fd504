"""The device, its memory, and what a record says of them."""

from __future__ import annotations

import json

import jax
import pytest

from diaster.config import build_config
from diaster.errors import DiasterError
from diaster.learning import machine
from diaster.replay.store import store_bytes
from diaster.types import EnvSpec

SPEC = EnvSpec("x", 100, 10, None, None, (10,), 10)  # type: ignore[arg-type]


def test_a_replay_that_fills_nine_tenths_of_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(env="x", seeds=2)
    needed = 2 * store_bytes(1000, 100, 10)
    monkeypatch.setattr(machine, "device_memory", lambda device: int(needed / 0.8))
    machine.check_memory(config, SPEC, 1000, jax.devices("cpu"))
    monkeypatch.setattr(machine, "device_memory", lambda device: int(needed / 0.95))
    with pytest.raises(DiasterError, match="replay needs"):
        machine.check_memory(config, SPEC, 1000, jax.devices("cpu"))


def test_a_machine_that_does_not_tell_its_memory_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "device_memory", lambda device: None)
    machine.check_memory(build_config(env="x"), SPEC, 10**12, jax.devices("cpu"))


def test_what_differs_between_two_machines_is_named_and_what_is_no_record_is_passed_over() -> None:
    here = {"cores": 2, "platform": "cpu", "device": "cpu", "versions": {"jax": "1", "numpy": "2"}, "started": "today"}
    assert machine.differences(here, here) == []
    there = {**here, "device": "H200", "versions": {"jax": "1", "numpy": "3", "mujoco": "4"}, "started": "before"}
    assert machine.differences(there, here) == ["device H200 (now cpu)", "numpy 3 (now 2)", "mujoco 4 (now none)"]
    assert machine.differences({"cores": [2], "versions": "all"}, here) == ["cores [2] (now 2)"]


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert machine.describe_machine(jax.devices("cpu")[0])["cores"] == 3


def test_the_record_of_a_machine_is_json_and_names_versions_and_device() -> None:
    record = json.loads(json.dumps(machine.describe_machine(jax.devices("cpu")[0])))
    assert {"python", "jax", "numpy", "gymnasium"} <= set(record["versions"])
    assert record["platform"] == "cpu"


def test_flags_and_generators_that_change_bytes_are_named_unless_an_older_record_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = jax.devices("cpu")[0]
    monkeypatch.delenv("XLA_FLAGS")
    before = machine.describe_machine(device)
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1   --xla_b=2 ")
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):  # type: ignore[attr-defined]
        now = machine.describe_machine(device)
    assert machine.differences(before, now) == [
        "XLA_FLAGS none (now --xla_a=1 --xla_b=2)",
        "jax_threefry_partitionable True (now False)",
    ]
    older = {name: value for name, value in before.items() if name not in machine.SURROUNDINGS}
    assert machine.differences(older, now) == []

"""Slots of cores and GPUs: alike for all cells, and the same whatever else is running."""

from __future__ import annotations

from pathlib import Path

import pytest

from diaster.errors import DiasterError
from diaster.sweep.resources import Machine, Slot, Wishes, find_gpu_names, find_machine, make_slots

EIGHT = Machine(tuple(range(8)), (), None)
TWO_GPUS = Machine(tuple(range(16)), ("0", "1"), None)


def test_cores_are_shared_out_evenly() -> None:
    for wishes, n_cells, n_slots, n_cores in (
        (Wishes(), 100, 8, 1),
        (Wishes(), 3, 3, 2),
        (Wishes(), 1, 1, 8),
        (Wishes(cpus=4), 100, 2, 4),
        (Wishes(cpus=16), 100, 1, 8),
        (Wishes(jobs=2), 100, 2, 4),
        (Wishes(jobs=3, cpus=1), 100, 3, 1),
        (Wishes(jobs=12), 100, 12, 1),
    ):
        slots = make_slots(EIGHT, wishes, n_cells, any_gpu=False)
        assert [len(slot.cores) for slot in slots] == [n_cores] * n_slots, wishes
        if n_slots * n_cores <= 8:
            assert len({core for slot in slots for core in slot.cores}) == n_slots * n_cores, wishes


def test_every_cell_has_a_gpu_to_itself_unless_asked_otherwise() -> None:
    slots = make_slots(TWO_GPUS, Wishes(), 100, any_gpu=True)
    assert [(slot.gpu, slot.gpu_share, len(slot.cores)) for slot in slots] == [("0", 1.0, 8), ("1", 1.0, 8)]
    assert slots[1].variables(uses_gpu=True) == {"NPROC": "8", "CUDA_VISIBLE_DEVICES": "1"}
    shared = make_slots(TWO_GPUS, Wishes(gpus=0.5), 100, any_gpu=True)
    assert [slot.gpu for slot in shared] == ["0", "1", "0", "1"]
    expected = {"NPROC": "4", "CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}
    assert shared[2].variables(uses_gpu=True) == expected
    assert [slot.gpu_share for slot in make_slots(TWO_GPUS, Wishes(jobs=4), 100, any_gpu=True)] == [0.5] * 4


def test_a_cell_that_learns_on_the_cpu_does_not_take_a_gpus_memory() -> None:
    [slot, *_] = make_slots(TWO_GPUS, Wishes(gpus=0), 100, any_gpu=False)
    assert slot.gpu is None
    assert slot.variables(uses_gpu=False) == {"NPROC": "1", "JAX_PLATFORMS": "cpu"}
    assert Slot((0,)).variables(uses_gpu=False) == {"NPROC": "1"}  # there is none to hide


def test_what_no_machine_can_give_is_refused() -> None:
    for name, value in (("jobs", 0), ("cpus", -1), ("gpus", 1.5), ("gpus", float("nan"))):
        with pytest.raises(DiasterError, match=f"--{name} is {value}"):
            make_slots(EIGHT, Wishes(**{name: value}), 3, any_gpu=False)


def test_gpus_have_the_names_that_runs_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpu_names() == frozenset()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert find_gpu_names() == {"NVIDIA H200"}


def test_this_machine_has_cores() -> None:
    assert find_machine().cores

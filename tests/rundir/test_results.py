"""The table of results: there and back, and tables that are damaged."""

from pathlib import Path

import numpy as np
import pytest

from diaster.errors import DiasterError
from diaster.rundir.records import PROGRESS
from diaster.rundir.results import COLUMNS, Table, progress_csv, read_progress

NAN = float("nan")


def row(step: int, seed: int, **values: float) -> dict[str, float | int]:
    return {**dict.fromkeys(COLUMNS, NAN), "step": step, "seed": seed, "episodes": 3, **values}


def test_progress_survives_being_written_and_read_with_empty_cells_for_nan(tmp_path: Path) -> None:
    rows = [
        row(10, 4, return_mean=0.1 + 0.2, fit_r2=-1e-300),
        row(2**40, 2, return_mean=-1e300, episodes=0, temperature=float("inf")),
    ]
    text = progress_csv(rows)
    assert "nan" not in text
    assert text.splitlines()[0] == ",".join(COLUMNS)
    assert text.splitlines()[1].startswith("10,4,3,0.30000000000000004,,,")
    (tmp_path / PROGRESS).write_text(text, encoding="utf-8")
    table = read_progress(tmp_path)
    assert tuple(table) == COLUMNS
    for expected, found in zip(rows, table.rows(), strict=True):
        np.testing.assert_equal(found, expected)
    assert {name for name in COLUMNS if table[name].dtype == np.int64} == {"step", "seed", "episodes"}


def test_a_number_that_is_not_given_is_an_empty_cell() -> None:
    assert progress_csv([{"step": 1}]).splitlines()[1] == "1" + "," * (len(COLUMNS) - 1)


def test_a_table_gives_the_rows_with_given_values() -> None:
    table = Table({"seed": np.array([1, 2, 1]), "step": np.array([5, 5, 6])})
    assert table.where(seed=1).rows() == [{"seed": 1, "step": 5}, {"seed": 1, "step": 6}]
    assert table.where(seed=1, step=6).n_rows == 1
    assert table.where(seed=9).n_rows == 0


def test_a_table_shows_its_columns_but_those_without_numbers() -> None:
    text = repr(Table({"step": np.array([5, 6]), "fit_r2": np.array([NAN, 0.25]), "empty": np.array([NAN, NAN])}))
    assert text.splitlines()[0].split() == ["step", "fit_r2"]
    assert text.splitlines()[2].split() == ["6", "0.25"]


HEADER = ",".join(COLUMNS).encode()
DAMAGED = {
    "columns missing": b"step,seed\n1,2\n",
    "cells missing": HEADER + b"\n1,2,3\n",
    "no number": HEADER + b"\n1,2,3" + b",x" * (len(COLUMNS) - 3) + b"\n",
    "no step": HEADER + b"\n,2,3" + b",1" * (len(COLUMNS) - 3) + b"\n",
    "no text": HEADER + b"\n\xff\xfe\n",
}


def test_a_damaged_table_is_a_sentence(tmp_path: Path) -> None:
    for what, content in DAMAGED.items():
        (tmp_path / PROGRESS).write_bytes(content)
        with pytest.raises(DiasterError, match=r"progress\.csv' is damaged: [^\n]*$"):
            pytest.fail(f"{what}: {read_progress(tmp_path)}")


def test_a_table_of_an_earlier_version_may_lack_metrics(tmp_path: Path) -> None:
    lines = [line.rsplit(",", 3)[0] for line in progress_csv([row(10, 4, return_mean=1.5)]).splitlines()]
    (tmp_path / PROGRESS).write_text("\n".join(lines), encoding="utf-8")
    table = read_progress(tmp_path)
    assert tuple(table) == COLUMNS[:-3]
    assert table["return_mean"].tolist() == [1.5]


def test_a_directory_without_a_run_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match="holds no run"):
        read_progress(tmp_path)

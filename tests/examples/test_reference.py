"""The pages of the reference that are made from the code when the site is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "docs" / "_site" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_of_the_site", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_setting_in_the_list_has_a_meaning_also_where_it_is_inherited(reference: ModuleType) -> None:
    rows = [
        line.strip("| ").split(" | ") for line in reference.settings_page().splitlines() if line.startswith("| `--")
    ]
    assert len(rows) > 100
    assert [row[0] for row in rows if len(row) != 4 or not row[3].endswith((".", ")"))] == []


def test_a_default_that_is_true_or_false_is_written_as_in_a_file(reference: ModuleType) -> None:
    [row] = [line for line in reference.settings_page().splitlines() if line.startswith("| `--known-rewards`")]
    assert row.startswith("| `--known-rewards` | `false` | true or false |")

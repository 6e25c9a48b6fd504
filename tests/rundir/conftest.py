"""Run directories for the tests that damage them; they import JAX, which other tests here do not need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hostile_runs import HostileRuns


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hostile_runs import write_run

    path = tmp_path_factory.mktemp("hostile") / "pristine"
    write_run(path)
    return path


@pytest.fixture
def runs(pristine: Path, tmp_path: Path) -> HostileRuns:
    from hostile_runs import HostileRuns

    return HostileRuns(pristine, tmp_path)

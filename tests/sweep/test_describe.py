"""What is said before a sweep begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from diaster.sweep.conduct import Plan, Site, local_site, look_at, make_plan
from diaster.sweep.describe import describe_plan, describe_start
from diaster.sweep.resources import Machine, Wishes

SWEEP = """
[settings]
steps = {steps}
imports = ["toy_envs"]
warmup_steps = 40
workers = 0
agent = {{ name = "ddpg", hidden = 8, batch_size = 16 }}
evaluation = {{ every = 120, episodes = 2 }}

[axes]
env = "Toy-v0"
method = ["uniform", "episodic"]
"""


def planned(folder: Path, steps: int) -> tuple[Plan, Site, Path]:
    file = folder / "grid.toml"
    file.write_text(SWEEP.format(steps=steps), encoding="utf-8")
    plan = make_plan(file, folder / "out")
    return plan, local_site(Machine((0, 1), (), None), Wishes(), plan), file


def test_a_sweep_says_before_it_starts_what_a_dry_run_says_of_its_cost(tmp_path: Path) -> None:
    plan, site, file = planned(tmp_path, 10_000)
    said = describe_start(look_at(plan, site), site, file)
    assert said.startswith("2 cells, 0 done; 2 at a time, each with 1 core; about ")
    assert said in describe_plan(plan, site)
    assert "\n" not in said


@pytest.mark.parametrize("has_twin", [True, False])
def test_a_sweep_of_days_says_how_to_have_less_of_it(tmp_path: Path, has_twin: bool) -> None:
    plan, site, file = planned(tmp_path, 1_000_000_000)
    twin = tmp_path / "grid-small.toml"
    if has_twin:
        twin.touch()
    cost, less = describe_start(look_at(plan, site), site, file).splitlines()
    assert " days left (an estimate, from rough figures of other machines)." in cost
    assert "--dry-run" in less and str(file) in less
    assert (f"{twin} is a small one" in less) == has_twin

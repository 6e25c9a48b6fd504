"""When things happen in a run, in steps."""

from __future__ import annotations

from itertools import islice

import pytest
from small_runs import SMALL

from diaster.config import XqcConfig, build_config
from diaster.training.resolve import resolve
from diaster.training.schedule import chunks, crosses, is_evaluated, n_chunks, updates_due


def test_the_decomposer_is_owed_the_updates_of_the_warm_up() -> None:
    config = build_config(env="x")
    assert updates_due(config.method, 5000) == 1250
    assert updates_due(config.agent, 0) == 0


def test_environments_that_share_a_seed_warm_up_until_each_can_have_ended_an_episode() -> None:
    for envs, steps, warmup_steps in ((1, 300, 30), (5, 300, 50), (9, 120, 60)):
        config = build_config(env="Toy-v0", **{**SMALL, "warmup_steps": "auto", "steps": steps, "envs": envs})
        assert resolve(config)[0].warmup_steps == warmup_steps


@pytest.mark.parametrize(("updates", "every", "n_updates"), [(1, 1, 220), (3, 2, 330), (0, 1, 0)])
def test_a_step_size_that_falls_over_all_of_a_run_falls_over_the_updates_it_has(
    updates: int, every: int, n_updates: int
) -> None:
    agent = {"name": "xqc", "updates": updates, "every": every}
    config, _ = resolve(build_config(env="Toy-v0", **{**SMALL, "steps": 300, "agent": agent}))
    assert isinstance(config.agent, XqcConfig) and config.agent.annealing_updates == n_updates
    of_chunks = [updates_due(config.agent, chunk.n_steps) for chunk in chunks(config) if chunk.start >= 80]
    assert sum(of_chunks) == n_updates
    given = {**agent, "annealing_updates": 7}
    assert resolve(build_config(env="Toy-v0", **{**SMALL, "agent": given}))[0].agent == XqcConfig(
        updates=updates, every=every, annealing_updates=7
    )


def test_chunks_meet_the_warm_up_and_the_last_step() -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "warmup_steps": 50, "steps": 130})
    found = list(chunks(config))
    assert [chunk.end for chunk in found] == [40, 50, 80, 120, 130]
    assert [chunk.start for chunk in found] == [0, 40, 50, 80, 120]
    assert [chunk.number for chunk in found] == list(range(5))
    assert [chunk.end for chunk in found if crosses(60, chunk.start, chunk.end)] == [80, 120]
    assert [chunk.end for chunk in found if is_evaluated(config, chunk)] == [120, 130]


@pytest.mark.parametrize("warmup_steps", [40, 50, 1, 119])
@pytest.mark.parametrize("steps", [120, 130, 161])
def test_chunks_are_counted_without_making_them(warmup_steps: int, steps: int) -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "warmup_steps": warmup_steps, "steps": steps})
    assert n_chunks(config) == len(list(chunks(config)))


def test_a_run_of_any_length_has_its_first_chunk_at_once() -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "steps": 2**62})
    assert next(islice(chunks(config), 3, None)).end == 160

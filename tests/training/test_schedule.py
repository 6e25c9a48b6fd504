"""When things happen in a run, in steps."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from small_runs import SMALL

from diaster.config import XqcConfig, build_config, updates_due
from diaster.training.resolve import resolve
from diaster.training.schedule import chunks, crosses, fits_due, is_evaluated, n_chunks, n_evaluations


def test_the_decomposer_is_owed_the_updates_of_the_warm_up() -> None:
    config = build_config(env="x")
    assert updates_due(config.method, 5000) == 1250
    assert updates_due(config.agent, 0) == 0


@pytest.mark.parametrize(("updates", "every"), [(1, 1), (250, 1000), (3, 2)])
def test_updates_may_grow_rarer_by_the_square_root_of_the_steps(updates: int, every: int) -> None:
    settings = {"name": "rrd", "updates": updates, "every": every}
    plain, rarer = (build_config(method={**settings, "fewer_after": n}).method for n in (0, 1000))
    due = [updates_due(rarer, step) for step in range(0, 40_000, 50)]
    assert due[:21] == [updates_due(plain, step) for step in range(0, 1050, 50)]
    assert all(later >= before for before, later in pairwise(due))
    # Half as many at four times the steps, a quarter at sixteen times.
    for step, share in ((4000, 0.5), (16_000, 0.25)):
        per_step = (updates_due(rarer, step + 500) - updates_due(rarer, step - 500)) / 1000
        assert per_step == pytest.approx(share * updates / every, rel=0.02)


@pytest.mark.parametrize("fewer_after", [0, 60, 3000])
def test_the_decomposers_updates_are_made_in_calls_of_few_sizes(fewer_after: int) -> None:
    config = build_config(env="x", steps=9950, warmup_steps=1000, method={"fewer_after": fewer_after})
    made, sizes = 0, set()
    for chunk in chunks(config):
        if chunk.end < 1000:
            continue
        calls = fits_due(config, made, chunk.end)
        made, sizes = made + sum(calls), sizes | set(calls)
        assert 0 <= updates_due(config.method, chunk.end) - made < (max(sizes) if fewer_after else 1)
    assert len(sizes) == (1 if fewer_after else 2)  # the last chunk is shorter


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


@pytest.mark.parametrize("every", [1, 30, 40, 45, 60, 100, 400])
@pytest.mark.parametrize("steps", [39, 120, 130, 400])
def test_evaluations_to_come_are_counted(every: int, steps: int) -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "steps": steps, "warmup_steps": 1, "evaluation": {"every": every}})
    found = [chunk for chunk in chunks(config) if chunk.end > 1]
    for number, chunk in enumerate(found):
        to_come = sum(is_evaluated(config, later) for later in found[number + 1 :])
        assert n_evaluations(config, chunk.end) == to_come


@pytest.mark.parametrize("warmup_steps", [40, 50, 1, 119])
@pytest.mark.parametrize("steps", [120, 130, 161])
def test_chunks_are_counted_without_making_them(warmup_steps: int, steps: int) -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "warmup_steps": warmup_steps, "steps": steps})
    assert n_chunks(config) == len(list(chunks(config)))


def test_a_run_of_any_length_has_its_first_chunk_at_once() -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "steps": 2**62})
    assert next(islice(chunks(config), 3, None)).end == 160

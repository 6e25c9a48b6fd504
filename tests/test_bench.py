"""The table of a machine: what it says, not how fast it is."""

from __future__ import annotations

import pytest

from diaster.bench import Parts, bench
from diaster.config import build_config

SMALL = {"hidden": 8}


def test_the_share_of_the_decomposer_is_that_of_a_chunks_updates() -> None:
    parts = Parts(agent=2.0, decomposer=4.0, agent_updates=10, decomposer_updates=5)
    assert parts.chunk == 40.0
    assert parts.share == 0.5


def test_a_method_that_fits_nothing_has_no_share() -> None:
    assert Parts(agent=2.0, decomposer=0.0, agent_updates=10, decomposer_updates=0).share == 0.0


@pytest.mark.filterwarnings("ignore")
def test_the_table_tells_updates_share_and_the_loops_speed() -> None:
    config = build_config(
        env="Toy-v0",
        imports=("toy_envs",),
        steps=1000,
        seeds=2,
        chunk_steps=40,
        workers=0,
        method="rrd",  # with DDPG, the quickest to compile
        agent="ddpg",
        decomposer=SMALL,
        learner={**SMALL, "batch_size": 16},
        evaluation={"episodes": 1},
    )
    rows = dict(bench(config, length=10, loop_seconds=0.001))
    assert rows["an update of the learner"].endswith(" ms")
    assert rows["an update of the decomposer, episodes of 10 steps"].endswith(" ms")
    assert rows["share of the decomposer"].endswith(" %")
    assert rows["the whole loop, Toy-v0, seeds added up"].endswith(" steps/s")
    assert rows["300,000 steps of every seed take about"].endswith((" hours", " minutes"))

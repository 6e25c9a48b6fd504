"""The table of a machine: what it says, not how fast it is."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from diaster.config import RunConfig, build_config
from diaster.training.bench import Marks, Parts, bench, whole_loop


def test_the_share_of_the_decomposer_is_that_of_a_chunks_updates() -> None:
    parts = Parts(agent=2.0, decomposer=4.0, agent_updates=10, decomposer_updates=5)
    assert parts.chunk == 40.0
    assert parts.share == 0.5


def test_a_method_that_fits_nothing_has_no_share() -> None:
    assert Parts(agent=2.0, decomposer=0.0, agent_updates=10, decomposer_updates=0).share == 0.0


def small() -> RunConfig:
    return build_config(
        env="Toy-v0",
        imports=("toy_envs",),
        steps=1000,
        seeds=2,
        chunk_steps=40,
        method="rrd",  # with DDPG, the quickest to compile
        agent="ddpg",
        decomposer={"hidden": 8},
        learner={"hidden": 8, "batch_size": 16},
    )


def test_the_table_tells_updates_and_share() -> None:
    rows = dict(bench(small(), length=10, loop_seconds=0.0))
    assert rows["an update of the agent"].endswith(" ms")
    assert rows["an update of the decomposer, episodes of 10 steps"].endswith(" ms")
    assert rows["share of the decomposer"].endswith(" %")
    assert not any("loop" in name for name in rows)


def test_the_loops_speed_is_taken_when_all_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Trained:
        metadata: ClassVar = {"seconds_to_first_learning": 4.0}

    def pretend(config: RunConfig, out: Path, marks: Marks) -> Trained:
        """Two seconds for a chunk of 40 steps, but a minute until the first has been learnt."""
        asked.append(config)
        late = [(step, 60.0 + step / 20) for step in range(400, 1001, 40)]
        marks.marks += [(40, 0.0), (160, 60.0), *late]
        return Trained()

    monkeypatch.setattr("diaster.training.bench.run_training", pretend)
    rows = dict(whole_loop(small(), 1010))
    assert rows["the whole loop but evaluations, Toy-v0, seeds added up"] == "40 steps/s"
    assert rows["300,000 steps of every seed take about"] == "4:10:00"
    assert rows["start-up to the first learning step"] == "4.0 s"
    [config] = asked
    assert (config.steps, config.warmup_steps, config.checkpoint_every, config.evaluation.every) == (1000, 80, 0, 1000)

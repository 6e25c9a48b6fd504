"""What runs are expected to take: rough, but in proportion."""

from __future__ import annotations

from typing import Any

import pytest

from diaster.config import build_config
from diaster.replay.store import store_bytes
from diaster.training.estimate import PROCESS_BYTES, Need, estimate
from diaster.types import EnvSpec, Image

HOPPER = EnvSpec("Hopper-v5", 11, 3, None, None, (3,), 1000)  # type: ignore[arg-type]


def need(cores: float = 2, is_on_gpu: bool = False, **settings: Any) -> Need:
    config = build_config(**{"env": "Hopper-v5", "steps": 100_000, "horizon": 1000, "warmup_steps": 5000, **settings})
    return estimate(config, HOPPER, cores, is_on_gpu)


def test_the_rough_figures_are_those_of_the_docs() -> None:
    # docs/explanation/performance.md: one seed on two cores
    assert 100_000 / need(agent="sac").seconds == pytest.approx(183, rel=0.15)
    five = need(is_on_gpu=True, seeds=5, steps=1_000_000, agent="sac")
    assert 5_000_000 / five.seconds == pytest.approx(13_000, rel=0.25)  # 11 to 18 thousand on an H200


def test_more_work_takes_longer() -> None:
    base = need().seconds
    assert need(cores=1).seconds > base
    assert need(seeds=5).seconds > 4 * base
    assert need(preset="paper").seconds > 2 * base
    assert need(agent={"hidden": 64}).seconds < base
    assert need(method="ircr").seconds < base
    assert need(evaluation={"every": 1000, "episodes": 10}).seconds > base


def test_images_of_held_out_episodes_count_as_memory() -> None:
    filmed = HOPPER._replace(obs_dim=12_288, image=Image(64, 3))

    def memory(**evaluation: int) -> int:
        config = build_config(env="Hopper-v5", steps=3000, horizon=1000, warmup_steps=1000, evaluation=evaluation)
        return estimate(config, filmed, 2, False).memory

    one = memory(every=3000, episodes=1)
    for evaluation, n_more in (
        ({"every": 1000, "episodes": 10}, 29),
        ({"every": 1000, "episodes": 10, "held_out": 20}, 19),
        ({"every": 1000, "episodes": 40, "held_out": 20}, 39),  # those of one evaluation at least
    ):
        assert memory(**evaluation) - one == n_more * 1001 * 12_288


def test_deeper_and_wider_nets_of_an_agent_take_longer() -> None:
    small, full = (need(agent={"name": "xqc", "size": size}).seconds for size in ("small", "full"))
    assert need(agent="sac").seconds < small < full
    assert need(agent={"name": "xqc", "size": "small", "layers": 1}).seconds < small


def test_memory_is_that_of_the_replay_of_all_seeds_and_of_a_process() -> None:
    found = need(method="ircr", seeds=5, steps=1_000_000)
    held_out = 50 * 1001 * 11 * 4
    assert found.memory == PROCESS_BYTES + 5 * (store_bytes(1_000_000, 11, 3) + held_out)


def test_what_an_update_looks_at_depends_on_the_method() -> None:
    for settings, cost in (
        ({}, (4 * 16 * 4, 4)),
        ({"preset": "paper"}, (64 * 1000, 1000)),
        ({"method": "rrd"}, (256, 1)),
        ({"method": "rd"}, (4000, 1)),
        ({"method": "rudder"}, (8000, 1000)),
        ({"method": "ircr"}, (0, 0)),
    ):
        assert build_config(env="Hopper-v5", **settings).method.cost(1000) == cost, settings


def test_an_update_that_looks_at_more_steps_takes_longer() -> None:
    def seconds(**method: Any) -> float:
        return need(method={**method, "updates": 1, "every": 1}).seconds

    assert seconds(name="rd") > seconds(name="rrd")
    assert seconds(name="rudder") > seconds(name="rd", batch_episodes=8)  # a recurrent net on the same steps

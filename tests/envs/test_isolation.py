"""An environment in a process of its own: the same steps, and faults that take nothing else with them."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
import toy_envs
from toy_specs import spec_of, toy_source

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.actors.collector import Collector
from diaster.actors.placement import Placement, make_collectors
from diaster.actors.rollout import Handling
from diaster.envs import isolation
from diaster.envs.isolation import IsolatedEnv, describe
from diaster.envs.making import make_env
from diaster.envs.processes import start_child
from diaster.envs.source import pack
from diaster.errors import DiasterError


def isolated(env_id: str, seconds: float = 300.0) -> IsolatedEnv:
    return IsolatedEnv(pack(toy_source(env_id)), toy_envs.HORIZON, seconds)


def test_steps_are_those_of_the_environment_itself() -> None:
    here, there = make_env("Toy-v0", toy_envs.HORIZON), isolated("Toy-v0")
    try:
        np.testing.assert_array_equal(here.reset(seed=3)[0], there.reset(seed=3)[0])
        for number in range(toy_envs.HORIZON):
            action = np.array([0.1 * number, -0.2], np.float32)
            mine, theirs = here.step(action), there.step(action)
            np.testing.assert_array_equal(mine[0], theirs[0])
            assert mine[1:] == theirs[1:]
    finally:
        there.close()


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("ToyCrashes-v0", "its process died (SIGSEGV)"),
        ("ToyDies-v0", "its process died (exit code 7)"),
        ("ToyHangs-v0", "no answer within 2 seconds"),
        ("ToyRaises-v0", "RuntimeError: the toy fell off the table"),
    ],
)
def test_a_fault_drops_the_episode_and_a_new_process_takes_over(env_id: str, words: str) -> None:
    limits = iter([2.0 if "Hangs" in env_id else 300.0, 300.0])  # only what hangs is to be waited for in vain

    def make() -> IsolatedEnv:
        return isolated(env_id, next(limits))

    collector = Collector(make, spec_of(env_id), TANH_GAUSSIAN, 0, Handling(retries=1))
    try:
        assert [episode.length for episode in collector.collect(None, 0, 13 + 10)] == [10, 10]
        count, sentence = collector.faults()
    finally:
        collector.close()
    assert count == 1
    assert words in sentence
    assert "training step 13" in sentence


def test_a_process_that_dies_before_it_is_told_what_to_make_costs_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead_at_once(module: str) -> Any:
        process, connection = start_child(module)
        process.kill()
        process.wait()
        return process, connection

    monkeypatch.setattr("diaster.envs.isolation.start_child", dead_at_once)
    collector = Collector(partial(isolated, "Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, 0, Handling(retries=1))
    try:
        collector.collect(None, 0, 1)
        assert collector.faults()[0] == 1
        assert "its process died (SIGKILL)" in collector.faults()[1]
    finally:
        collector.close()


def test_it_runs_in_a_process_of_its_own_which_is_gone_when_it_is_closed() -> None:
    env = isolated("ToyProcess-v0")
    obs, _ = env.reset(seed=0)
    process = int(obs[0]) * 4096 + int(obs[1])
    assert process != os.getpid()
    os.kill(process, 0)  # asks whether there is one
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_an_environment_that_cannot_be_made_is_no_fault_to_be_survived() -> None:
    collector = Collector(
        partial(IsolatedEnv, pack(toy_source("Toy-v0")._replace(imports=("no_such_module",))), 10, 300.0),
        spec_of("Toy-v0"), TANH_GAUSSIAN, 0, Handling(retries=100),
    )  # fmt: skip
    try:
        with pytest.raises(DiasterError, match="'no_such_module'"):
            collector.collect(None, 0, 3)
    finally:
        collector.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_fleets_of_isolated_environments_collect_the_same_episodes(workers: int) -> None:
    spec, answers = spec_of("Toy-v0"), []
    for handling in (Handling(), Handling(isolate=True)):
        fleet = make_collectors(Placement(toy_source("Toy-v0"), spec, TANH_GAUSSIAN, (0, 4), workers, handling))
        try:
            collected = fleet.collect([None, None], 0, 25)
            answers.append([episode.obs.tobytes() for of_seed in collected for episode in of_seed])
        finally:
            fleet.close()
    assert len(answers[0]) == 4 and answers[0] == answers[1]


def test_an_environment_that_no_other_process_can_make_is_refused() -> None:
    source, spec = toy_source("ToyUnsendable-v0"), spec_of("ToyUnsendable-v0")
    with pytest.raises(DiasterError, match="--isolate-envs"):
        make_collectors(Placement(source, spec, TANH_GAUSSIAN, (0,), 0, Handling(isolate=True)))


@pytest.mark.parametrize("env_id", ["Toy-v0", "ToyDict-v0", "ToyDiscreteFrom5-v0", "ToyFunction-v0"])
def test_what_an_isolated_environment_is_like_is_what_it_is_like_here(env_id: str) -> None:
    here, there = (describe(toy_source(env_id), toy_envs.HORIZON, isolate, 300.0) for isolate in (False, True))
    np.testing.assert_equal(here[0]._asdict(), there[0]._asdict())
    assert here[1] == there[1]


def test_an_isolated_environment_that_cannot_be_learnt_is_refused_as_elsewhere() -> None:
    with pytest.raises(DiasterError, match="at most 1,000"):
        describe(toy_source("ToyManyChoices-v0"), toy_envs.HORIZON, isolate=True, seconds=300.0)


def test_an_isolated_environment_that_hangs_while_it_is_made_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "SECONDS_TO_BE_MADE", 3.0)
    with pytest.raises(DiasterError, match=r"'ToyMakeHangs-v0' cannot be made: .*no answer within 4 seconds"):
        describe(toy_source("ToyMakeHangs-v0"), toy_envs.HORIZON, isolate=True, seconds=1.0)

import os
import signal
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import toy_envs
from toy_specs import spec_of, toy_source

from diaster.actors.acting import CATEGORICAL, EPSILON_GREEDY, NOISY_TANH, TANH_GAUSSIAN, HostPolicy
from diaster.actors.collector import Share
from diaster.actors.collectors import Collectors
from diaster.actors.evaluators import Evaluators
from diaster.actors.fleet import Collect, Evaluate, Fleet, FleetSpec, LocalFleet, Request, TakeStates
from diaster.actors.placement import (
    NICE_EVALUATING,
    Placement,
    available_cores,
    make_collectors,
    make_evaluators,
)
from diaster.actors.rollout import ORDINARY, Handling
from diaster.actors.workers import WorkerFleet
from diaster.envs import processes
from diaster.envs.source import EnvSource, gym_spec
from diaster.errors import DiasterError
from diaster.types import EnvSpec

SEEDS = (0, 5, 9)


def answer(fleet: Fleet, *requests: Request) -> list:
    answers = []
    try:
        for request in requests:
            fleet.start(request)
            answers.append(fleet.finish())
    finally:
        fleet.close()
    return answers


def collected(collectors: Collectors, *chunks: tuple[Any, int, int]) -> list:
    answers = []
    try:
        for chunk in chunks:
            answers.append(collectors.collect(*chunk))
    finally:
        collectors.close()
    return answers


def fleet_of(
    spec: EnvSpec, policy: HostPolicy = TANH_GAUSSIAN, seeds: Sequence[int] = SEEDS, handling: Handling = ORDINARY
) -> FleetSpec:
    return FleetSpec(toy_source(spec.id), spec, policy, seeds, [Share()] * len(seeds), handling)


def flat(value: object) -> object:
    """All of an answer, arrays as bytes."""
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return (value.dtype.str, value.shape, value.tobytes()) if hasattr(value, "tobytes") else value


def error_of(env_id: str, workers: int) -> str:
    with pytest.raises(DiasterError) as caught:
        place = Placement(toy_source(env_id), spec_of(env_id), TANH_GAUSSIAN, SEEDS, workers)
        collected(make_collectors(place), ([None] * 3, 0, 40))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_bytes_as_this_process(workers: int, random_parameters: Callable) -> None:
    spec = spec_of("Toy-v0")
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS]
    requests = [
        Collect([None] * 3, 0, 25),
        Collect(parameters, 1, 30),
        Evaluate(parameters, 0, 0, 2),
        Collect(parameters[::-1], 2, 5),
    ]
    here = answer(LocalFleet(fleet_of(spec, TANH_GAUSSIAN)), *requests)
    there = answer(WorkerFleet(fleet_of(spec, TANH_GAUSSIAN, SEEDS), workers), *requests)
    assert flat(there) == flat(here)
    first, second, evaluated, last = here
    assert [[len(episodes) for episodes, _ in reply] for reply in (first, second, last)] == [[2] * 3, [3] * 3, [1] * 3]
    assert [len(episodes) for episodes in evaluated] == [2] * 3
    of_seeds = [flat(of_seed) for of_seed in here[0]]
    assert of_seeds[0] != of_seeds[1] != of_seeds[2]


@pytest.mark.parametrize(
    ("policy", "env_id", "outputs"),
    [(NOISY_TANH, "Toy-v0", 2), (EPSILON_GREEDY, "ToyDiscreteFrom5-v0", 3), (CATEGORICAL, "ToyDiscrete-v0", 3)],
)
def test_every_other_policy_gives_the_same_bytes_in_a_worker(
    policy: HostPolicy, env_id: str, outputs: int, random_parameters: Callable
) -> None:
    spec = spec_of(env_id)
    parameters = [random_parameters(3, outputs, seed, exploration=0.4) for seed in SEEDS]
    requests = [Collect([None, *parameters[1:]], 0, 25), Evaluate(parameters, 0, 0, 2)]
    here = answer(LocalFleet(fleet_of(spec, policy)), *requests)
    assert flat(answer(WorkerFleet(fleet_of(spec, policy, SEEDS), 1), *requests)) == flat(here)


@pytest.mark.parametrize("keep_hidden", [False, True])
def test_hidden_rewards_leave_the_environments_only_where_they_are_asked_for(keep_hidden: bool) -> None:
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, handling=Handling(keep_hidden))
    [here], [there] = (
        collected(make_collectors(place._replace(workers=workers)), ([None] * 3, 0, 25)) for workers in (0, 2)
    )
    assert flat(there) == flat(here)
    for episode in (episode for of_seed in there for episode in of_seed):
        assert (episode.hidden_reward is not None) == keep_hidden
        if keep_hidden:
            assert episode.hidden_reward.sum() == pytest.approx(episode.episode_return, rel=1e-4)


@pytest.mark.parametrize("envs", [1, 2])
def test_there_are_never_more_workers_than_environments(envs: int) -> None:
    collectors = make_collectors(Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, (0, 1), 7), envs)
    try:
        assert isinstance(collectors._fleet, WorkerFleet)
        assert len(collectors._fleet._processes) == 2 * envs
    finally:
        collectors.close()


def test_environments_that_share_a_seed_share_its_steps_and_differ(random_parameters: Callable) -> None:
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, 0)
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS]
    chunks = [([None] * 3, 0, 31), (parameters, 1, 30), (parameters, 2, 32)]
    alone, shared = (collected(make_collectors(place, envs), *chunks) for envs in (1, 3))
    for position in range(len(SEEDS)):
        of_seed = [episode for chunk in shared for episode in chunk[position]]
        assert [episode.length for episode in of_seed] == [toy_envs.HORIZON] * 9, "30 steps in each, and three more"
        assert len({episode.obs.tobytes() for episode in of_seed}) == 9
        [first, *_] = alone[0][position]
        assert flat(of_seed[0]) == flat(first), "the first of them is the one of a seed that shares nothing"
    for workers in (1, 4, 9):
        place = place._replace(workers=workers)
        assert flat(collected(make_collectors(place, 3), *chunks)) == flat(shared)


def test_environments_that_share_a_seed_are_restored_to_where_they_stood() -> None:
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, 0)
    collectors, others = make_collectors(place, 3), make_collectors(place._replace(workers=2), 3)
    try:
        collectors.collect([None] * 3, 0, 46)
        states = collectors.states()
        assert [len(state.action) for state in states] == [6, 5, 5] * 3
        assert others.restore(states, 46) == [True] * 3
        assert flat(others.collect([None] * 3, 1, 20)) == flat(collectors.collect([None] * 3, 1, 20))
    finally:
        collectors.close()
        others.close()


def test_faults_of_environments_that_share_a_seed_are_counted_for_their_seed() -> None:
    handling = Handling(retries=9)
    collectors = make_collectors(
        Placement(toy_source("ToyNan-v0"), spec_of("ToyNan-v0"), TANH_GAUSSIAN, (0, 1), 0, handling), 2
    )
    try:
        collectors.collect([None] * 2, 0, 13)
        assert [count for count, _ in collectors.faults] == [0, 0]
        collectors.collect([None] * 2, 1, 14)
        for seed, (count, sentence) in enumerate(collectors.faults):
            assert count == 2
            assert f"seed {seed}'s training (environment 2 of 2) step 13" in sentence
        collectors.collect([None] * 2, 2, 25)  # the first environment takes 13 of them, the second 12
        for count, sentence in collectors.faults:
            assert count == 3
            assert "(environment 1 of 2)" in sentence, "of the one that has lost an episode since"
    finally:
        collectors.close()


def test_closing_a_fleet_ends_its_processes() -> None:
    fleet = WorkerFleet(fleet_of(spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS), 1)
    fleet.start(Collect([None] * 3, 0, 5))
    fleet.finish()
    fleet.close()
    assert [process.returncode for process in fleet._processes] == [0]


def test_a_worker_that_dies_is_a_sentence_with_its_exit_code() -> None:
    sentence = error_of("ToyDies-v0", workers=1)
    assert "ended unexpectedly (exit code 7)" in sentence
    assert "--workers 0" in sentence


def test_a_request_to_a_dead_worker_is_the_same_sentence() -> None:
    fleet = WorkerFleet(fleet_of(spec_of("Toy-v0"), TANH_GAUSSIAN, (0,)), 1)
    try:
        fleet._processes[0].kill()
        fleet._processes[0].wait()
        fleet.start(Collect([None], 0, 5))
        with pytest.raises(DiasterError, match=r"ended unexpectedly \(exit code -9\)"):
            fleet.finish()
    finally:
        fleet.close()


def test_a_worker_that_dies_before_it_is_told_what_to_do_is_the_same_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead_at_once(*arguments: Any, **options: Any) -> Any:
        process, connection = processes.start_child(*arguments, **options)
        process.kill()
        process.wait()
        return process, connection

    monkeypatch.setattr("diaster.actors.workers.start_child", dead_at_once)
    with pytest.raises(DiasterError, match=r"ended unexpectedly \(exit code -9\)"):
        answer(WorkerFleet(fleet_of(spec_of("Toy-v0"), seeds=(0,)), 1), Collect([None], 0, 5))


def test_a_bad_value_in_a_worker_arrives_as_the_same_sentence() -> None:
    here, there = error_of("ToyNan-v0", workers=0), error_of("ToyNan-v0", workers=2)
    assert there == here
    assert "seed 0's training step 13" in here


def test_an_environment_that_cannot_be_sent_is_refused_for_workers() -> None:
    place = Placement(toy_source("ToyUnsendable-v0"), spec_of("ToyUnsendable-v0"), TANH_GAUSSIAN, SEEDS, 2)
    with pytest.raises(DiasterError, match=r"'ToyUnsendable-v0' cannot be made in other processes.*--workers 0"):
        make_collectors(place)


def test_environments_that_functions_make_are_made_by_workers_too() -> None:
    twice, spec, returns = 2.0, spec_of("Toy-v0"), []

    def make_twice() -> gym.Env:
        return gym.wrappers.TransformReward(gym.make("Toy-v0"), lambda reward: twice * reward)

    makers: list[Any] = [toy_envs.Toy, lambda: toy_envs.Toy(), make_twice]
    for make in (*makers, gym_spec("ToyFunction-v0")):
        of_workers = []
        for workers in (0, 2):
            place = Placement(EnvSource("made", make, imports=("toy_envs",)), spec, TANH_GAUSSIAN, SEEDS, workers)
            of_workers.append(collected(make_collectors(place), ([None] * 3, 0, 10)))
        assert flat(of_workers[0]) == flat(of_workers[1])
        returns.append(of_workers[0][0][0][0].episode_return)
    assert returns[0] == returns[1] == returns[3]
    assert returns[2] == pytest.approx(2.0 * returns[0])


@pytest.mark.parametrize("workers", [0, "auto"])
def test_an_environment_that_cannot_be_sent_runs_in_this_process(
    workers: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.placement.os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    source, spec = toy_source("ToyUnsendable-v0"), spec_of("ToyUnsendable-v0")
    collectors = make_collectors(Placement(source, spec, TANH_GAUSSIAN, SEEDS, workers))
    assert isinstance(collectors._fleet, LocalFleet)
    [episodes] = collected(collectors, ([None] * 3, 0, 10))
    assert [len(of_seed) for of_seed in episodes] == [1, 1, 1]


@pytest.mark.parametrize(
    ("cores", "seeds", "envs", "workers", "evaluators"),
    [
        (2, 3, 1, 0, 0),
        (2, 1, 3, 0, 0),
        (8, 1, 1, 0, 5),
        (8, 1, 4, 4, 5),
        (8, 3, 1, 3, 6),
        (3, 5, 1, 2, 1),
        (16, 5, 1, 5, 15),
        (16, 5, 3, 15, 15),
        (16, 20, 1, 20, 20),
        (8, 40, 1, 7, 4),
    ],
)
def test_auto_collects_one_environment_here_and_takes_other_processes_on_more_than_two_cores(
    cores: int, seeds: int, envs: int, workers: int, evaluators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.placement.os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.delenv("NPROC", raising=False)
    taken: list[int] = []

    def pretend(fleet: FleetSpec, n_workers: int, niceness: int) -> None:
        assert niceness == (NICE_EVALUATING if taken else 0)  # those that collect are made first
        if taken:
            positions = [range(first, len(fleet.seeds), n_workers) for first in range(n_workers)]
            of_workers = [{fleet.seeds[position] for position in own} for own in positions]
            in_how_many = [sum(seed in own for own in of_workers) for seed in range(seeds)]
            assert min(in_how_many) > 1 or n_workers == 1, "no seed has all of its episodes in one process"
        taken.append(n_workers)

    monkeypatch.setattr("diaster.actors.placement.WorkerFleet", pretend)
    monkeypatch.setattr("diaster.actors.placement.LocalFleet", lambda *_: taken.append(0))
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(seeds)), "auto")
    make_collectors(place, envs)
    make_evaluators(place, 5)
    assert taken == [workers, evaluators]


def test_a_fleet_says_when_its_answer_takes_no_more_waiting() -> None:
    fleet = WorkerFleet(fleet_of(spec_of("Toy-v0"), seeds=(0, 1)), 2)
    try:
        for chunk in range(2):
            fleet.start(Collect([None] * 2, chunk, 5))
            while not fleet.is_done():  # ends, or the test hangs
                pass
            assert len(fleet.finish()) == 2
    finally:
        fleet.close()


def test_a_worker_that_cannot_be_told_what_to_do_ends_the_others_too() -> None:
    started: list[Any] = []

    def start_child(*arguments: Any, **options: Any) -> Any:
        if started:
            raise OSError(11, "no more processes")
        started.append(processes.start_child(*arguments, **options))
        return started[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diaster.actors.workers.start_child", start_child)
        with pytest.raises(OSError, match="no more processes"):
            WorkerFleet(fleet_of(spec_of("Toy-v0")), 2)
    assert started[0][0].poll() is not None, "the first one has ended"


@pytest.mark.parametrize("episodes", [1, 2, 3, 5, 10])
@pytest.mark.parametrize(("cores", "seeds"), [(8, 5), (16, 20), (16, 5), (8, 40), (16, 1)])
def test_the_episodes_of_an_evaluation_are_dealt_out_evenly(
    cores: int, seeds: int, episodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.placement.available_cores", lambda: cores)
    made: list[int] = []

    def pretend(fleet: FleetSpec, n_workers: int, niceness: int) -> None:
        numbers = [len(range(share.number, episodes, share.of)) for share in fleet.shares]
        made.extend(sum(numbers[first::n_workers]) for first in range(n_workers))

    monkeypatch.setattr("diaster.actors.placement.WorkerFleet", pretend)
    make_evaluators(Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(seeds))), episodes)
    assert sum(made) == seeds * episodes
    assert min(made) >= 1
    assert max(made) <= 2 * sum(made) / len(made)


def test_isolated_environments_to_evaluate_in_are_no_more_than_there_are_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.actors.placement.available_cores", lambda: 8)
    made: list[int] = []
    monkeypatch.setattr("diaster.actors.placement.WorkerFleet", lambda fleet, *_: made.append(len(fleet.seeds)))
    place = Placement(
        toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(8)), handling=Handling(isolate=True)
    )
    make_evaluators(place, 5)
    make_evaluators(place._replace(handling=Handling()), 5)
    assert made == [8, 40]


def test_workers_do_without_shared_memory_where_it_is_limited(
    random_parameters: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(27, "File too large")

    spec = spec_of("Toy-v0")
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS]
    requests = [Collect(parameters, chunk, 20) for chunk in range(3)]
    here = answer(LocalFleet(fleet_of(spec, TANH_GAUSSIAN)), *requests)
    monkeypatch.setattr("diaster.actors.shared_arrays.os.ftruncate", refuse)
    assert flat(answer(WorkerFleet(fleet_of(spec, TANH_GAUSSIAN, SEEDS), 2), *requests)) == flat(here)


def test_workers_have_their_policies_also_where_standard_input_is_closed(python: Callable, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = """
        import os
        os.close(0)
        import numpy as np, toy_envs
        from diaster.actors.acting import TANH_GAUSSIAN, HostParameters
        from diaster.envs.making import describe_env, make_env
        from diaster.envs.source import find_source
        from diaster.actors.placement import Placement, make_collectors

        spec = describe_env(make_env("Toy-v0", 10), "Toy-v0", 10)
        collectors = make_collectors(Placement(find_source("Toy-v0"), spec, TANH_GAUSSIAN, (0, 1), 2))
        policy = HostParameters(((np.ones((3, 4), np.float32), np.zeros(4, np.float32)),), 0.0)
        for chunk in range(4):
            print([len(episodes) for episodes in collectors.collect([policy, policy], chunk, 20)])
        collectors.close()
        """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = python(str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("[2, 2]\n" * 4, "", 0)


def test_processes_that_collect_give_way_to_the_learner_and_those_that_evaluate_to_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diaster.actors.placement.available_cores", lambda: 3)
    place = Placement(toy_source("Toy-v0"), spec_of("Toy-v0"), TANH_GAUSSIAN, (0,), 1, learns_on_gpu=True)
    users = [make_collectors(place), make_evaluators(place, 5)]
    try:
        levels = [os.getpriority(os.PRIO_PROCESS, 0)]
        for user in users:
            assert isinstance(user._fleet, WorkerFleet)
            user._fleet.start(TakeStates([None]))
            user._fleet.finish()
            levels.append(os.getpriority(os.PRIO_PROCESS, user._fleet._processes[0].pid))
        assert levels == sorted(set(levels)) or levels[0] > 10, "19 is the most there is"
    finally:
        for user in users:
            user.close()


def evaluation(env_id: str, parameters: list[Any], per_seed: int, n_episodes: int, retries: int) -> list[list[Any]]:
    """Of two seeds, each shared out among a number of environments."""
    shares = [Share(number, per_seed) for _ in range(2) for number in range(per_seed)]
    seeds = [seed for seed in SEEDS[:2] for _ in range(per_seed)]
    fleet = fleet_of(spec_of(env_id), TANH_GAUSSIAN, seeds, Handling(retries=retries))._replace(shares=shares)
    evaluators = Evaluators(WorkerFleet(fleet, 2), retries, per_seed)
    try:
        evaluators.start(parameters, 3, n_episodes)
        return evaluators.finish()
    finally:
        evaluators.close()


@pytest.mark.parametrize(("env_id", "retries"), [("Toy-v0", 0), ("ToyUnlucky-v0", 9)])
def test_an_evaluation_that_is_shared_out_has_the_same_episodes_in_the_same_order(
    env_id: str, retries: int, random_parameters: Callable
) -> None:
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS[:2]]
    alone = evaluation(env_id, parameters, 1, 5, retries)
    assert flat(evaluation(env_id, parameters, 3, 5, retries)) == flat(alone)
    assert all(of_seed for of_seed in alone)
    assert (sum(map(len, alone)) < 10) == bool(retries)


@pytest.mark.parametrize(("told", "cores"), [("3", 3), ("0", 8), ("many", 8), (None, 8)])
def test_a_process_has_as_many_cores_as_it_is_told(
    told: str | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.placement.os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("NPROC", told) if told else monkeypatch.delenv("NPROC", raising=False)
    assert available_cores() == cores


def test_a_script_without_a_main_guard_can_use_workers(tmp_path: Path, python: Callable) -> None:
    script = tmp_path / "script.py"
    text = """
        import toy_envs
        from diaster.actors.acting import TANH_GAUSSIAN
        from diaster.envs.making import describe_env, make_env
        from diaster.envs.source import find_source
        from diaster.actors.placement import Placement, make_collectors

        print("once")
        spec = describe_env(make_env("Toy-v0", 10), "Toy-v0", 10)
        collectors = make_collectors(Placement(find_source("Toy-v0"), spec, TANH_GAUSSIAN, (0, 1), 2))
        print([len(episodes) for episodes in collectors.collect([None, None], 0, 20)])
        collectors.close()
        """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = python(str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("once\n[2, 2]\n", "", 0)


def test_workers_do_without_jax(python: Callable) -> None:
    heavy = "{'jax', 'jaxlib', 'optax', 'matplotlib'}"
    done = python("-c", f"import sys, diaster.actors.workers; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_a_worker_that_dies_is_noticed_also_where_a_child_of_its_environment_holds_its_connection() -> None:
    fleet = WorkerFleet(fleet_of(spec_of("ToyForks-v0"), seeds=(0,)), 1)
    worker = fleet._processes[0]
    try:
        fleet.start(Collect([None], 0, 5))
        fleet.finish()
        worker.kill()
        fleet.start(Collect([None], 1, 5))
        with pytest.raises(DiasterError, match=r"ended unexpectedly \(exit code -9\)"):
            fleet.finish()
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        fleet.close()

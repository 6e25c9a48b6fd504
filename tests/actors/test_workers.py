import os
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_envs
from toy_specs import spec_of

from diaster.actors.acting import CATEGORICAL, EPSILON_GREEDY, NOISY_TANH, TANH_GAUSSIAN, HostPolicy
from diaster.actors.collect import Handling, Part
from diaster.actors.workers import (
    NICE_EVALUATING,
    Collectors,
    Evaluators,
    Fleet,
    LocalFleet,
    Place,
    Request,
    WorkerFleet,
    available_cores,
    make_collectors,
    make_evaluators,
)
from diaster.errors import DiasterError

SEEDS = (0, 5, 9)
IMPORTS = ("toy_envs",)


def answer(fleet: Fleet, *requests: Request) -> list:
    answers = []
    try:
        for request in requests:
            fleet.start(lambda request=request: request)
            answers.append(fleet.finish())
    finally:
        fleet.close()
    return answers


def collected(collectors: Collectors, *chunks: tuple[Any, int, int]) -> list:
    answers = []
    try:
        for chunk in chunks:
            policies, number, n_steps = chunk
            collectors.start(lambda policies=policies: policies, number, n_steps)
            answers.append(collectors.finish())
    finally:
        collectors.close()
    return answers


def flat(value: object) -> object:
    """All of an answer, arrays as bytes."""
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return (value.dtype.str, value.shape, value.tobytes()) if hasattr(value, "tobytes") else value


def error_of(env_id: str, workers: int) -> str:
    with pytest.raises(DiasterError) as caught:
        place = Place(spec_of(env_id), TANH_GAUSSIAN, SEEDS, IMPORTS, workers)
        collected(make_collectors(place), ([None] * 3, 0, 40))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_bytes_as_this_process(workers: int, random_parameters: Callable) -> None:
    spec = spec_of("Toy-v0")
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS]
    requests = [
        Request("collect", [None] * 3, 0, 25),
        Request("collect", parameters, 1, 30),
        Request("evaluate", parameters, 0, 2),
        Request("collect", parameters[::-1], 2, 5),
    ]
    here = answer(LocalFleet(spec, TANH_GAUSSIAN, SEEDS), *requests)
    there = answer(WorkerFleet(spec, TANH_GAUSSIAN, SEEDS, Handling(), IMPORTS, workers), *requests)
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
    requests = [Request("collect", [None, *parameters[1:]], 0, 25), Request("evaluate", parameters, 0, 2)]
    here = answer(LocalFleet(spec, policy, SEEDS), *requests)
    assert flat(answer(WorkerFleet(spec, policy, SEEDS, Handling(), IMPORTS, 1), *requests)) == flat(here)


@pytest.mark.parametrize("keep_hidden", [False, True])
def test_hidden_rewards_leave_the_environments_only_where_they_are_asked_for(keep_hidden: bool) -> None:
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, IMPORTS, handling=Handling(keep_hidden))
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
    collectors = make_collectors(Place(spec_of("Toy-v0"), TANH_GAUSSIAN, (0, 1), IMPORTS, 7), envs)
    try:
        assert isinstance(collectors._fleet, WorkerFleet)
        assert len(collectors._fleet._processes) == 2 * envs
    finally:
        collectors.close()


def test_environments_side_by_side_share_a_seeds_steps_and_differ(random_parameters: Callable) -> None:
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, IMPORTS, 0)
    parameters = [random_parameters(3, 4, seed) for seed in SEEDS]
    chunks = [([None] * 3, 0, 31), (parameters, 1, 30), (parameters, 2, 32)]
    alone, beside = (collected(make_collectors(place, envs), *chunks) for envs in (1, 3))
    for position in range(len(SEEDS)):
        of_seed = [episode for chunk in beside for episode in chunk[position]]
        assert [episode.length for episode in of_seed] == [toy_envs.HORIZON] * 9, "30 steps in each, and three more"
        assert len({episode.obs.tobytes() for episode in of_seed}) == 9
        [first, *_] = alone[0][position]
        assert flat(of_seed[0]) == flat(first), "the first of them is the one that others stand beside"
    for workers in (1, 4, 9):
        place = place._replace(workers=workers)
        assert flat(collected(make_collectors(place, 3), *chunks)) == flat(beside)


def test_environments_side_by_side_go_back_to_where_they_stood() -> None:
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, IMPORTS, 0)
    collectors, others = make_collectors(place, 3), make_collectors(place._replace(workers=2), 3)
    try:
        collectors.start(lambda: [None] * 3, 0, 46)
        collectors.finish()
        states = collectors.states()
        assert [len(state.action) for state in states] == [6, 5, 5] * 3
        with pytest.raises(ValueError, match="8 states for 9 environments"):
            others.restore(states[1:], 46)
        assert others.restore(states, 46) == [True] * 3
        for one in (collectors, others):
            one.start(lambda: [None] * 3, 1, 20)
        assert flat(others.finish()) == flat(collectors.finish())
    finally:
        collectors.close()
        others.close()


def test_faults_of_environments_side_by_side_are_counted_for_their_seed() -> None:
    handling = Handling(retries=9)
    collectors = make_collectors(Place(spec_of("ToyNan-v0"), TANH_GAUSSIAN, (0, 1), IMPORTS, 0, handling), 2)
    try:
        collectors.start(lambda: [None] * 2, 0, 13)
        collectors.finish()
        assert [count for count, _ in collectors.faults] == [0, 0]
        collectors.start(lambda: [None] * 2, 1, 14)
        collectors.finish()
        for seed, (count, sentence) in enumerate(collectors.faults):
            assert count == 2
            assert f"seed {seed}'s training (environment 2 of 2) step 13" in sentence
        collectors.start(lambda: [None] * 2, 2, 25)  # the first environment takes 13 of them, the second 12
        collectors.finish()
        for count, sentence in collectors.faults:
            assert count == 3
            assert "(environment 1 of 2)" in sentence, "of the one that has lost an episode since"
    finally:
        collectors.close()


def test_closing_a_fleet_ends_its_processes() -> None:
    fleet = WorkerFleet(spec_of("Toy-v0"), TANH_GAUSSIAN, SEEDS, Handling(), IMPORTS, 1)
    fleet.start(lambda: Request("collect", [None] * 3, 0, 5))
    fleet.finish()
    fleet.close()
    assert [process.returncode for process in fleet._processes] == [0]


def test_a_worker_that_dies_is_a_sentence_with_its_exit_code() -> None:
    sentence = error_of("ToyDies-v0", workers=1)
    assert "ended unexpectedly (exit code 7)" in sentence
    assert "--workers 0" in sentence


def test_a_request_to_a_dead_worker_is_the_same_sentence() -> None:
    fleet = WorkerFleet(spec_of("Toy-v0"), TANH_GAUSSIAN, (0,), Handling(), IMPORTS, 1)
    try:
        fleet._processes[0].kill()
        fleet._processes[0].wait()
        fleet.start(lambda: Request("collect", [None], 0, 5))
        with pytest.raises(DiasterError, match=r"ended unexpectedly \(exit code -9\)"):
            fleet.finish()
    finally:
        fleet.close()


def test_a_bad_value_in_a_worker_arrives_as_the_same_sentence() -> None:
    here, there = error_of("ToyNan-v0", workers=0), error_of("ToyNan-v0", workers=2)
    assert there == here
    assert "seed 0's training step 13" in here


def test_an_environment_that_is_registered_by_a_function_is_refused_for_workers() -> None:
    with pytest.raises(DiasterError, match=r"'ToyFunction-v0' cannot be made in other processes.*--workers 0"):
        make_collectors(Place(spec_of("ToyFunction-v0"), TANH_GAUSSIAN, SEEDS, IMPORTS, 2))


@pytest.mark.parametrize("workers", [0, "auto"])
def test_an_environment_that_is_registered_by_a_function_runs_in_this_process(
    workers: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.workers.os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    collectors = make_collectors(Place(spec_of("ToyFunction-v0"), TANH_GAUSSIAN, SEEDS, (), workers))
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
    monkeypatch.setattr("diaster.actors.workers.os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.delenv("NPROC", raising=False)
    taken: list[int] = []

    def pretend(*arguments: Any) -> None:
        assert arguments[7] == (NICE_EVALUATING if taken else 0)  # who collects was made first
        if taken:
            shares = [range(first, len(arguments[2]), arguments[5]) for first in range(arguments[5])]
            of_seeds = [{arguments[2][position] for position in share} for share in shares]
            in_how_many = [sum(seed in share for share in of_seeds) for seed in range(seeds)]
            assert min(in_how_many) > 1 or arguments[5] == 1, "nobody's episodes are all in one process"
        taken.append(arguments[5])

    monkeypatch.setattr("diaster.actors.workers.WorkerFleet", pretend)
    monkeypatch.setattr("diaster.actors.workers.LocalFleet", lambda *_: taken.append(0))
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(seeds)), IMPORTS, "auto")
    make_collectors(place, envs)
    make_evaluators(place, 5)
    assert taken == [workers, evaluators]


def test_a_fleet_says_when_its_answer_takes_no_more_waiting() -> None:
    fleet = WorkerFleet(spec_of("Toy-v0"), TANH_GAUSSIAN, (0, 1), Handling(), IMPORTS, 2)
    try:
        assert not fleet.wait(0.0)
        fleet.start(lambda: Request("collect", [None] * 2, 0, 5))
        while not fleet.wait(1.0):  # ends, or the test hangs
            pass
        assert fleet.wait(0.0)
        fleet.finish()
        assert not fleet.wait(0.0)
    finally:
        fleet.close()


def test_requests_that_wait_for_a_worker_are_answered_in_their_order_with_the_same_bytes(
    random_parameters: Callable,
) -> None:
    spec = spec_of("Toy-v0")
    # Larger than what a socket holds: two sides that write to each other and read later would wait forever.
    parameters = [random_parameters(3, 4, seed, hidden=300) for seed in SEEDS]
    requests = [Request("collect", parameters, chunk, 500) for chunk in range(4)]
    here = answer(LocalFleet(spec, TANH_GAUSSIAN, SEEDS), *requests)
    fleet = WorkerFleet(spec, TANH_GAUSSIAN, SEEDS, Handling(), IMPORTS, 2)
    try:
        assert fleet.can_queue
        for request in requests:
            fleet.start(lambda request=request: request)
        assert flat([fleet.finish() for _ in requests]) == flat(here)
    finally:
        fleet.close()


def test_what_is_asked_may_have_to_be_waited_for_and_nobody_else_waits(random_parameters: Callable) -> None:
    spec, [parameters] = spec_of("Toy-v0"), [[random_parameters(3, 4, seed) for seed in SEEDS]]
    are_there = threading.Event()

    def policies() -> list[Any]:
        are_there.wait()
        return parameters

    collectors = make_collectors(Place(spec, TANH_GAUSSIAN, SEEDS, IMPORTS, 2))
    try:
        collectors.start(lambda: [None] * 3, 0, 20)
        collectors.start(policies, 1, 20)
        first = collectors.finish()
        are_there.set()
        second = collectors.finish()
    finally:
        collectors.close()
    place = Place(spec, TANH_GAUSSIAN, SEEDS, IMPORTS, 0)
    assert flat([first, second]) == flat(collected(make_collectors(place), ([None] * 3, 0, 20), (parameters, 1, 20)))


def test_policies_that_never_come_are_the_error_of_who_waits_for_the_episodes() -> None:
    def policies() -> list[Any]:
        raise RuntimeError("the device is lost")

    for workers in (0, 1):
        collectors = make_collectors(Place(spec_of("Toy-v0"), TANH_GAUSSIAN, (0,), IMPORTS, workers))
        try:
            collectors.start(policies, 0, 20)
            with pytest.raises(RuntimeError, match="the device is lost"):
                collectors.finish()
        finally:
            collectors.close()


@pytest.mark.parametrize("episodes", [1, 2, 3, 5, 10])
@pytest.mark.parametrize(("cores", "seeds"), [(8, 5), (16, 20), (16, 5), (8, 40), (16, 1)])
def test_the_episodes_of_an_evaluation_are_dealt_out_evenly(
    cores: int, seeds: int, episodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diaster.actors.workers.available_cores", lambda: cores)
    made: list[int] = []

    def pretend(spec: Any, policy: Any, of_envs: Any, handling: Any, imports: Any, n: int, parts: Any, _: int) -> None:
        numbers = [len(range(part.number, episodes, part.of)) for part in parts]
        made.extend(sum(numbers[first::n]) for first in range(n))

    monkeypatch.setattr("diaster.actors.workers.WorkerFleet", pretend)
    make_evaluators(Place(spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(seeds)), IMPORTS), episodes)
    assert sum(made) == seeds * episodes
    assert min(made) >= 1
    assert max(made) <= 2 * sum(made) / len(made)


def test_isolated_environments_to_evaluate_in_are_no_more_than_there_are_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.actors.workers.available_cores", lambda: 8)
    made: list[int] = []
    monkeypatch.setattr("diaster.actors.workers.WorkerFleet", lambda *given: made.append(len(given[2])))
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, tuple(range(8)), IMPORTS, handling=Handling(isolate=True))
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
    requests = [Request("collect", parameters, chunk, 20) for chunk in range(3)]
    here = answer(LocalFleet(spec, TANH_GAUSSIAN, SEEDS), *requests)
    monkeypatch.setattr("diaster.actors.parcels.os.ftruncate", refuse)
    assert flat(answer(WorkerFleet(spec, TANH_GAUSSIAN, SEEDS, Handling(), IMPORTS, 2), *requests)) == flat(here)


def test_workers_have_their_policies_also_where_standard_input_is_closed(python: Callable, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = """
        import os
        os.close(0)
        import numpy as np, toy_envs
        from diaster.actors.acting import TANH_GAUSSIAN, HostParameters
        from diaster.envs.making import describe_env, make_env
        from diaster.actors.workers import Place, make_collectors

        spec = describe_env(make_env("Toy-v0", 10), "Toy-v0", 10)
        collectors = make_collectors(Place(spec, TANH_GAUSSIAN, (0, 1), ("toy_envs",), 2))
        policy = HostParameters(((np.ones((3, 4), np.float32), np.zeros(4, np.float32)),), 0.0)
        for chunk in range(4):
            collectors.start(lambda: [policy, policy], chunk, 20)
            print([len(episodes) for episodes in collectors.finish()])
        collectors.close()
        """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = python(str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("[2, 2]\n" * 4, "", 0)


def test_processes_that_collect_give_way_to_the_learner_and_those_that_evaluate_to_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diaster.actors.workers.available_cores", lambda: 3)
    place = Place(spec_of("Toy-v0"), TANH_GAUSSIAN, (0,), IMPORTS, 1, is_beside_gpu=True)
    users = [make_collectors(place), make_evaluators(place, 5)]
    try:
        levels = [os.getpriority(os.PRIO_PROCESS, 0)]
        for user in users:
            assert isinstance(user._fleet, WorkerFleet)
            user._fleet.start(lambda: Request("state", [None]))
            user._fleet.finish()
            levels.append(os.getpriority(os.PRIO_PROCESS, user._fleet._processes[0].pid))
        assert levels == sorted(set(levels)) or levels[0] > 10, "19 is the most there is"
    finally:
        for user in users:
            user.close()


def evaluation(env_id: str, parameters: list[Any], n_beside: int, n_episodes: int, retries: int) -> list[list[Any]]:
    """Of two seeds, shared out among so many environments each."""
    parts = [Part(number, n_beside) for _ in range(2) for number in range(n_beside)]
    seeds = [seed for seed in SEEDS[:2] for _ in range(n_beside)]
    fleet = WorkerFleet(spec_of(env_id), TANH_GAUSSIAN, seeds, Handling(retries=retries), IMPORTS, 2, parts)
    evaluators = Evaluators(fleet, retries, n_beside)
    try:
        evaluators.start(lambda: parameters, 3, n_episodes)
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
    monkeypatch.setattr("diaster.actors.workers.os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("NPROC", told) if told else monkeypatch.delenv("NPROC", raising=False)
    assert available_cores() == cores


def test_a_script_without_a_main_guard_can_use_workers(tmp_path: Path, python: Callable) -> None:
    script = tmp_path / "script.py"
    text = """
        import toy_envs
from toy_specs import spec_of
        from diaster.actors.acting import TANH_GAUSSIAN
        from diaster.envs.making import describe_env, make_env
        from diaster.actors.workers import Place, make_collectors

        print("once")
        spec = describe_env(make_env("Toy-v0", 10), "Toy-v0", 10)
        collectors = make_collectors(Place(spec, TANH_GAUSSIAN, (0, 1), ("toy_envs",), 2))
        collectors.start(lambda: [None, None], 0, 20)
        print([len(episodes) for episodes in collectors.finish()])
        collectors.close()
        """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = python(str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("once\n[2, 2]\n", "", 0)


def test_workers_do_without_jax(python: Callable) -> None:
    heavy = "{'jax', 'jaxlib', 'optax', 'matplotlib'}"
    done = python("-c", f"import sys, diaster.actors.workers; print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr

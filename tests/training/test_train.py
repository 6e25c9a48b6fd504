"""From settings to a run: what surrounds the loop."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import gymnasium as gym
import jax
import pytest
import scipy.linalg  # noqa: F401 - its BLAS is the one that JAX uses
import toy_envs
from small_runs import QUICK, Copying, StoppingAt, learnt_bytes, small
from threadpoolctl import threadpool_info, threadpool_limits
from toy_vectors import make_telling

import diaster
from diaster.config import build_config
from diaster.envs.given import keep_env
from diaster.errors import DiasterError, Stopped
from diaster.rundir.records import CONFIG, DONE
from diaster.rundir.trust import SIGNATURE
from diaster.training import loop
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training


def quick(**settings: Any) -> dict[str, Any]:
    """The settings of a small run that compiles in little time."""
    return small(**{"env": "Toy-v0", **QUICK, **settings})


def test_another_default_generator_of_jax_changes_no_byte(tmp_path: Path, trained: Callable[..., Any]) -> None:
    with jax.default_prng_impl("rbg"):
        run = run_training(build_config(**quick()), tmp_path / "run", Silent())
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))


def test_while_a_run_learns_factorisations_have_one_thread_and_afterwards_as_many_as_before(tmp_path: Path) -> None:
    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    found: list[set[int]] = []
    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        config = build_config(**quick())
        run_training(config, tmp_path / "run", Silent(), callback=lambda evaluation: found.append(threads()))
        assert threads() == before == {2}
    assert found
    assert all(of_one == {1} for of_one in found)


# Environments from Python


def test_a_lambda_trains_and_the_run_says_that_it_needs_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: Callable[..., Any]
) -> None:
    settings = {**small(**QUICK), "horizon": toy_envs.HORIZON}
    run = diaster.train(lambda: toy_envs.Toy(), out=tmp_path / "run", **settings)
    said = capsys.readouterr().err
    assert "warning: the run cannot keep what makes Toy" in said and "diaster.load(path, env=…)" in said
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))  # those of the registered environment
    assert run.config.env == "<Toy>"
    with pytest.raises(DiasterError, match=r"given, with 5 observations and 2 actions, does not fit the nets of"):
        diaster.load(run.path, env=lambda: toy_envs.WideToy(5))
    with pytest.raises(DiasterError, match=r"'ddpg' cannot act in '<Toy>', which has 3 discrete actions"):
        diaster.load(run.path, env=lambda: toy_envs.DiscreteToy())
    for read in (diaster.load, diaster.resume):
        (run.path / DONE).unlink(missing_ok=True)
        with pytest.raises(DiasterError, match=r"'Toy' was given in Python.*give it again"):
            read(run.path)
    again = diaster.load(run.path, env=lambda: toy_envs.Toy())
    assert repr(again.evaluate(episodes=2)) == repr(run.evaluate(episodes=2))


@pytest.mark.parametrize("isolate_envs", [False, True])
def test_a_lambda_trains_in_other_processes_too(
    tmp_path: Path, isolate_envs: bool, trained: Callable[..., Any]
) -> None:
    settings = {**small(**QUICK), "horizon": toy_envs.HORIZON, "workers": 1, "isolate_envs": isolate_envs}
    run = diaster.train(lambda: toy_envs.Toy(), out=tmp_path / "run", **settings)
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))


def test_a_run_of_a_lambda_goes_on_where_it_stopped_when_it_is_given_again(tmp_path: Path) -> None:
    def make(width: int) -> toy_envs.Toy:
        return toy_envs.WideToy(width)

    given = keep_env(make, {"width": 4})
    config = build_config(**{**quick(horizon=toy_envs.HORIZON), **given.settings})
    whole = run_training(config, tmp_path / "whole", Silent(), given=given.creator)
    with pytest.raises(Stopped, match=r"diaster\.resume\('.*', env=…\) in Python"):
        run_training(config, tmp_path / "half", StoppingAt(120), given=given.creator)
    assert learnt_bytes(diaster.resume(tmp_path / "half", env=make)) == learnt_bytes(whole)


def test_a_function_of_a_module_is_kept_and_every_command_finds_it(tmp_path: Path) -> None:
    settings = {**small(**QUICK), "imports": (), "horizon": toy_envs.HORIZON}
    run = diaster.train(toy_envs.make_wide, env_kwargs={"width": 4, "word": "ab"}, out=tmp_path / "run", **settings)
    assert run.config.env == "toy_envs:make_wide"
    assert (run.path / SIGNATURE).exists()
    again = diaster.load(run.path)
    assert again.spec.obs_dim == 4
    assert repr(again.evaluate(episodes=2)) == repr(run.evaluate(episodes=2))
    config = tmp_path / "config.toml"
    config.write_text((run.path / CONFIG).read_text().replace("word", "# word"))
    flags = "--env-kwargs.word", "ab", "--out", tmp_path / "typed", "--quiet"
    assert command_line.run("train", "--config", config, *flags).code == 0
    assert learnt_bytes(diaster.load(tmp_path / "typed")) == learnt_bytes(run)
    assert command_line.run("evaluate", run.path, "--episodes", 1).code == 0
    assert command_line.run("record", run.path, "--episodes", 1).code == 0


def test_an_instance_trains_as_the_environment_it_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: Callable[..., Any]
) -> None:
    run = diaster.train(gym.make("Toy-v0"), out=tmp_path / "run", **small(**QUICK))
    assert "made from its spec (Toy-v0)" in capsys.readouterr().err
    assert learnt_bytes(run) == learnt_bytes(trained(**QUICK))
    assert run.config == trained(**QUICK).config


def test_a_function_that_gives_one_environment_to_all_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    env = toy_envs.Toy()
    with pytest.raises(DiasterError, match="the same environment twice"):
        diaster.train(lambda: env, out=tmp_path / "run", **{**small(**QUICK), "horizon": 10})
    assert not (tmp_path / "run").exists()


def test_the_directory_of_a_run_has_a_name_that_can_be_typed(empty_cwd: Path) -> None:
    run = diaster.train(lambda: toy_envs.Toy(), **{**small(**QUICK), "horizon": 10})
    assert run.path == empty_cwd / "runs" / "Toy-uniform"


# Vectors


def of_vector(**settings: Any) -> dict[str, Any]:
    return {**small(**QUICK), "imports": (), "horizon": 4, **settings}


def test_a_vector_trains_all_of_its_lanes_and_workers_change_no_byte(tmp_path: Path) -> None:
    runs = [
        diaster.train(make_telling, out=tmp_path / str(workers), **of_vector(seeds=2, workers=workers))
        for workers in (0, 1)
    ]
    assert learnt_bytes(runs[0]) == learnt_bytes(runs[1])
    run = diaster.load(runs[0].path)
    assert (run.config.env, run.config.envs, run.spec.lanes) == ("toy_vectors:make_telling", 3, 3)
    steps, episodes = run.progress["step"][-1], run.progress["episodes"][-1]
    assert steps == 240 and episodes == 240 / 3 // 2 + 240 / 3 // 3 + 240 / 3 // 4
    assert run.evaluate(episodes=2)[0][0].length_mean == 2  # the first lane, which is looked at
    for command in (["record", run.path, "--episodes", 1], ["video", run.path, "-o", tmp_path / "film.gif"]):
        assert command_line.run(*command).code == 0


def test_a_vector_learns_from_the_hidden_rewards_of_each_lane(tmp_path: Path) -> None:
    run = diaster.train(make_telling, out=tmp_path / "run", **of_vector(method="dense", agent="ddpg"))
    assert run.done


def test_a_run_of_a_vector_goes_on_in_a_new_one_and_says_so(tmp_path: Path) -> None:
    given = keep_env(make_telling)
    config = build_config(**of_vector(**given.settings))
    with pytest.raises(Stopped):
        run_training(config, tmp_path / "run", StoppingAt(120))
    reporter = Copying(tmp_path)
    assert resume_training(tmp_path / "run", reporter).done
    assert any("does not repeat itself" in sentence for sentence in reporter.warnings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"envs": 2}, "gives vectors of 3; leave envs out"),
        ({"isolate_envs": True}, "AsyncVectorEnv"),
        ({"horizon": "auto"}, "no time limit"),
    ],
)
def test_a_vector_that_cannot_be_trained_so_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DiasterError, match=words):
        diaster.train(make_telling, out=tmp_path / "run", **of_vector(**settings))
    assert not (tmp_path / "run").exists()


SHORTAGES = [
    MemoryError(),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99999999999 bytes."),
    RuntimeError("can't start new thread"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
]


@pytest.mark.parametrize("shortage", SHORTAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["make_learner", "make_collectors", "_learn"])
def test_too_little_of_what_a_run_needs_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortage: Exception, where: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise shortage

    if where == "_learn":
        monkeypatch.setattr(loop.Trainer, "_learn", fail)
    else:
        monkeypatch.setattr(loop, where, fail)
    with pytest.raises(DiasterError, match=r"too little memory|no further thread or process") as caught:
        run_training(build_config(**quick()), tmp_path / "run", Silent())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_error_of_another_kind_is_not_called_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(loop, "make_learner", fail)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        run_training(build_config(**quick()), tmp_path / "run", Silent())

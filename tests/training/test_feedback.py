"""Whole runs, tiny, whose feedback comes in pieces, not for all steps, or for a part of the rewards alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import CHUNKS, EVERY_METHOD, XQC, Copying, StoppingAt, copy_of, learnt_bytes, small

import diaster
from diaster.actors.rollout import Rollout
from diaster.config import METHODS, build_config
from diaster.errors import DiasterError, Stopped
from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY, generations, manifest
from diaster.rundir.records import DECOMPOSER, POLICY, read_tensors
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training
from diaster.types import EvaluationEpisode

Trained = Callable[..., Run]
MARKED: dict[str, Any] = {"env": "ToyMarks-v0", "feedback_every": "environment", "seeds": [4, 9]}
OF_METHODS = {"diaster": {"agent": "ddpg"}, **{name: {**case, "env": "Toy-v0"} for name, case in EVERY_METHOD.items()}}
for name in ("uniform", "episodic"):
    OF_METHODS[name]["agent"] = "ddpg"  # ToyMarks-v0 has continuous actions


def train(out: Path, **settings: Any) -> Run:
    return run_training(build_config(**small(**{"env": "Toy-v0", **settings})), out, Silent())


SAME: dict[str, dict[str, Any]] = {
    "diaster, a ring that wraps": {"seeds": 2, "replay": {"capacity": 190}},
    "a linear base": {"method": {"base": "linear"}},
    "rewards that sum to the return": {"method": {"exact_sum": True}, "agent": XQC},
    **{name: {**EVERY_METHOD[name], "workers": 0} for name in ("rudder", "ircr", "uniform")},
}


@pytest.mark.parametrize("case", SAME)
def test_a_number_for_at_least_as_many_steps_as_an_episode_has_gives_the_bytes_of_one_per_episode(
    case: str, tmp_path: Path
) -> None:
    plain, cut = train(tmp_path / "plain", **SAME[case]), train(tmp_path / "cut", **SAME[case], feedback_every=10)
    assert learnt_bytes(cut) == learnt_bytes(plain)


def test_where_every_episode_ends_before_its_first_number_is_due_the_bytes_are_the_same(tmp_path: Path) -> None:
    # Episodes of 7 steps, with a horizon of 10: methods are made for shorter spans, and do the same with them.
    for name, method in {"rrd": {"name": "rrd", "hidden": 4, "subset": 4}, "uniform": "uniform"}.items():
        settings = {"env": "ToyTerminates-v0", "method": method, "agent": "ddpg", "replay": {"capacity": 190}}
        plain = train(tmp_path / f"{name}-plain", **settings)
        cut = train(tmp_path / f"{name}-cut", **settings, feedback_every=8)
        assert learnt_bytes(cut) == learnt_bytes(plain)


@pytest.mark.parametrize("agent", ["ddpg", XQC], ids=["ddpg", "xqc"])
def test_a_number_for_every_step_shared_out_evenly_is_the_hidden_reward(agent: Any, tmp_path: Path) -> None:
    settings = {"agent": agent, "seeds": 2, "replay": {"capacity": 190}}  # the ring wraps
    dense = train(tmp_path / "dense", **settings, method={"name": "dense", "return_scale": 2.0})
    even = train(tmp_path / "even", **settings, method={"name": "uniform", "return_scale": 2.0}, feedback_every=1)
    assert (even.path / POLICY).read_bytes() == (dense.path / POLICY).read_bytes()
    for name in ("return_mean", "critic_loss", "q_value"):
        np.testing.assert_array_equal(even.progress[name], dense.progress[name])
    np.testing.assert_allclose(even.progress["fit_r2"], 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_numbers_for_a_few_steps_each(method: str, trained: Trained) -> None:
    run = trained(**{**OF_METHODS[method], "workers": 0, "feedback_every": 4, "seeds": [4, 9]})
    check_sound(run)
    assert np.isfinite(run.progress["fit_r2"]).all() or method == "dense"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_where_the_environment_marks_spans_and_some_have_no_number(
    method: str, trained: Trained
) -> None:
    has_known = method != "ircr"  # whose rewards are relative
    check_sound(trained(**{**OF_METHODS[method], "workers": 0, **MARKED, "known_rewards": has_known}))


def check_sound(run: Run) -> None:
    assert run.done
    for file in (POLICY, DECOMPOSER):
        assert all(np.isfinite(tensor).all() for tensor in read_tensors(run.path / file).values())
    assert np.isfinite(run.progress["critic_loss"]).all()
    again = diaster.load(run.path)
    assert again.config == run.config
    statistics, _ = again.evaluate(episodes=2)[run.seeds[0]]
    assert np.isfinite(statistics.return_mean)


def test_known_rewards_and_a_relative_method_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match="method 'ircr' are relative, and known rewards cannot be added"):
        train(tmp_path / "run", method="ircr", known_rewards=True)
    assert not (tmp_path / "run").exists()


def test_workers_and_processes_of_their_own_change_no_byte(tmp_path: Path, trained: Trained) -> None:
    settings = {**MARKED, "known_rewards": True, "method": "uniform", "agent": "ddpg"}
    alone = trained(**settings)
    assert learnt_bytes(train(tmp_path / "workers", **settings, workers=2)) == learnt_bytes(alone)
    assert learnt_bytes(train(tmp_path / "isolated", **settings, isolate_envs=True)) == learnt_bytes(alone)


CUT_OFF: dict[str, dict[str, Any]] = {
    "every three steps": {"feedback_every": 3, "seeds": 2, "replay": {"capacity": 170}},
    "every step, labels": {"feedback_every": 1, "method": EVERY_METHOD["rudder"]["method"], "agent": "ddpg"},
    "marks with gaps, and known rewards": {**MARKED, "known_rewards": True, "replay": {"capacity": 170}},
    "marks with gaps, shared out": {**MARKED, "method": "uniform", "agent": XQC, "replay": {"capacity": 170}},
}


@pytest.mark.parametrize("case", CUT_OFF)
def test_a_run_with_feedback_in_pieces_that_was_cut_off_ends_with_the_same_bytes(tmp_path: Path, case: str) -> None:
    settings = {**CHUNKS, **CUT_OFF[case]}
    out = tmp_path / "run"
    whole = run_training(build_config(**small(**{"env": "Toy-v0", **settings})), out, Copying(out, 165))
    reporter, half = Copying(tmp_path), copy_of(out, 165)
    assert generations(half / DIRECTORY)
    assert learnt_bytes(resume_training(half, reporter)) == learnt_bytes(whole)
    assert not [sentence for sentence in reporter.warnings if "fit_r2" not in sentence]


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifests of a run's checkpoints."""
    for path in (run / DIRECTORY).glob("manifest-*"):
        body = json.loads(path.read_text())["body"]
        change(body)
        text = json.dumps(body, sort_keys=True)
        path.write_text(json.dumps({"sha256": manifest.checksum(text.encode()), "body": body}))


def test_a_run_that_an_earlier_version_had_begun_goes_on(tmp_path: Path) -> None:
    settings = {"method": "uniform", "agent": "ddpg"}
    whole = train(tmp_path / "whole", **settings)
    config = build_config(**small(env="Toy-v0", **settings))
    with pytest.raises(Stopped):
        run_training(config, tmp_path / "half", StoppingAt(160))
    begun = tmp_path / "half" / "config.toml"
    fewer = begun.read_text().replace('feedback_every = "episode"\n', "").replace("known_rewards = false\n", "")
    assert fewer != begun.read_text()
    begun.write_text(fewer)

    def as_before(body: dict[str, Any]) -> None:
        body["settings"] = manifest.checksum(fewer.encode())
        del body["facts"]["numbers"]

    rewrite(tmp_path / "half", as_before)
    assert learnt_bytes(resume_training(tmp_path / "half", Silent())) == learnt_bytes(whole)


def test_a_checkpoint_whose_episodes_have_other_feedback_than_the_settings_say_is_refused(tmp_path: Path) -> None:
    config = build_config(**small(env="Toy-v0", method="uniform", agent="ddpg", feedback_every=3))
    with pytest.raises(Stopped):
        run_training(config, tmp_path / "run", StoppingAt(160))
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace("feedback_every = 3", "feedback_every = 2"))
    rewrite(tmp_path / "run", lambda body: body.update(settings=manifest.checksum(settings.read_bytes())))
    with pytest.raises(DiasterError, match="other feedback than the run has"):
        resume_training(tmp_path / "run", Silent())


def test_an_environment_that_never_gives_feedback_is_not_learnt_from_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", env="ToySilent-v0", feedback_every="environment", method="uniform", agent="ddpg")
    said = capsys.readouterr().err
    assert "seed 0 had fewer than two numbers of feedback and never learnt" in said and "info['feedback']" in said
    assert np.isnan(run.progress["critic_loss"]).all()
    assert np.isnan(run.progress["fit_r2"]).all() and np.isfinite(run.progress["return_mean"]).all()


def test_the_fit_of_a_run_is_that_of_its_spans(trained: Trained) -> None:
    run = trained(method="uniform", agent="ddpg", feedback_every=4)
    _, fit = run.evaluate(episodes=3)[0]
    assert fit.fit_r2 == pytest.approx(1.0) and fit.return_gap == pytest.approx(0.0, abs=1e-6)
    assert 0.1 < fit.reward_correlation < 0.99  # even shares of four steps show a part of the rewards


def test_step_rewards_of_a_run_have_what_is_known_in_them(trained: Trained) -> None:
    settings = {"env": "ToyMarks-v0", "method": "uniform", "agent": "ddpg"}
    for every in (10, "environment"):
        run = trained(**settings, feedback_every=every, known_rewards=True)
        rollout = Rollout(run.make_env, run.spec, "a test's", run.config.feedback)
        rollout.reset(3)
        episode = None
        while episode is None:
            _, episode = rollout.step(np.zeros(2, np.float32))
        [found] = run.step_rewards([EvaluationEpisode(episode, None)])
        spans, known = episode.to_decompose, episode.known_reward
        shares = np.repeat(spans.number / spans.length, spans.length)
        np.testing.assert_allclose(found, shares + known, rtol=1e-5)
        assert np.isnan(found).any() == (every == "environment")


def test_an_evaluation_after_the_run_takes_what_is_known_off_both_sides_as_those_during_it_do(trained: Trained) -> None:
    run = trained(env="ToyMarks-v0", method="uniform", agent="ddpg", feedback_every=1, known_rewards=True)
    _, fit = run.evaluate(episodes=3)[0]
    # A number for every step leaves nothing to guess.
    for name in ("fit_r2", "reward_correlation", "within_correlation", "reward_slope"):
        assert getattr(fit, name) == pytest.approx(1.0) and run.progress[name][-1] == pytest.approx(1.0)
    assert fit.return_gap == pytest.approx(0.0, abs=1e-5)
    table = run.evaluate(episodes=3, per_episode=True)
    np.testing.assert_allclose(table["reward_sum"], table["return"], rtol=1e-5)  # with what is known in both

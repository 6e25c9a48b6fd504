"""A run that is read back: observations in any form the environment has, and files that do not belong to it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy

import diaster
from diaster.rundir.records import BEST, DECOMPOSER, POLICY
from diaster.rundir.results import Table
from diaster.types import Episode, EvaluationEpisode

TINY: dict[str, Any] = {
    "steps": 60,
    "imports": ("toy_envs",),
    "workers": 0,
    "chunk_steps": 20,
    "warmup_steps": 40,
    "method": {"name": "diaster", "hidden": 4, "segments_per_episode": 2, "base": "none"},
    "agent": {"name": "ddpg", "hidden": 4, "batch_size": 8},
    "evaluation": {"every": 60, "episodes": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> diaster.Run:
    return diaster.train("ToyDict-v0", out=tmp_path_factory.mktemp("runs") / "run", seeds=[3, 8], **TINY)


def test_the_public_names_are_functions_however_often_they_are_asked_for(run: diaster.Run) -> None:
    import diaster.training.train  # the module must not take the function's place

    assert callable(diaster.train) and callable(diaster.load)


def test_a_dict_observation_acts_like_its_flat_form(run: diaster.Run) -> None:
    raw, _ = gym.make("ToyDict-v0").reset(seed=0)
    flat = gym.spaces.flatten(gym.make("ToyDict-v0").observation_space, raw)
    policy = run.policy(seed=8)
    np.testing.assert_array_equal(policy(raw), policy(flat))


def test_an_observation_of_another_shape_is_refused(run: diaster.Run) -> None:
    for wrong in (np.zeros(5), {"place": np.zeros(3)}, 1.0):
        with pytest.raises(diaster.DiasterError, match="ToyDict-v0"):
            run.policy()(wrong)


def test_a_seed_that_was_not_trained_is_refused_with_those_that_were(run: diaster.Run) -> None:
    with pytest.raises(diaster.DiasterError, match=r"no seed 5; it has 3, 8"):
        run.policy(seed=5)


def test_the_actor_is_the_policy_in_the_terms_of_the_nets(run: diaster.Run) -> None:
    obs = np.full(run.spec.obs_dim, 0.3, np.float32)
    np.testing.assert_array_equal(run.spec.to_env(run.actor(seed=8)(obs)), run.policy(seed=8)(obs))


def test_step_rewards_of_whole_episodes_are_those_of_their_steps(run: diaster.Run) -> None:
    obs = np.linspace(-1.0, 1.0, 4 * run.spec.obs_dim, dtype=np.float32).reshape(4, -1)
    action = np.zeros((3, run.spec.action_dim), np.float32)
    [found] = run.step_rewards([EvaluationEpisode(Episode(obs, action, 1.0, True), None)], seed=8)
    np.testing.assert_allclose(found, run.step_reward(obs[:-1], run.spec.to_env(action), seed=8), rtol=1e-4)


def test_seeds_have_policies_of_their_own(run: diaster.Run) -> None:
    obs = np.zeros(run.spec.obs_dim)
    assert not np.array_equal(run.policy(seed=3)(obs), run.policy(seed=8)(obs))


@pytest.mark.parametrize("file", [POLICY, DECOMPOSER])
def test_nets_of_another_run_are_refused(run: diaster.Run, tmp_path: Path, file: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    tensors = {name: tensor[..., :1].copy() for name, tensor in safetensors.numpy.load_file(copy / file).items()}
    (copy / file).write_bytes(safetensors.numpy.save(tensors))
    with pytest.raises(diaster.DiasterError, match=f"{file}' does not belong"):
        diaster.load(copy).evaluate(episodes=1)


def test_a_step_reward_needs_no_more_than_the_step_where_the_method_says_so(run: diaster.Run) -> None:
    raw, _ = gym.make("ToyDict-v0").reset(seed=0)
    action = np.zeros(2)
    alone, led_to = run.step_reward(raw, action, seed=8), run.step_reward(raw, action, next_obs=raw, seed=8)
    assert alone.shape == () and alone == led_to
    assert alone != run.step_reward(raw, action, seed=3)


WITHOUT_A_STEP_REWARD = {
    "difference": {"method": {**TINY["method"], "reward_source": "difference"}},
    "uniform": {"method": "uniform"},
}


@pytest.mark.parametrize("name", WITHOUT_A_STEP_REWARD)
def test_step_rewards_that_depend_on_more_than_the_step_are_refused(tmp_path: Path, name: str) -> None:
    run = diaster.train("Toy-v0", out=tmp_path / "run", **{**TINY, **WITHOUT_A_STEP_REWARD[name]})
    with pytest.raises(diaster.DiasterError, match=rf"rewards of this run \({run.config.method.name}\) depend on more"):
        run.step_reward(np.zeros(3), np.zeros(2))


def test_the_step_reward_in_the_explanations_is_one_that_a_default_run_gives(tmp_path: Path) -> None:
    run = diaster.train("Toy-v0", out=tmp_path / "run", **{**TINY, "method": {"hidden": 4, "segments_per_episode": 2}})
    known = {"run": run, "obs": np.zeros(3), "action": np.zeros(2), "next_obs": np.ones(3)}
    for explained in (diaster, diaster.Run):
        [example] = re.findall(r"run\.step_reward\(.*?\)", explained.__doc__ or "")
        assert np.isfinite(eval(example, known))


def test_a_step_reward_that_looks_ahead_asks_for_the_next_observation(tmp_path: Path) -> None:
    settings = {**TINY, "method": {"name": "rrd", "hidden": 4, "subset": 4}}
    run = diaster.train("Toy-v0", out=tmp_path / "run", **settings)
    obs, action = np.zeros((5, 3)), np.zeros((5, 2))
    with pytest.raises(diaster.DiasterError, match=r"'rrd' looks at what a step led to; give next_obs"):
        run.step_reward(obs, action)
    here, there = run.step_reward(obs, action, obs), run.step_reward(obs, action, obs + 1.0)
    assert here.shape == (5,) and np.isfinite(here).all()
    assert not np.allclose(here, there)
    np.testing.assert_allclose(run.step_reward(obs[0], action[0], obs[0]), here[0], rtol=1e-5)


def test_a_run_with_discrete_actions_speaks_the_environments_numbers(tmp_path: Path) -> None:
    run = diaster.train(
        "ToyDiscreteFrom5-v0", out=tmp_path / "run", **{**TINY, "agent": {"name": "dqn", "hidden": 4, "batch_size": 8}}
    )
    loaded = diaster.load(run.path)
    action = loaded.policy()(np.zeros(3))
    assert int(action) in (5, 6, 7)
    assert gym.make("ToyDiscreteFrom5-v0").action_space.contains(action)
    assert loaded.policy()(np.zeros((4, 3))).tolist() == [int(action)] * 4
    rewards = loaded.step_reward(np.zeros((3, 3)), np.array([5, 6, 7]))
    assert rewards.shape == (3,) and len(set(rewards.tolist())) == 3
    assert loaded.step_reward(np.zeros(3), 6) == pytest.approx(rewards[1], rel=1e-5)
    for nameless in (4, 8, [5, 8]):
        with pytest.raises(diaster.DiasterError, match="has the actions 5 to 7"):
            loaded.step_reward(np.zeros(3), nameless)
    statistics, _ = loaded.evaluate(episodes=2)[0]
    assert np.isfinite(statistics.return_mean)


def test_an_environment_that_looks_its_actions_up_in_a_table_is_learnt_and_acted_in(tmp_path: Path) -> None:
    small = {**TINY, "agent": {"name": "dqn", "hidden": 4, "batch_size": 8}}
    run = diaster.train("ToyTable-v0", out=tmp_path / "run", **small)
    env = gym.make("ToyTable-v0", disable_env_checker=True)
    obs, _ = env.reset(seed=0)
    action = run.policy()(obs)
    assert isinstance(action, int | np.integer)
    env.step(action)
    assert np.isfinite(run.evaluate(episodes=1)[0][0].return_mean)
    assert np.isfinite(run.step_reward(obs, action, obs))


@pytest.mark.parametrize("env_id", ["ToyMultiDiscrete-v0", "ToyMultiBinary-v0"])
def test_a_run_with_several_choices_at_once_speaks_the_environments_terms(tmp_path: Path, env_id: str) -> None:
    small = {**TINY, "agent": {"name": "dqn", "hidden": 4, "batch_size": 8}}
    run = diaster.train(env_id, out=tmp_path / "run", **small)
    space = gym.make(env_id).action_space
    assert space.contains(run.policy()(np.zeros(3, np.float32)))
    assert run.policy()(np.zeros((4, 3), np.float32)).shape == (4, *space.shape)
    batch = np.stack([space.sample() for _ in range(5)])
    assert run.step_reward(np.zeros((5, 3)), batch).shape == (5,)
    for wrong in (np.full(space.shape, 3), np.zeros(7)):
        with pytest.raises(diaster.DiasterError, match=r"was given"):
            run.step_reward(np.zeros(3), wrong)


def test_an_evaluation_after_the_run_survives_the_faults_that_the_run_would(tmp_path: Path) -> None:
    run = diaster.train("ToyCrashes-v0", out=tmp_path / "run", isolate_envs=True, **TINY)  # at its 13th step
    with pytest.warns(UserWarning, match="seed 0 lost 1 of 3 episodes to faults of its environment"):
        statistics, _ = run.evaluate(episodes=3)[0]
    assert statistics.length_mean == 10


# The best policy, single episodes, figures


def test_the_best_policy_stands_beside_the_last(run: diaster.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    best = {name: tensor + 0.1 for name, tensor in safetensors.numpy.load_file(copy / POLICY).items()}
    (copy / BEST).write_bytes(safetensors.numpy.save(best))
    loaded = diaster.load(copy)
    obs = np.full(loaded.spec.obs_dim, 0.3, np.float32)
    assert not np.array_equal(loaded.policy(8)(obs), loaded.policy(8, which="best")(obs))
    np.testing.assert_array_equal(loaded.policy(8)(obs), run.policy(8)(obs))
    assert repr(loaded.policy(8, which="best")).endswith("seed 8, best)")
    last, best_returns = (loaded.evaluate(1, 8, which)[8][0].return_mean for which in ("last", "best"))
    assert last != best_returns


def test_an_unknown_policy_and_a_run_without_a_best_one_are_refused(run: diaster.Run, tmp_path: Path) -> None:
    with pytest.raises(diaster.DiasterError, match=r"unknown policy 'bset'; known: best, last. Did you mean 'best'"):
        run.policy(which="bset")  # type: ignore[arg-type]
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (copy / BEST).unlink()
    assert diaster.load(copy).policy()(np.zeros(7)).shape == (2,)
    with pytest.raises(diaster.DiasterError, match=r"has no policy-best\.safetensors, which earlier versions"):
        diaster.load(copy).policy(which="best")
    (copy / BEST).write_bytes(b"garbage")
    with pytest.raises(diaster.DiasterError, match="is damaged"):
        diaster.load(copy).policy(which="best")


def test_an_evaluation_is_the_statistics_of_its_episodes(run: diaster.Run) -> None:
    statistics = run.evaluate(episodes=3)
    table = run.evaluate(episodes=3, per_episode=True)
    assert isinstance(table, Table)
    assert table["seed"].tolist() == [3, 3, 3, 8, 8, 8]
    assert table["episode"].tolist() == [0, 1, 2, 0, 1, 2]
    for seed in run.seeds:
        of_seed = table.where(seed=seed)
        assert of_seed["return"].mean() == pytest.approx(statistics[seed][0].return_mean)
        assert of_seed["length"].mean() == statistics[seed][0].length_mean
        sums = [float(rewards.sum()) for rewards in run.step_rewards(run.episodes(3, seed), seed)]
        assert of_seed["reward_sum"].tolist() == pytest.approx(sums)
    assert table["time_limit"].all()
    assert run.evaluate(episodes=2, seed=8, per_episode=True)["seed"].tolist() == [8, 8]


def test_episodes_are_the_same_ones_in_every_call(run: diaster.Run) -> None:
    first, again = run.episodes(2, seed=8), run.episodes(3, seed=8)
    for one, other in zip(first, again, strict=False):
        np.testing.assert_array_equal(one.episode.obs, other.episode.obs)
    with pytest.raises(diaster.DiasterError, match="0 episodes were asked for"):
        run.episodes(0)


def test_a_column_of_the_table_is_drawn_as_a_figure_of_matplotlib(run: diaster.Run) -> None:
    from matplotlib.figure import Figure

    for metric in ("return_mean", "length_mean"):
        figure = run.plot(metric)
        assert isinstance(figure, Figure)
        drawn = [list(line.get_ydata()) for line in figure.axes[0].lines]
        assert [run.progress[metric].mean()] in drawn
    with pytest.raises(diaster.DiasterError, match="return_meen"):
        run.plot("return_meen")


def test_several_runs_share_a_figure(run: diaster.Run, tmp_path: Path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")
    [legend] = diaster.plot(run.path, str(other)).legends
    assert len(legend.get_texts()) == 2


def test_a_notebook_shows_a_figure_that_is_the_value_of_a_cell(run: diaster.Run) -> None:
    figure = run.plot()
    content, how = figure._repr_png_()  # type: ignore[attr-defined]
    assert content.startswith(b"\x89PNG")
    assert how == {"width": round(96 * figure.get_figwidth())}


def test_the_credit_of_an_episode_is_what_its_steps_are_paid(run: diaster.Run) -> None:
    episode = run.episodes(2, seed=8)[1]
    [rewards] = run.step_rewards([episode], seed=8)
    for figure in (run.credit(episode, seed=8), run.credit(1, seed=8, width=3.3)):
        of_steps, of_sums = figure.axes
        drawn = [np.asarray(line.get_ydata()) for line in of_steps.lines]
        assert any(np.array_equal(line, rewards) for line in drawn)
        assert any(np.array_equal(line, episode.true_reward) for line in drawn)
        assert any(np.allclose(line.get_ydata(), np.cumsum(rewards)) for line in of_sums.lines)
    assert figure.get_figwidth() == 3.3
    with pytest.raises(diaster.DiasterError, match="a width of 1 inches"):
        run.credit(width=1)
    for wrong in (-1, "a"):
        with pytest.raises(diaster.DiasterError, match=r"the episode .* was asked for; give a number from 0 on"):
            run.credit(wrong)  # type: ignore[arg-type]


def test_observations_and_actions_of_different_numbers_of_steps_are_refused(run: diaster.Run) -> None:
    obs, actions = np.zeros((4, run.spec.obs_dim)), np.zeros((5, *run.spec.action_shape))
    with pytest.raises(diaster.DiasterError, match="of 4 and 5 steps were given together"):
        run.step_reward(obs, actions)


def test_a_film_is_written_and_its_path_returned(runner: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.gif"
    assert diaster.load(runner).video(out, seed=8) == out
    assert out.read_bytes().startswith(b"GIF8")


def test_the_table_is_a_data_frame_of_pandas(run: diaster.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = run.progress.to_pandas()
    assert list(frame.columns) == list(run.progress)
    assert frame["return_mean"].tolist() == run.progress["return_mean"].tolist()
    assert frame["seed"].dtype == np.int64
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(diaster.DiasterError, match="pip install pandas"):
        run.progress.to_pandas()


def test_a_complete_run_says_why_it_ended_early(run: diaster.Run, tmp_path: Path) -> None:
    assert run.stopped is None
    stopped = diaster.train("Toy-v0", out=tmp_path / "run", **{**TINY, "evaluation": {"every": 20}}, stop_at=-1e9)
    assert stopped.stopped is not None and stopped.stopped.startswith("at step 20 the mean return ")
    assert "reached stop_at=-1e+09" in stopped.stopped
    assert stopped.config.evaluation.stop_at == -1e9

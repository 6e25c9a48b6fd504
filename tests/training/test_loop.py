"""Whole runs, tiny: the same bytes twice, seeds that do not disturb each other, and nothing that leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import EVERY_METHOD, QUICK, XQC, learnt_bytes, small

import diaster
from diaster.config import AGENTS, METHODS, build_config
from diaster.errors import DiasterError
from diaster.learning.learner import Learner
from diaster.run import Run
from diaster.rundir.records import DECOMPOSER, POLICY, read_tensors
from diaster.training.evaluations import POOR_FIT

Trained = Callable[..., Run]


def train(out: Path, env: str = "Toy-v0", **settings: Any) -> Run:
    return diaster.train(env, out=out, **small(**settings))


def test_the_same_settings_give_the_same_bytes_whatever_the_number_of_workers(tmp_path: Path, trained: Trained) -> None:
    assert learnt_bytes(train(tmp_path / "run", seeds=[4, 9], workers=2)) == learnt_bytes(trained(seeds=[4, 9]))


def test_another_seed_gives_another_run(trained: Trained) -> None:
    run = trained(seeds=[4, 9])
    for tensors in (read_tensors(run.path / POLICY), read_tensors(run.path / DECOMPOSER)):
        assert all(not np.array_equal(both[0], both[1]) for name, both in tensors.items() if name.endswith("weight"))


@pytest.mark.parametrize("settings", [{}, {"agent": XQC, "method": "uniform"}], ids=["sac", "xqc"])
def test_a_seed_learns_the_same_alone_and_with_others_up_to_rounding(
    settings: dict[str, Any], trained: Trained
) -> None:
    alone, together = trained(seeds=[9], **settings), trained(seeds=[4, 9], **settings)
    for name in (POLICY, DECOMPOSER):
        single, several = read_tensors(alone.path / name), read_tensors(together.path / name)
        for key, value in single.items():
            np.testing.assert_allclose(value[0], several[key][1], rtol=1e-3, atol=1e-4, err_msg=key)


def test_how_a_total_is_spread_over_the_hidden_step_rewards_does_not_change_a_byte(trained: Trained) -> None:
    even, late = trained(env="ToySpreadEven-v0"), trained(env="ToySpreadLate-v0")
    for name in (POLICY, DECOMPOSER):
        assert (even.path / name).read_bytes() == (late.path / name).read_bytes()
    correlations = [run.progress["reward_correlation"] for run in (even, late)]
    assert not np.array_equal(*correlations)  # the hidden rewards do differ, and only evaluation sees it


def test_only_the_upper_reference_follows_how_a_total_is_spread(trained: Trained) -> None:
    even, late = (trained(env=f"ToySpread{how}-v0", method="dense", agent="ddpg") for how in ("Even", "Late"))
    assert (even.path / POLICY).read_bytes() != (late.path / POLICY).read_bytes()


def test_hidden_rewards_leave_the_environments_for_the_upper_reference_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    kept: dict[str, bool] = {}

    def stop(place: Any, _: Any) -> None:
        kept[method] = place.handling.keep_hidden
        raise StopError

    monkeypatch.setattr("diaster.training.loop.make_collectors", stop)
    for method in METHODS:
        with pytest.raises(StopError):
            train(tmp_path / method, method=method)
    assert kept == {method: method == "dense" for method in METHODS}


AS_USUAL = {"segments_per_episode": 16}  # which whole episodes have no use for
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper", "method": {"batch_episodes": 3, "return_scale": 10.0, **AS_USUAL}},
    "difference": {"method": {"reward_source": "difference", "relabel_every": 20}, "agent": "ddpg"},
    "difference-all": {
        "method": {"reward_source": "difference", "segments": "all", "n_cuts": 3, "relabel_every": 20, **AS_USUAL},
        "agent": "ddpg",
    },
    "terminal-return": {
        "method": {"segments": "all", "n_cuts": 0, "terminal_target": "return", "batch_steps": 40, **AS_USUAL},
        "agent": "ddpg",
    },
    "final-sampled": {
        "method": {"head": "final", "loss": "sum", "episode_draw": "uniform", "normalize_inputs": False},
        "agent": "ddpg",
    },
    "xqc": {"agent": XQC, "method": "uniform", "seeds": [4, 9]},
    "xqc, discrete": {"env": "ToyDiscrete-v0", "agent": XQC, "method": "uniform"},
    **EVERY_METHOD,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_method_and_variant_trains_to_finite_nets_and_reloads(variant: str, trained: Trained) -> None:
    run = trained(**VARIANTS[variant])
    assert run.done
    assert type(run.config.method) is METHODS[run.config.method.name].settings
    for name in (POLICY, DECOMPOSER):
        assert all(np.isfinite(tensor).all() for tensor in read_tensors(run.path / name).values())
    again = diaster.load(run.path)
    assert again.config == run.config
    statistics, _ = again.evaluate(episodes=2)[run.seeds[0]]
    assert np.isfinite(statistics.return_mean)


def test_every_method_and_agent_is_among_those_that_train() -> None:
    runs = [build_config(**small(**{"env": "x", **settings})) for settings in ({}, *VARIANTS.values())]
    assert {config.method.name for config in runs} == set(METHODS)
    assert {config.agent.name for config in runs} == set(AGENTS)


# There are 30 updates in each chunk, and those of two chunks when learning starts: the age of the oldest label that is
# used. The ring holds four chunks: with no renewal but the one at the start, labels see the updates of four.
OLDEST_USED = {1: 0, 29: 0, 30: 30, 59: 30, 60: 60, 89: 60, 10_000: 120}


def test_no_label_that_is_learnt_from_is_older_than_the_configured_number_of_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[np.ndarray] = []

    class Watched(Learner):
        def fit_agent(self, *arguments: Any) -> Any:
            for seed, updates in enumerate(np.asarray(self.state.decomposer.updates)):
                store = jax.tree.map(lambda leaf, seed=seed: leaf[seed], self.store)
                labels = np.asarray(self.labels.values)[seed]
                live = np.arange(int(store.first_live_step), int(store.next_step)) % len(labels)
                ages.append(updates - labels[live])
            return super().fit_agent(*arguments)

    monkeypatch.setattr("diaster.learning.shards.Learner", Watched)
    monkeypatch.setitem(METHODS, "diaster", METHODS["diaster"]._replace(factory="toy_methods:make_counting_of"))
    monkeypatch.setitem(AGENTS, "sac", AGENTS["sac"]._replace(continuous="toy_methods:make_remembering_of"))
    for relabel_every, oldest in OLDEST_USED.items():
        ages.clear()
        schedule = {"updates": 30, "every": 40, "relabel_every": relabel_every}
        out = tmp_path / str(relabel_every)
        train(out, steps=800, seeds=2, method=schedule, replay={"capacity": 180}, evaluation={"every": 800})
        assert len(ages) == 2 * 18  # the warm-up ends with the second of twenty chunks, and has no updates of the agent
        assert min(age.min() for age in ages) >= 0
        assert max(age.max() for age in ages) == oldest <= relabel_every
        assert max(age.max() for age in ages[:2]) == 0, "an agent begins with labels of the net as it is"


def test_progress_has_a_row_per_seed_and_evaluation_and_ends_at_the_last_step(trained: Trained) -> None:
    progress = trained(seeds=[4, 9]).progress
    assert progress["step"].tolist() == [120, 120, 240, 240]
    assert progress["seed"].tolist() == [4, 9, 4, 9]
    assert np.isfinite(progress["critic_loss"]).all()


def test_learning_starts_after_the_warm_up_and_after_two_finished_episodes(trained: Trained) -> None:
    # Episodes of 10 steps: at step 10 there is one, so the first evaluation finds nets that were never updated.
    run = trained(steps=40, chunk_steps=10, warmup_steps=10, evaluation={"every": 10}, **QUICK)
    losses = run.progress["critic_loss"]
    assert np.isnan(losses[0])
    assert np.isfinite(losses[1:]).all()


def test_the_policy_acts_in_the_environments_bounds_and_the_step_reward_speaks_its_units(trained: Trained) -> None:
    run = trained(seeds=[4, 9])
    obs = np.zeros((3, run.spec.obs_dim), np.float32)
    action = run.policy(seed=4)(obs)
    assert action.shape == (3, *run.spec.action_shape)
    assert (action >= run.spec.action_low).all() and (action <= run.spec.action_high).all()
    reward = run.step_reward(obs, action)
    assert reward.shape == (3,)
    one = run.step_reward(obs[0], action[0])
    np.testing.assert_allclose(one, reward[0], rtol=1e-5)


def test_one_program_per_number_of_updates_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Watched(Learner):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr("diaster.learning.shards.Learner", Watched)
    method = {"name": "rrd", "hidden": 4, "subset": 4}
    train(tmp_path / "run", steps=400, seeds=2, method=method, agent="ddpg")
    (learner,) = made
    assert learner._replay._fit._cache_size() == 1
    assert learner._fit_agent._cache_size() == 1
    assert learner._replay._ingest._cache_size() == 1


def test_a_poor_fit_late_in_a_run_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The first update would be at step 1000.
    train(tmp_path / "run", steps=400, method={"updates": 1, "every": 1000}, agent="ddpg")
    assert capsys.readouterr().err.count("explain little of the returns") == 1


def test_a_method_that_fits_nothing_is_not_told_to_fit_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "sac", AGENTS["sac"]._replace(continuous="toy_methods:make_remembering_of"))
    run = train(tmp_path / "run", method="ircr")
    assert run.progress["fit_r2"][-1] < POOR_FIT
    assert "explain little" not in capsys.readouterr().err


def test_seeds_that_never_finished_two_episodes_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"steps": 15, "chunk_steps": 5, "warmup_steps": 10, "evaluation": {"every": 15}, **QUICK}
    run = train(tmp_path / "run", seeds=2, **settings)
    assert "seeds 0, 1 finished fewer than two episodes and never learnt" in capsys.readouterr().err
    assert run.metadata["seconds_to_first_learning"] is None


def test_a_run_that_fails_before_its_first_record_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(diaster.DiasterError, match="nan"):
        train(tmp_path / "new" / "run", "ToyNan-v0", env_retries=0, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_set_up_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diaster.actors import workers

    processes, start = [], workers.start_child

    def noted(*arguments: Any, **options: Any) -> Any:
        process, connection = start(*arguments, **options)
        processes.append(process)
        return process, connection

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(workers, "start_child", noted)
    monkeypatch.setattr("diaster.training.loop.make_learner", fail)
    with pytest.raises(RuntimeError, match="the device is lost"):
        train(tmp_path / "run", workers=1, **QUICK)
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)


def test_episodes_lost_to_faults_are_counted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", "ToyRaises-v0", seeds=2, **QUICK)
    table = run.progress
    assert run.done
    # An environment breaks at its 13th step: 9 of the first 120 steps, 18 of 240.
    assert table.where(seed=1)["faults"].tolist() == [9, 18]
    said = [line for line in capsys.readouterr().err.splitlines() if "dropped" in line]
    assert len(said) == 4
    assert said[3].startswith("warning: 9 episodes were dropped because of seed 1's environment, 18 so far: ")


def test_evaluation_episodes_lost_to_faults_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", "ToyRaises-v0", seeds=2, evaluation={"every": 240, "episodes": 3}, **QUICK)
    said = [line for line in capsys.readouterr().err.splitlines() if "evaluation" in line and "lost" in line]
    assert said == [
        f"warning: the evaluation of seed {seed} at step 240 lost 1 of its 3 episodes to faults of its environment."
        for seed in (0, 1)
    ]


def test_an_environment_that_changes_the_working_directory_moves_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TOY_ELSEWHERE", str(elsewhere))
    run = train(Path("run"), "ToyMoves-v0", **QUICK)
    assert run.path == tmp_path / "run" and run.done
    assert not list(elsewhere.iterdir())


# Nets that diverge


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts NaN into an agent's net of one seed after some calls of its learning."""

    def inject(position: int, *calls: int) -> None:
        fit, made = Learner.fit_agent, []

        def fit_agent(self: Any, *arguments: Any) -> Any:
            metrics = fit(self, *arguments)
            made.append(None)
            if len(made) in calls:
                agent = jax.tree.map(
                    lambda leaf: leaf.at[position].set(np.nan) if leaf.dtype == np.float32 else leaf, self.state.agent
                )
                self.state = self.state._replace(agent=agent)
            return metrics

        monkeypatch.setattr(Learner, "fit_agent", fit_agent)

    return inject


@pytest.mark.parametrize(
    "settings",
    [QUICK, {"method": {"reward_source": "difference", "relabel_every": 20}, "agent": "ddpg"}],
    ids=["rewards", "labels"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_that_diverges_is_rolled_back_and_the_others_keep_every_byte(
    tmp_path: Path,
    poison: Any,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, Any],
    workers: int,
    trained: Trained,
) -> None:
    sound = trained(seeds=2, **settings)
    capsys.readouterr()
    poison(1, 2, 4)
    mended = train(tmp_path / "mended", seeds=2, workers=workers, **settings)
    said = [line for line in capsys.readouterr().err.splitlines() if "diverged" in line]
    assert ["rollback 1 of at most 3" in said[0], "rollback 2 of at most 3" in said[1], len(said)] == [True, True, 2]
    assert all("the nets of seed 1 have" in line for line in said)
    for name in (POLICY, DECOMPOSER):
        one, other = (read_tensors(run.path / name) for run in (sound, mended))
        for key in one:
            np.testing.assert_array_equal(one[key][0], other[key][0])
            assert np.isfinite(other[key]).all()
    assert sound.progress.where(seed=0).rows()[-1] == pytest.approx(
        mended.progress.where(seed=0).rows()[-1], nan_ok=True
    )


def test_a_seed_that_diverges_again_and_again_ends_the_run_with_a_diagnosis(tmp_path: Path, poison: Any) -> None:
    poison(0, *range(1, 100))
    with pytest.raises(DiasterError, match=r"seed 0 have diverged 4 times .* lower --agent.learning-rate"):
        train(tmp_path / "run", **QUICK)


def test_a_rollback_never_returns_to_nets_that_have_diverged_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = Learner.keep_nets
    poisoned: list[None] = []

    def poison_before(self: Any) -> None:
        """The decomposer is lost in the last updates before an evaluation; the policy has not learnt from it yet."""
        if not poisoned:
            poisoned.append(None)
            lost = jax.tree.map(
                lambda leaf: jax.numpy.full_like(leaf, np.nan) if leaf.dtype == np.float32 else leaf,
                self.state.decomposer,
            )
            self.state = self.state._replace(decomposer=lost)
        keep(self)

    monkeypatch.setattr(Learner, "keep_nets", poison_before)
    method = {"name": "rrd", "hidden": 4, "subset": 4}
    run = train(tmp_path / "run", method=method, agent="ddpg")
    assert run.done
    assert sum("diverged" in line for line in capsys.readouterr().err.splitlines()) == 1
    assert all(np.isfinite(array).all() for array in read_tensors(run.path / DECOMPOSER).values())


def test_a_seed_draws_other_random_numbers_after_a_rollback(tmp_path: Path, poison: Any, trained: Trained) -> None:
    # Poisoned in its first learning it returns to its beginning, and learns the same from there but for its draws.
    sound = trained(evaluation={"every": 240}, **QUICK)
    poison(0, 1)
    mended = train(tmp_path / "mended", evaluation={"every": 240}, **QUICK)
    weights = [read_tensors(run.path / POLICY)["layers.0.weight"] for run in (sound, mended)]
    assert not np.array_equal(*weights)

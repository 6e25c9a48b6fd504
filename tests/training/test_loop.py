"""Whole runs, tiny: the same bytes twice, seeds that do not disturb each other, and nothing that leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import EVERY_METHOD, SMALL, learnt_bytes, small
from toy_methods import make_counting, make_remembering

import diaster
from diaster.config import METHODS, build_config
from diaster.errors import DiasterError
from diaster.learning import learner as learner_module
from diaster.learning import policies, registry
from diaster.run import Run
from diaster.rundir.records import DECOMPOSER, POLICY, read_tensors
from diaster.rundir.writer import RunWriter
from diaster.training import loop as training
from diaster.training.evaluations import POOR_FIT
from diaster.training.progress import Silent
from diaster.training.resolve import resolve
from diaster.training.schedule import chunk_ends, crosses, updates_due
from diaster.training.train import run_training


def train(out: Path, env: str = "Toy-v0", **settings: Any) -> Run:
    return diaster.train(env, out=out, **small(**settings))


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (train(tmp_path / name, seeds=[4, 9]) for name in ("first", "second"))
    assert learnt_bytes(first) == learnt_bytes(second)


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    run = train(tmp_path / "run", seeds=2)
    for tensors in (read_tensors(run.path / POLICY), read_tensors(run.path / DECOMPOSER)):
        assert all(not np.array_equal(both[0], both[1]) for name, both in tensors.items() if name.endswith("weight"))


def test_a_seed_learns_the_same_alone_and_beside_others_up_to_rounding(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", seeds=[9])
    beside = train(tmp_path / "beside", seeds=[4, 9, 2])
    for name in (POLICY, DECOMPOSER):
        single, several = read_tensors(alone.path / name), read_tensors(beside.path / name)
        for key, value in single.items():
            np.testing.assert_allclose(value[0], several[key][1], rtol=1e-3, atol=1e-4, err_msg=key)


def test_the_number_of_workers_does_not_change_a_byte(tmp_path: Path) -> None:
    here, there = train(tmp_path / "here", seeds=2), train(tmp_path / "there", seeds=2, workers=2)
    assert learnt_bytes(here) == learnt_bytes(there)


def test_learning_is_launched_before_anybody_waits_for_the_learning_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, send = learner_module.Learner.fit_agent, policies.PoliciesOfLearner.__init__
    launches: list[None] = []
    reads: list[tuple[int, int]] = []  # of the policies of so many launches, when so many had been made

    def fit_agent(self: Any, *arguments: Any) -> Any:
        launches.append(None)
        return fit(self, *arguments)

    def noted(self: Any, *arguments: Any) -> None:
        send(self, *arguments)
        self.number = len(launches)

    def reading(plain: Any) -> property:
        def read(self: Any) -> Any:
            reads.append((self.number, len(launches)))
            return plain(self)

        return property(read)

    monkeypatch.setattr(learner_module.Learner, "fit_agent", fit_agent)
    monkeypatch.setattr(policies.PoliciesOfLearner, "__init__", noted)
    for name in ("times_back", "tree"):
        plain = vars(policies.PoliciesOfLearner)[name].func
        monkeypatch.setattr(policies.PoliciesOfLearner, name, reading(plain))
    train(tmp_path / "run", chunk_steps=20, evaluation={"every": 60, "episodes": 1}, method="uniform", agent="ddpg")
    last = len(launches)
    assert last > 5
    assert {of for of, _ in reads} == set(range(last + 1))
    assert all(made >= min(of + 1, last) for of, made in reads if of > 0), reads


def test_a_chunk_that_takes_long_is_not_collected_ahead_so_that_who_stops_need_not_wait_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Ahead(monkeypatch)
    monkeypatch.setattr(training, "SHORT_CHUNK", 0.0)
    train(tmp_path / "run", workers=1, steps=160, method="uniform", agent="ddpg")
    assert noted.times == 0


def test_how_a_total_is_spread_over_the_hidden_step_rewards_does_not_change_a_byte(tmp_path: Path) -> None:
    even, late = train(tmp_path / "even", "ToySpreadEven-v0"), train(tmp_path / "late", "ToySpreadLate-v0")
    for name in (POLICY, DECOMPOSER):
        assert (even.path / name).read_bytes() == (late.path / name).read_bytes()
    correlations = [run.progress["reward_correlation"] for run in (even, late)]
    assert not np.array_equal(*correlations)  # the hidden rewards do differ, and only evaluation sees it


def test_only_the_upper_reference_follows_how_a_total_is_spread(tmp_path: Path) -> None:
    even, late = (
        train(tmp_path / env, env, method="dense", agent="ddpg") for env in ("ToySpreadEven-v0", "ToySpreadLate-v0")
    )
    assert (even.path / POLICY).read_bytes() != (late.path / POLICY).read_bytes()


@pytest.mark.parametrize("method", METHODS)
def test_hidden_rewards_leave_the_environments_for_the_upper_reference_alone(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    def stop(place: Any, _: Any) -> None:
        assert place.handling.keep_hidden == (method == "dense")
        raise StopError

    monkeypatch.setattr("diaster.training.loop.make_collectors", stop)
    monkeypatch.setattr("diaster.training.loop.Learner", lambda *_: None)
    with pytest.raises(StopError):
        train(tmp_path / "run", method=method)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "paper", "decomposer": {"batch_episodes": 3, "return_scale": 10.0}},
        {"decomposer": {"reward_source": "difference", "relabel_every": 20}},
        {"decomposer": {"reward_source": "difference", "segments": "all", "n_cuts": 3, "relabel_every": 20}},
        {"decomposer": {"segments": "all", "n_cuts": 0, "terminal_target": "return", "batch_steps": 40}},
        {"decomposer": {"head": "final", "loss": "sum", "episode_draw": "uniform", "normalize_inputs": False}},
    ],
    ids=["paper", "difference", "difference-all", "terminal-return", "final-sampled"],
)
def test_every_variant_trains_to_finite_nets_and_reloads(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = train(tmp_path / "run", **settings)
    assert run.done
    for name in (POLICY, DECOMPOSER):
        assert all(np.isfinite(tensor).all() for tensor in read_tensors(run.path / name).values())
    statistics, _ = diaster.load(run.path).evaluate(episodes=2)[0]
    assert np.isfinite(statistics.return_mean)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_other_method_trains_with_some_learner_and_reloads(tmp_path: Path, method: str) -> None:
    run = train(tmp_path / "run", method=method, **EVERY_METHOD[method])
    assert run.done
    assert (run.config.method, type(run.config.method)) == (method, METHODS[method].settings)
    for name in (POLICY, DECOMPOSER):
        assert all(np.isfinite(tensor).all() for tensor in read_tensors(run.path / name).values())
    again = diaster.load(run.path)
    assert again.config == run.config
    statistics, _ = again.evaluate(episodes=2)[0]
    assert np.isfinite(statistics.return_mean)


def test_every_method_is_among_those_that_train() -> None:
    assert {"diaster", *EVERY_METHOD} == set(METHODS)


# There are 30 updates in each chunk, and those of two chunks when learning starts: the age of the oldest label that is
# used. The ring holds four chunks: without a renewal the labels of the second one see the updates of five.
OLDEST_USED = {1: 0, 29: 0, 30: 30, 59: 30, 60: 60, 89: 60, 10_000: 150}


@pytest.mark.parametrize("relabel_every", OLDEST_USED)
def test_no_label_that_is_learnt_from_is_older_than_the_configured_number_of_updates(
    tmp_path: Path, relabel_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages: list[np.ndarray] = []

    class Watched(learner_module.Learner):
        def fit_agent(self, *arguments: Any) -> Any:
            for seed, updates in enumerate(np.asarray(self.state.decomposer.updates)):
                store = jax.tree.map(lambda leaf, seed=seed: leaf[seed], self.store)
                assert self.labels is not None
                labels = np.asarray(self.labels)[seed]
                live = np.arange(int(store.first_live_step), int(store.next_step)) % len(labels)
                ages.append(updates - labels[live])
            return super().fit_agent(*arguments)

    monkeypatch.setattr("diaster.training.loop.Learner", Watched)
    monkeypatch.setitem(registry.METHODS, "diaster", lambda config, horizon: make_counting())
    monkeypatch.setitem(registry.CONTINUOUS_AGENTS, "sac", lambda config: make_remembering(config.batch_size))
    schedule = {"updates": 30, "every": 40, "relabel_every": relabel_every}
    train(tmp_path / "run", steps=800, seeds=2, decomposer=schedule, replay={"capacity": 180})
    assert len(ages) == 2 * 18  # the warm-up is over in the second of twenty chunks, and has no updates of the learner
    assert min(age.min() for age in ages) >= 0
    assert max(age.max() for age in ages) == OLDEST_USED[relabel_every] <= relabel_every


def test_progress_has_a_row_per_seed_and_evaluation_and_ends_at_the_last_step(tmp_path: Path) -> None:
    progress = train(tmp_path / "run", seeds=[4, 9]).progress
    assert progress["step"].tolist() == [120, 120, 240, 240]
    assert progress["seed"].tolist() == [4, 9, 4, 9]
    assert np.isfinite(progress["critic_loss"]).all()


def test_learning_starts_after_the_warm_up_and_after_two_finished_episodes(tmp_path: Path) -> None:
    # Episodes of 10 steps: at step 10 there is one, so the first evaluation finds nets that were never updated.
    run = train(tmp_path / "run", steps=40, chunk_steps=10, warmup_steps=10, evaluation={"every": 10})
    losses = run.progress["critic_loss"]
    assert np.isnan(losses[0])
    assert np.isfinite(losses[1:]).all()


def test_the_policy_acts_in_the_environments_bounds_and_the_step_reward_speaks_its_units(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    obs = np.zeros((3, run.spec.obs_dim), np.float32)
    action = run.policy(seed=0)(obs)
    assert action.shape == (3, *run.spec.action_shape)
    assert (action >= run.spec.action_low).all() and (action <= run.spec.action_high).all()
    reward = run.step_reward(obs, action)
    assert reward.shape == (3,)
    one = run.step_reward(obs[0], action[0])
    np.testing.assert_allclose(one, reward[0], rtol=1e-5)


def test_one_program_per_number_of_updates_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diaster.learning import learner as module

    made = []

    class Watched(module.Learner):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr("diaster.training.loop.Learner", Watched)
    config = build_config(env="Toy-v0", **{**SMALL, "steps": 400, "seeds": 2})
    run_training(config, tmp_path / "run", Silent())
    (learner,) = made
    assert learner._fit_decomposer._cache_size() == 1
    assert learner._fit_agent._cache_size() == 1
    assert learner._ingest._cache_size() == 1


def test_a_poor_fit_late_in_a_run_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The first update would be at step 1000.
    train(tmp_path / "run", steps=400, decomposer={"updates": 1, "every": 1000})
    assert capsys.readouterr().err.count("explain little of the returns") == 1


def test_a_method_that_fits_nothing_is_not_told_to_fit_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.CONTINUOUS_AGENTS, "sac", lambda config: make_remembering(config.batch_size))
    run = train(tmp_path / "run", method="ircr")
    assert run.progress["fit_r2"][-1] < POOR_FIT
    assert "explain little" not in capsys.readouterr().err


def test_the_decomposer_is_owed_the_updates_of_the_warm_up() -> None:
    config = build_config(env="x")
    assert updates_due(config.method, 5000) == 1250
    assert updates_due(config.agent, 0) == 0


@pytest.mark.parametrize(("envs", "steps", "warmup_steps"), [(1, 300, 30), (5, 300, 50), (9, 120, 60)])
def test_environments_side_by_side_warm_up_until_each_can_have_ended_an_episode(
    envs: int, steps: int, warmup_steps: int
) -> None:
    config = build_config(env="Toy-v0", **{**SMALL, "warmup_steps": "auto", "steps": steps, "envs": envs})
    assert resolve(config)[0].warmup_steps == warmup_steps


def test_chunks_meet_the_warm_up_and_the_last_step() -> None:
    config, _ = resolve(build_config(env="Toy-v0", **{**SMALL, "warmup_steps": 50, "steps": 130}))
    assert chunk_ends(config) == [40, 50, 80, 120, 130]
    assert [
        end for before, end in zip([0, 40, 50, 80], [40, 50, 80, 120], strict=True) if crosses(60, before, end)
    ] == [
        80,
        120,
    ]


def test_seeds_that_never_finished_two_episodes_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", seeds=2, steps=15, chunk_steps=5, warmup_steps=10, evaluation={"every": 15})
    assert "seeds 0, 1 finished fewer than two episodes and never learnt" in capsys.readouterr().err
    assert run.metadata["seconds_to_first_learning"] is None


def test_a_run_that_fails_before_its_first_record_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(diaster.DiasterError, match="nan"):
        train(tmp_path / "new" / "run", "ToyNan-v0", env_retries=0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_another_run_takes_meanwhile_is_refused(tmp_path: Path) -> None:
    first, second = (RunWriter(tmp_path / "run", build_config(env="x"), {}) for _ in range(2))
    first.claim()
    with pytest.raises(diaster.DiasterError, match="taken by another run"):
        second.claim()


def test_episodes_lost_to_faults_are_counted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", "ToyRaises-v0", seeds=2, quiet=True)
    table = run.progress
    assert run.done
    # An environment breaks at its 13th step: 9 of the first 120 steps, 18 of 240.
    assert table.where(seed=1)["faults"].tolist() == [9, 18]
    said = [line for line in capsys.readouterr().err.splitlines() if "dropped" in line]
    assert len(said) == 4
    assert said[3].startswith("warning: 9 episodes were dropped because of seed 1's environment, 18 so far: ")


def test_evaluation_episodes_lost_to_faults_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", "ToyRaises-v0", seeds=2, evaluation={"every": 240, "episodes": 3})
    said = [line for line in capsys.readouterr().err.splitlines() if "evaluation" in line and "lost" in line]
    assert said == [
        f"warning: the evaluation of seed {seed} at step 240 lost 1 of its 3 episodes to faults of its environment."
        for seed in (0, 1)
    ]


# Nets that diverge


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts NaN into an agent's net of one seed after so many calls of its learning."""

    def inject(position: int, *calls: int, patch: pytest.MonkeyPatch = monkeypatch) -> None:
        fit, made = learner_module.Learner.fit_agent, []

        def fit_agent(self: Any, *arguments: Any) -> Any:
            metrics = fit(self, *arguments)
            made.append(None)
            if len(made) in calls:
                agent = jax.tree.map(
                    lambda leaf: leaf.at[position].set(np.nan) if leaf.dtype == np.float32 else leaf, self.state.agent
                )
                self.state = self.state._replace(agent=agent)
            return metrics

        patch.setattr(learner_module.Learner, "fit_agent", fit_agent)

    return inject


@pytest.mark.parametrize("settings", [{}, {"decomposer": {"reward_source": "difference", "relabel_every": 20}}])
def test_a_seed_that_diverges_goes_back_and_the_others_keep_every_byte(
    tmp_path: Path, poison: Any, capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    sound = train(tmp_path / "sound", seeds=2, **settings)
    capsys.readouterr()
    poison(1, 2, 4)
    mended = train(tmp_path / "mended", seeds=2, **settings)
    said = [line for line in capsys.readouterr().err.splitlines() if "diverged" in line]
    assert [line.split(" time")[0].split()[-1] for line in said] == ["first", "second"]
    assert all("the nets of seed 1 have" in line for line in said)
    for name in (POLICY, DECOMPOSER):
        one, other = (read_tensors(run.path / name) for run in (sound, mended))
        for key in one:
            np.testing.assert_array_equal(one[key][0], other[key][0])
            assert np.isfinite(other[key]).all()
    assert sound.progress.where(seed=0).rows()[-1] == pytest.approx(
        mended.progress.where(seed=0).rows()[-1], nan_ok=True
    )


def test_a_seed_that_diverges_while_it_collects_ahead_does_not_change_a_byte_of_that(
    tmp_path: Path, poison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for name, workers in (("here", 0), ("ahead", 2)):
        with monkeypatch.context() as patch:
            noted = Ahead(patch)
            poison(1, 3, patch=patch)
            settings = {"seeds": 2, "chunk_steps": 20, "method": "uniform", "agent": "ddpg"}
            runs.append(train(tmp_path / name, workers=workers, **settings))
    assert noted.times >= 5
    assert learnt_bytes(runs[0]) == learnt_bytes(runs[1])


def test_a_seed_that_diverges_again_and_again_ends_the_run_with_a_diagnosis(tmp_path: Path, poison: Any) -> None:
    poison(0, *range(1, 100))
    with pytest.raises(DiasterError, match=r"seed 0 have diverged 4 times .* lower --agent.learning-rate"):
        train(tmp_path / "run")


def test_a_seed_never_goes_back_to_nets_that_have_diverged_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = training.Trainer._start_evaluation
    poisoned: list[None] = []

    def poison_before(self: Any) -> None:
        """The decomposer is lost in the last updates before an evaluation, and the policy has not been told yet."""
        if self._due is not None and not poisoned:
            poisoned.append(None)
            learner = self._learner
            lost = jax.tree.map(
                lambda leaf: jax.numpy.full_like(leaf, np.nan) if leaf.dtype == np.float32 else leaf,
                learner.state.decomposer,
            )
            learner.state = learner.state._replace(decomposer=lost)
        start(self)

    monkeypatch.setattr(training.Trainer, "_start_evaluation", poison_before)
    run = train(tmp_path / "run")
    assert run.done
    assert sum("diverged" in line for line in capsys.readouterr().err.splitlines()) == 1
    assert all(np.isfinite(array).all() for array in read_tensors(run.path / DECOMPOSER).values())


def test_a_seed_that_went_back_draws_other_random_numbers(tmp_path: Path, poison: Any) -> None:
    # Poisoned in its first learning it goes back to its beginning, and learns the same from there but for its draws.
    sound = train(tmp_path / "sound", evaluation={"every": 240})
    poison(0, 1)
    mended = train(tmp_path / "mended", evaluation={"every": 240})
    weights = [read_tensors(run.path / POLICY)["layers.0.weight"] for run in (sound, mended)]
    assert not np.array_equal(*weights)

import warnings

import numpy as np
import pytest
from data_sets import agent_turns, told, walks

import diaster
from diaster.errors import DiasterError
from diaster.offline import fitting

SMALL = {"hidden": 8, "batch_episodes": 4}
DIASTER = {"name": "diaster", **SMALL, "segment_length": 2, "segments_per_episode": 4}
QUICK = {"method": DIASTER, "updates": 20, "check_every": 10}


def quietly(data, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a small data set has few held-out episodes
        return diaster.fit(data, **{**QUICK, **settings})


def correlation(model, episodes, told_episodes) -> float:
    mine = np.concatenate([model.rewards(episode) for episode in told_episodes])
    return float(np.corrcoef(mine, np.concatenate([e["rewards"] for e in episodes]))[0, 1])


def test_rewards_are_found_from_their_sums() -> None:
    stored, fresh = walks(80), walks(10, seed=1)
    model = quietly(told(stored), updates=0)
    assert model.fit_r2 > 0.99 and model.fit_r2_interval[0] > 0.9
    assert correlation(model, fresh, told(fresh)) > 0.99


def test_rewards_of_single_steps_are_seen_only_as_their_sum() -> None:
    stored = walks(30)
    shuffled = [{**e, "rewards": e["rewards"][::-1]} for e in stored]
    one, other, third = (quietly(data) for data in (stored, shuffled, told(stored)))
    for episode in told(walks(3, seed=1)):
        assert np.allclose(one.rewards(episode), other.rewards(episode), rtol=1e-5, atol=1e-5)
        assert np.allclose(one.rewards(episode), third.rewards(episode), rtol=1e-5, atol=1e-5)


def test_a_net_finds_what_is_not_linear() -> None:
    def bent(seed: int) -> list[dict]:
        return [{**e, "rewards": np.abs(e["actions"][:, 0])} for e in walks(120, seed, obs_dim=1, action_dim=1)]

    net = {"name": "rrd", "hidden": 32, "subset": 16, "base": "none", "learning_rate": 3e-3}
    model = quietly(told(bent(0)), method=net, updates=400, check_every=100)
    assert model.results["updates"] > 0 and model.fit_r2 > 0.5
    assert correlation(model, bent(1)[:10], told(bent(1)[:10])) > 0.8


def test_the_state_with_the_least_held_out_error_is_taken() -> None:
    model = quietly(told(walks(30)), updates=60, check_every=10, patience=3)
    looks = model.evidence.looks
    best = min(looks, key=lambda look: look.error)
    assert model.results["updates"] == min(look.update for look in looks if look.error == best.error)
    assert model.results["held_out_error"] == best.error and looks[0].update == 0


def test_it_stops_when_the_error_has_not_fallen_for_some_looks() -> None:
    random = np.random.default_rng(0)
    noise = [{**e, "return": random.normal()} for e in told(walks(30))]
    model = quietly(noise, updates=10_000, check_every=5, patience=3)
    assert model.evidence.looks[-1].update <= model.results["updates"] + 3 * 5 < 10_000


def test_a_seed_gives_the_same_model_and_another_one_another() -> None:
    stored, episode = told(walks(20)), told(walks(1, seed=1))[0]
    one, same, other = (quietly(stored, seed=seed).rewards(episode) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_of_an_outcome_the_credit_goes_to_the_turn_that_decided_it() -> None:
    records, decisive = agent_turns(160)
    model = quietly(records, outcome="binary", method={"name": "rrd", "hidden": 8}, updates=0)
    assert model.fit_r2 > 0.8
    for record, place in zip(records[:20], decisive[:20], strict=True):
        change = model.rewards(record, exact_sum=False)
        assert np.abs(change).argmax() == place and abs(change[place]) > 0.7 * np.abs(change).sum()
        assert (change[place] > 0) == bool(record["outcome"])
        assert model.rewards(record).sum() == pytest.approx(record["outcome"], abs=1e-9)  # of turns, by default


def by_chance(n: int) -> list[dict]:
    """Walks that succeed or not; a larger sum of rewards makes success more likely."""
    episodes = walks(n)
    sums = np.array([e["rewards"].sum() for e in episodes])
    success = np.random.default_rng(0).random(n) < 1.0 / (1.0 + np.exp(-3.0 * (sums - sums.mean()) / sums.std()))
    return [{**e, "return": float(one)} for e, one in zip(told(episodes), success, strict=True)]


def test_of_outcomes_a_linear_reward_alone_gets_better_as_its_targets_are_renewed() -> None:
    model = quietly(by_chance(200), outcome="binary", updates=0)
    errors = [look.error for look in model.evidence.looks]
    # The net beside it is never updated: what it says by chance is in no target.
    assert errors[-1] < 1.05 * min(errors) and min(errors) < 0.98 * errors[0]


def test_an_ensemble_is_fitted_beside_a_linear_reward() -> None:
    model = quietly(told(walks(40)), method={**DIASTER, "ensemble": 2})
    assert model.fit_r2 > 0.9


def test_in_groups_what_is_the_same_for_all_attempts_gets_no_credit() -> None:
    random = np.random.default_rng(0)
    records, _ = agent_turns(240)
    for number, record in enumerate(records):
        ease = np.random.default_rng(number // 4).normal()
        record["outcome"] = 3.0 * ease + record["outcome"] + 0.01 * random.normal()
        for turn in record["turns"]:
            turn["ease"] = ease
    alone = [{key: value for key, value in record.items() if key != "group"} for record in records]
    first = records[0]["turns"]
    easier = [dict(turn, ease=turn["ease"] + 1.0) for turn in first]
    gains = []
    for data in (records, alone):
        model = quietly(data, method={"name": "rrd", "hidden": 8}, updates=0)
        before, after = (model.rewards({"turns": turns}, exact_sum=False).sum() for turns in (first, easier))
        gains.append(after - before)
    assert abs(gains[0]) < 0.6 < 2.0 < gains[1]


def test_turns_are_fitted_by_the_method_that_serves_them_best_unless_one_is_named() -> None:
    records, _ = agent_turns(24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert diaster.fit(records, updates=0).settings.method.name == "rrd"
    assert quietly(records, updates=0).settings.method.name == "diaster"


@pytest.mark.parametrize("name", ["diaster", "rrd", "rd", "rudder", "ircr", "uniform", "episodic"])
def test_every_method_but_the_reference_can_be_fitted(name: str) -> None:
    small = {"hidden": 8} if name in ("diaster", "rrd", "rd", "rudder") else {}
    model = quietly(told(walks(24)), method={"name": name, **small}, updates=4, check_every=2)
    episode = told(walks(1, seed=1))[0]
    assert np.isfinite(model.rewards(episode)).all()
    assert np.isnan(model.fit_r2) == (name in ("rudder", "ircr", "uniform", "episodic"))


def test_rewards_made_from_their_own_episodes_return_are_not_judged() -> None:
    with pytest.warns(UserWarning, match="no held-out error tells how good they are"):
        diaster.fit(told(walks(12)), method="uniform")


def test_the_differences_themselves_can_be_the_rewards() -> None:
    method = {**DIASTER, "base": "none", "reward_source": "difference"}
    model = quietly(told(walks(12)), method=method)
    longer = {"observations": np.zeros((60, 3)), "actions": np.zeros((60, 2)), "return": 1.0}
    assert model.rewards(longer).shape == (60,)  # more steps than any episode that was fitted to


def test_the_reference_has_nothing_to_fit() -> None:
    with pytest.raises(DiasterError, match="the method 'dense' takes the hidden rewards as they are"):
        diaster.fit(told(walks(12)), method="dense")


def test_discrete_actions_are_one_hot() -> None:
    random = np.random.default_rng(0)
    stored = []
    for episode in walks(80):
        actions = random.integers(2, 5, size=len(episode["actions"]))
        stored.append({**episode, "actions": actions, "rewards": (actions == 4).astype(float)})
    model = quietly(told(stored), updates=0)
    assert correlation(model, stored[:5], told(stored[:5])) > 0.95
    with pytest.raises(DiasterError, match="row 1 has the action 5, and the model knows 2 to 4"):
        model.rewards({"observations": np.zeros((2, 3)), "actions": [2, 5]})


def test_a_poor_fit_is_warned_of() -> None:
    random = np.random.default_rng(0)
    noise = [{**e, "return": random.normal()} for e in told(walks(60))]
    with pytest.warns(UserWarning, match="the rewards are not shown to explain anything"):
        diaster.fit(noise, **QUICK)


def test_what_does_not_fit_into_memory_is_left_out_and_said(monkeypatch) -> None:
    monkeypatch.setattr("diaster.offline.fit.rows_within", lambda megabytes, spec: 100)
    with pytest.warns(UserWarning) as said:
        model = diaster.fit(told(walks(40)), updates=0)
    assert "episodes to fit to, drawn at random, were left out because of --memory" in str(said[-1].message)
    assert model.data["fitted"] + model.data["left_out"] == 32


def test_an_episode_that_is_longer_than_memory_allows_is_refused() -> None:
    stored = [
        {"observations": np.zeros((300_000, 3)), "actions": np.zeros(300_000), "return": float(n)} for n in range(4)
    ]
    with pytest.raises(
        DiasterError, match="the longest episode has 300,000 steps, for which --memory 16 is too little"
    ):
        diaster.fit(stored, memory=16)


def test_many_episodes_go_to_the_device_in_blocks(monkeypatch) -> None:
    stored, episode = told(walks(40)), told(walks(1, seed=1))[0]
    whole = quietly(stored).rewards(episode)
    monkeypatch.setattr(fitting, "BLOCK_BYTES", 2000)
    assert np.allclose(quietly(stored).rewards(episode), whole, atol=1e-4)


def test_outcomes_of_one_kind_only_are_refused() -> None:
    records, _ = agent_turns(24)
    for record in records:
        record["outcome"] = 1
    with pytest.raises(DiasterError, match="all 24 episodes of the data set have the outcome 1"):
        diaster.fit(records, outcome="binary")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"outcom": "sum"}, "unknown setting in the call 'outcom'"),
        ({"outcome": "votes"}, "'outcome' in the call is 'votes'; it has to be 'sum' or 'binary'"),
        ({"held_out": 0.95}, "held_out=0.95 is too large"),
        ({"method": "rdd"}, "unknown method 'rdd'"),
        ({"method": {"name": "rrd", "hiden": 3}}, "unknown setting in the call 'method.hiden'"),
        ({"method": {"name": "diaster", "n_cuts": 3}}, "method.n_cuts=3 has no effect on sampled segments"),
        ({"method": {"name": "diaster", "segments": "all", "n_cuts": 99}}, "method.n_cuts=99 exceeds the horizon"),
        ({"method": {"name": "diaster", "batch_steps": 50}}, "method.batch_steps=50 has no effect on sampled segments"),
        ({"method": {"name": "diaster", "reward_source": "difference"}}, "use --method.base none"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, sentence: str) -> None:
    with pytest.raises(DiasterError, match=sentence):
        diaster.fit(told(walks(6)), **settings)


def test_diaster_is_quick_to_import(python) -> None:
    code = (
        "import diaster, sys; diaster.fit; print('jax' in sys.modules, 'h5py' in sys.modules, 'pyarrow' in sys.modules)"
    )
    assert (
        python("-c", "import diaster, sys; print('jax' in sys.modules, 'numpy' in sys.modules)").stdout
        == "False False\n"
    )
    assert python("-c", code).stdout == "True False False\n"

import warnings

import numpy as np
import pytest
from data_sets import agent_turns, flat, told, walks, write_hdf5, write_json_lines, write_npz, write_parquet

import diaster
from diaster.errors import DiasterError
from diaster.offline import episodes
from diaster.offline.decomposition import Decomposition
from diaster.offline.faults import Faults
from diaster.offline.opening import open_source
from diaster.offline.progress import Quiet


def quietly(data, **settings) -> Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return diaster.fit(data, **{"updates": 0, "method": {"name": "diaster", "hidden": 8}, **settings})


@pytest.fixture(scope="module")
def model() -> Decomposition:
    return quietly(told(walks(24)))


@pytest.fixture(scope="module")
def of_turns() -> Decomposition:
    return quietly(agent_turns(40)[0], outcome="binary")


def test_relabelled_rewards_are_those_of_the_episodes_one_by_one(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(episodes, "MOST_TOGETHER", 40)
    stored = walks(12, seed=1)
    found = model.relabel(write_npz(tmp_path / "set.npz", flat(stored, with_last=True)), tmp_path / "new.npz")
    alone = np.concatenate([model.rewards(episode) for episode in told(stored)])
    assert np.allclose(found.rewards, alone, atol=1e-5) and len(alone) == len(flat(stored)["rewards"])
    assert np.array_equal(np.load(tmp_path / "new.npz")["rewards"], found.rewards)


@pytest.mark.parametrize("suffix", ["npz", "hdf5", "parquet", "jsonl"])
def test_the_data_set_itself_is_never_touched(model, tmp_path, suffix: str) -> None:
    stored = walks(6, seed=1)
    path = tmp_path / f"set.{suffix}"
    if suffix == "npz":
        write_npz(path, flat(stored))
    else:
        {"hdf5": write_hdf5, "parquet": write_parquet, "jsonl": write_json_lines}[suffix](path, stored)
    before, then = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    quietly(path)
    model.relabel(path, tmp_path / f"new.{suffix}")
    assert path.read_bytes() == before and path.stat().st_mtime_ns == then
    again = list(open_source(tmp_path / f"new.{suffix}", Faults()).episodes())
    assert np.allclose(again[2].rewards, stored[2]["rewards"])  # its own rewards go before learnt ones


@pytest.mark.parametrize("outcome", ["sum", "binary"])
def test_an_exact_sum_makes_all_rewards_add_up(tmp_path, outcome: str) -> None:
    stored = told(walks(24))
    for episode in stored:
        episode["return"] = float(episode["return"] > 0.0) if outcome == "binary" else episode["return"]
    model = quietly(stored, outcome=outcome, exact_sum=True)
    path = write_json_lines(tmp_path / "set.jsonl", stored)
    sums = [rewards.sum() for rewards in model.relabel(path, tmp_path / "new.jsonl").by_episode()]
    assert sums == pytest.approx([episode["return"] for episode in stored], abs=1e-9)
    loose = model.relabel(path, tmp_path / "loose.jsonl", exact_sum=False).by_episode()
    assert [rewards.sum() for rewards in loose] != pytest.approx(sums, abs=1e-4)
    if outcome == "binary":
        assert max(abs(rewards.sum()) for rewards in loose) < 1.0  # a difference of two probabilities


def test_turns_come_back_with_rewards_that_sum_to_their_outcome(of_turns, tmp_path) -> None:
    import json

    records, _ = agent_turns(12, seed=1)
    of_turns.relabel(write_json_lines(tmp_path / "set.jsonl", records), tmp_path / "new.jsonl")
    for line, record in zip((tmp_path / "new.jsonl").read_text().splitlines(), records, strict=True):
        assert sum(json.loads(line)["turn_rewards"]) == pytest.approx(record["outcome"], abs=1e-9)


def test_rewards_need_no_return_unless_they_are_to_add_up_to_it(model) -> None:
    episode = told(walks(1, seed=1))[0]
    without = {name: value for name, value in episode.items() if name != "return"}
    assert np.array_equal(model.rewards(without), model.rewards(episode))
    with pytest.raises(DiasterError, match="the episode: it has neither a return nor rewards"):
        model.rewards(without, exact_sum=True)


def test_data_of_another_form_are_refused_before_anything_is_written(model, tmp_path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(walks(3, obs_dim=5)))
    with pytest.raises(DiasterError, match=r"episode 0 has observations of 5 numbers, .* and the model was fitted to"):
        model.relabel(path, tmp_path / "new.npz")
    assert not (tmp_path / "new.npz").exists()
    with pytest.raises(DiasterError, match="has no episode that can be relabelled"):
        model.relabel(path, tmp_path / "new.npz", skip_bad=True)


def test_bad_episodes_are_left_out_of_the_copy_and_counted(model, tmp_path) -> None:
    stored = walks(5, seed=1)
    arrays = flat(stored)
    arrays["actions"][0, 0] = np.nan
    path = write_npz(tmp_path / "set.npz", arrays)
    with pytest.raises(DiasterError, match="episode 0: row 0 of its actions holds nan"):
        model.relabel(path, tmp_path / "new.npz")
    assert not (tmp_path / "new.npz").exists()
    source = open_source(path, Faults(skip=True))
    found = model.relabelled(source, None, Quiet())
    assert found.is_kept.tolist() == [False, True, True, True, True] and source.faults.n_episodes == 1


def test_a_saved_model_gives_the_same_rewards(model, of_turns, tmp_path) -> None:
    episodes = (told(walks(1, seed=1))[0], agent_turns(1, seed=1)[0][0])
    for name, (one, episode) in {"steps": (model, episodes[0]), "turns": (of_turns, episodes[1])}.items():
        one.save(tmp_path / name)
        loaded = Decomposition.load(tmp_path / name)
        assert np.array_equal(loaded.rewards(episode), one.rewards(episode))
        assert loaded.settings == one.settings and loaded.results == one.results and loaded.form == one.form
        assert loaded.fit_r2_interval == pytest.approx(one.fit_r2_interval, nan_ok=True)
        loaded.save(tmp_path / f"{name} again")
        assert sorted(path.name for path in (tmp_path / f"{name} again").iterdir()) == [
            "decomposition.json",
            "decomposition.safetensors",
        ]


@pytest.mark.parametrize("method", ["rrd", "rudder", "uniform", "ircr"])
def test_every_method_can_be_saved(tmp_path, method: str) -> None:
    small = {"hidden": 8} if method in ("rrd", "rudder") else {}
    model, episode = quietly(told(walks(12)), method={"name": method, **small}), told(walks(1, seed=1))[0]
    model.save(tmp_path / "model")
    assert np.array_equal(Decomposition.load(tmp_path / "model").rewards(episode), model.rewards(episode))


def test_it_says_what_it_is(model) -> None:
    assert "diaster, sum, observations of 3 numbers, actions of 2 numbers, fit_r2 " in repr(model)
    assert model.data["episodes"] == 24 and model.base_rate is None

import numpy as np
import pytest
from data_sets import agent_turns, flat, walks, write_json_lines, write_minari, write_npz

from diaster.errors import DiasterError
from diaster.offline.episodes import judged_episodes
from diaster.offline.faults import Faults
from diaster.offline.json_lines import JsonLinesSource
from diaster.offline.minari_sets import MinariSource, check_name, is_name, write_minari_set
from diaster.offline.npz import NpzSource
from diaster.offline.relabelled import Relabelled

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def episodes_of(name: str, skip: bool = False):
    return list(judged_episodes(MinariSource(name, Faults(skip)), True, False))


def relabelled(stored, is_kept=None) -> Relabelled:
    kept = np.ones(len(stored), bool) if is_kept is None else np.array(is_kept)
    lengths = np.array([len(e["rewards"]) for e, is_in in zip(stored, kept, strict=True) if is_in])
    return Relabelled(np.arange(lengths.sum(), dtype=float), lengths, kept)


def test_names_and_paths_are_told_apart() -> None:
    assert is_name("mujoco/hopper/medium-v0") and is_name("mine-v12")
    assert not is_name("episodes.npz") and not is_name("./mine-v0") and not is_name("mine")


def test_episodes_come_as_they_were_stored() -> None:
    stored = walks(4)
    found = episodes_of(write_minari("toys/walk-v0", stored))
    for episode, given in zip(found, stored, strict=True):
        assert np.array_equal(episode.obs, given["observations"]) and np.array_equal(episode.action, given["actions"])
        assert episode.outcome == pytest.approx(given["rewards"].sum())


def test_dictionaries_of_vectors_are_laid_end_to_end() -> None:
    stored = walks(2)
    found = episodes_of(write_minari("toys/walk-v0", stored, dictionary=True))
    assert np.array_equal(found[0].obs[:, :3], stored[0]["observations"]) and not found[0].obs[:, 3:].any()


def test_a_new_set_is_a_valid_one_with_the_new_rewards() -> None:
    stored = walks(4)
    source = MinariSource(write_minari("toys/walk-v0", stored, env="Pendulum-v1"), Faults())
    source.write("toys/walk-dense-v0", relabelled(stored))
    new = minari.load_dataset("toys/walk-dense-v0")
    assert "toys/walk-dense-v0" in minari.list_local_datasets()
    assert new.total_episodes == 4 and new.total_steps == sum(len(e["rewards"]) for e in stored)
    assert new.env_spec.id == "Pendulum-v1" and new.storage.metadata["algorithm_name"] == "chance"
    episodes = list(new.iterate_episodes())
    assert episodes[0].rewards.tolist() == list(range(len(stored[0]["rewards"])))
    assert np.array_equal(episodes[2].observations, stored[2]["observations"])
    assert np.array_equal(episodes[2].infos["original_rewards"][1:], stored[2]["rewards"])
    assert np.array_equal(episodes[2].infos["distance"], np.arange(len(stored[2]["observations"])))
    assert episodes[2].truncations.tolist() == [False] * (len(stored[2]["rewards"]) - 1) + [True]
    assert np.array_equal(next(minari.load_dataset("toys/walk-v0").iterate_episodes()).rewards, stored[0]["rewards"])


def test_returns_of_a_relabelled_set_are_sums_of_what_it_had_first() -> None:
    stored = walks(3)
    MinariSource(write_minari("walk-v0", stored), Faults()).write("dense-v0", relabelled(stored))
    assert episodes_of("dense-v0")[1].outcome == pytest.approx(stored[1]["rewards"].sum())


def test_a_new_set_leaves_out_skipped_episodes() -> None:
    stored = walks(3)
    MinariSource(write_minari("walk-v0", stored), Faults()).write("dense-v0", relabelled(stored, [True, False, True]))
    found = episodes_of("dense-v0")
    assert len(found) == 2 and np.array_equal(found[1].obs, stored[2]["observations"])


def test_other_formats_become_minari_sets(tmp_path) -> None:
    stored = walks(3)
    source = NpzSource(write_npz(tmp_path / "set.npz", flat(stored, with_last=True)), Faults())
    write_minari_set("toys/from-npz-v0", source, relabelled(stored))
    found = episodes_of("toys/from-npz-v0")
    assert np.array_equal(found[1].obs, stored[1]["observations"])
    assert np.allclose(found[1].action, stored[1]["actions"])
    assert found[1].outcome == pytest.approx(stored[1]["rewards"].sum())


def test_discrete_actions_become_a_discrete_space(tmp_path) -> None:
    stored = [{**e, "actions": np.arange(len(e["rewards"])) % 3 + 1} for e in walks(3)]
    source = NpzSource(write_npz(tmp_path / "set.npz", flat(stored)), Faults())
    write_minari_set("discrete-v0", source, relabelled(stored))
    space = minari.load_dataset("discrete-v0").action_space
    assert (space.n, space.start) == (3, 1) and episodes_of("discrete-v0")[0].form.discrete


def test_turns_do_not_become_a_minari_set(tmp_path, home) -> None:
    records, _ = agent_turns(2)
    source = JsonLinesSource(write_json_lines(tmp_path / "turns.jsonl", records), Faults())
    ones = Relabelled(np.ones(9), np.array([4, 5]), np.ones(2, bool))
    with pytest.raises(DiasterError, match="turns have no observations"):
        write_minari_set("turns-v0", source, ones)
    assert not (home / "turns-v0").exists()


def test_a_name_that_is_taken_is_refused() -> None:
    write_minari("walk-v0", walks(2))
    with pytest.raises(DiasterError, match="'walk-v0' is there already; choose another name or version"):
        check_name("walk-v0")


def test_a_set_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(DiasterError, match="is not on this machine; get it with: minari download no/such-v0"):
        MinariSource("no/such-v0", Faults())


def test_a_set_that_was_cut_off_is_refused_in_a_sentence(home) -> None:
    write_minari("walk-v0", walks(9))
    main = home / "walk-v0" / "data" / "main_data.hdf5"
    main.write_bytes(main.read_bytes()[:-3000])
    with pytest.raises(DiasterError, match=r"^episode 0: it cannot be read"):
        episodes_of("walk-v0")


def test_nothing_is_left_behind_where_writing_fails(home, monkeypatch) -> None:
    stored = walks(3)
    source = MinariSource(write_minari("walk-v0", stored), Faults())
    short = relabelled(stored)._replace(lengths=np.array([1, 1]))
    with pytest.raises(ValueError, match="zip"):
        source.write("dense-v0", short)
    assert sorted(path.name for path in home.iterdir() if path.name != "namespace_metadata.json") == ["walk-v0"]

import numpy as np
import pytest
from data_sets import flat, walks, write_hdf5

from diaster.errors import DiasterError
from diaster.offline.episodes import judged_episodes
from diaster.offline.faults import Faults
from diaster.offline.hdf5 import Hdf5Source
from diaster.offline.relabelled import Relabelled

h5py = pytest.importorskip("h5py")


def episodes_of(path, skip: bool = False):
    return list(judged_episodes(Hdf5Source(path, Faults(skip)), True, False))


def test_terminals_and_timeouts_end_episodes(tmp_path) -> None:
    stored = walks(6)
    n = sum(len(e["rewards"]) for e in stored)
    terminals = np.zeros(n, bool)
    terminals[len(stored[0]["rewards"]) - 1] = True  # a timeout as well
    found = episodes_of(write_hdf5(tmp_path / "set.hdf5", stored, terminals=terminals))
    assert [episode.length for episode in found] == [len(e["rewards"]) for e in stored]
    assert [episode.terminated for episode in found] == [True] + [False] * 5
    assert found[3].outcome == pytest.approx(stored[3]["rewards"].sum())
    assert np.array_equal(found[3].obs[:-1], stored[3]["observations"][:-1])


def test_the_end_of_the_file_cuts_the_last_episode_off(tmp_path) -> None:
    stored = walks(3)
    n = sum(len(e["rewards"]) for e in stored)
    timeouts = np.zeros(n, bool)
    timeouts[len(stored[0]["rewards"]) - 1] = True
    found = episodes_of(write_hdf5(tmp_path / "set.hdf5", stored, timeouts=timeouts))
    assert [episode.length for episode in found] == [len(stored[0]["rewards"]), n - len(stored[0]["rewards"])]


def test_returns_go_before_sums_of_rewards(tmp_path) -> None:
    found = episodes_of(write_hdf5(tmp_path / "set.h5", walks(3), returns=np.array([1.0, 2.0, 3.0])))
    assert [episode.outcome for episode in found] == [1.0, 2.0, 3.0]


def test_groups_may_be_texts(tmp_path) -> None:
    found = episodes_of(write_hdf5(tmp_path / "set.h5", walks(3), groups=["a", "b", "a"]))
    assert [episode.group for episode in found] == ["a", "b", "a"]


def test_a_copy_has_the_new_rewards_and_all_else(tmp_path) -> None:
    stored = walks(4)
    path = write_hdf5(tmp_path / "set.hdf5", stored)
    n = len(flat(stored)["rewards"])
    with h5py.File(path, "a") as file:
        file["infos/qpos"] = np.arange(n)
        file["metadata/policy"] = "chance"
        file.attrs["made"] = "here"
    before = path.read_bytes()
    lengths = np.array([len(e["rewards"]) for e in stored])
    Hdf5Source(path, Faults()).write(tmp_path / "new.hdf5", Relabelled(np.ones(n), lengths, np.ones(4, bool)))
    assert path.read_bytes() == before
    with h5py.File(tmp_path / "new.hdf5") as new:
        assert np.array_equal(new["original_rewards"], flat(stored)["rewards"])
        assert np.array_equal(new["rewards"], np.ones(n)) and new.attrs["made"] == "here"
        assert np.array_equal(new["infos/qpos"], np.arange(n)) and new["metadata/policy"][()] == b"chance"


def test_a_copy_leaves_out_skipped_episodes(tmp_path) -> None:
    stored = walks(4)
    path = write_hdf5(tmp_path / "set.hdf5", stored, groups=["a", "b", "c", "d"])
    n = len(flat(stored)["rewards"])
    with h5py.File(path, "a") as file:
        file["infos/qpos"] = np.arange(n)
    kept = [stored[0], stored[2], stored[3]]
    lengths = np.array([len(e["rewards"]) for e in kept])
    is_kept = np.array([True, False, True, True])
    relabelled = Relabelled(np.ones(lengths.sum()), lengths, is_kept)
    Hdf5Source(path, Faults()).write(tmp_path / "new.hdf5", relabelled)
    with h5py.File(tmp_path / "new.hdf5") as new:
        assert np.array_equal(new["observations"], flat(kept)["observations"])
        assert new["groups"].asstr()[()].tolist() == ["a", "c", "d"] and len(new["infos/qpos"]) == lengths.sum()
    again = episodes_of(tmp_path / "new.hdf5")
    assert [episode.length for episode in again] == lengths.tolist()


def test_what_is_wrong_is_named(tmp_path) -> None:
    stored = walks(4)
    arrays = flat(stored)
    arrays["observations"][arrays["lengths"][0] + 2] = np.nan
    with pytest.raises(DiasterError, match=r"^episode 1: row 2 of its observations holds nan"):
        episodes_of(write_hdf5(tmp_path / "nan.hdf5", stored, observations=arrays["observations"]))
    with pytest.raises(DiasterError, match="has 4 episodes by its terminals and timeouts, and 2 returns"):
        Hdf5Source(write_hdf5(tmp_path / "few.hdf5", stored, returns=np.zeros(2)), Faults())
    with pytest.raises(DiasterError, match=r"unknown column 'reword' \(did you mean 'rewards'"):
        Hdf5Source(write_hdf5(tmp_path / "unknown.hdf5", stored, reword=np.zeros(2)), Faults())
    with pytest.raises(DiasterError, match=r"has \d+ actions and 3 timeouts; one per step"):
        Hdf5Source(write_hdf5(tmp_path / "short.hdf5", stored, timeouts=np.zeros(3, bool)), Faults())


def test_a_file_without_ends_of_episodes_is_refused(tmp_path) -> None:
    with h5py.File(tmp_path / "set.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((4, 2)), np.zeros((4, 1))
    with pytest.raises(DiasterError, match="neither 'terminals' nor 'timeouts'"):
        Hdf5Source(tmp_path / "set.hdf5", Faults())


def test_a_file_that_was_cut_off_is_refused(tmp_path) -> None:
    path = write_hdf5(tmp_path / "set.hdf5", walks(30))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DiasterError, match="is no HDF5 file, or one that was cut off"):
        Hdf5Source(path, Faults())

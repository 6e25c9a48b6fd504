import zipfile

import numpy as np
import pytest
from data_sets import flat, told, walks, write_npz

from diaster.errors import DiasterError
from diaster.offline import flat as flat_module
from diaster.offline.episodes import judged_episodes
from diaster.offline.faults import Faults
from diaster.offline.npz import NpzSource
from diaster.offline.relabelled import Relabelled


def episodes_of(path, skip: bool = False):
    source = NpzSource(path, Faults(skip))
    return source, list(judged_episodes(source, True, False))


def ones(episodes, is_kept=None) -> Relabelled:
    kept = np.ones(len(episodes), bool) if is_kept is None else np.array(is_kept)
    lengths = np.array([len(e["rewards"]) for e, is_in in zip(episodes, kept, strict=True) if is_in])
    return Relabelled(np.arange(lengths.sum(), dtype=np.float64), lengths, kept)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("with_last", [False, True])
def test_episodes_come_as_they_were_stored(tmp_path, monkeypatch, compressed: bool, with_last: bool) -> None:
    monkeypatch.setattr(flat_module, "PIECE_BYTES", 100)  # a piece is shorter than an episode, or ends within one
    stored = walks(9)
    path = write_npz(tmp_path / "set.npz", flat(stored, with_last), compressed)
    _, found = episodes_of(path)
    assert len(found) == 9
    for episode, given in zip(found, stored, strict=True):
        assert np.array_equal(episode.obs[:-1], given["observations"][:-1])
        assert np.array_equal(episode.obs[-1], given["observations"][-1 if with_last else -2])
        assert np.array_equal(episode.action, given["actions"])
        assert episode.outcome == pytest.approx(given["rewards"].sum())


def test_episodes_that_are_not_wanted_are_left_out(tmp_path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(walks(6)), compressed=True)
    source, found = episodes_of(path)
    wanted = np.array([False, True, False, False, True, False])
    some = list(judged_episodes(source, True, False, wanted))
    assert [episode.number for episode in some] == [1, 4]
    assert all(np.array_equal(one.obs, found[one.number].obs) for one in some)


def test_returns_and_groups_belong_to_episodes(tmp_path) -> None:
    stored = told(walks(3))
    arrays = flat(walks(3))
    del arrays["rewards"]
    arrays |= {"returns": np.array([e["return"] for e in stored]), "groups": np.array(["a", "b", "a"])}
    _, found = episodes_of(write_npz(tmp_path / "set.npz", arrays))
    assert [episode.outcome for episode in found] == [e["return"] for e in stored]
    assert [episode.group for episode in found] == ["a", "b", "a"] and found[0].rewards is None


@pytest.mark.parametrize("compressed", [False, True])
def test_a_copy_has_the_new_rewards_and_keeps_the_old_ones(tmp_path, compressed: bool) -> None:
    stored = walks(5)
    path = write_npz(tmp_path / "set.npz", flat(stored, with_last=True), compressed)
    before = path.read_bytes()
    NpzSource(path, Faults()).write(tmp_path / "new.npz", ones(stored))
    new, old = np.load(tmp_path / "new.npz"), np.load(path)
    assert path.read_bytes() == before
    assert np.array_equal(new["original_rewards"], old["rewards"])
    assert np.array_equal(new["rewards"], np.arange(len(old["rewards"])))
    for name in ("observations", "actions", "lengths"):
        assert np.array_equal(new[name], old[name])
    is_deflated = zipfile.ZipFile(tmp_path / "new.npz").infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    assert is_deflated == compressed


def test_a_copy_of_a_copy_keeps_the_first_rewards_and_sums_them(tmp_path) -> None:
    stored = walks(5)
    NpzSource(write_npz(tmp_path / "set.npz", flat(stored)), Faults()).write(tmp_path / "new.npz", ones(stored))
    source, found = episodes_of(tmp_path / "new.npz")
    assert found[2].outcome == pytest.approx(stored[2]["rewards"].sum())
    source.write(tmp_path / "newer.npz", ones(stored))
    newer = np.load(tmp_path / "newer.npz")
    assert np.array_equal(newer["original_rewards"], flat(stored)["rewards"])


@pytest.mark.parametrize("with_last", [False, True])
def test_a_copy_leaves_out_skipped_episodes(tmp_path, with_last: bool) -> None:
    stored = walks(5)
    arrays = {**flat(stored, with_last), "groups": np.arange(5)}
    is_kept = [True, False, True, True, False]
    NpzSource(write_npz(tmp_path / "set.npz", arrays), Faults()).write(tmp_path / "new.npz", ones(stored, is_kept))
    kept = [episode for episode, is_in in zip(stored, is_kept, strict=True) if is_in]
    new = np.load(tmp_path / "new.npz")
    expected = flat(kept, with_last)
    assert np.array_equal(new["observations"], expected["observations"])
    assert np.array_equal(new["actions"], expected["actions"]) and new["groups"].tolist() == [0, 2, 3]
    assert np.array_equal(new["original_rewards"], expected["rewards"])
    assert new["lengths"].tolist() == expected["lengths"].tolist()


def changed(tmp_path, **arrays):
    return write_npz(tmp_path / "set.npz", {**flat(walks(4)), **arrays})


def without(tmp_path, name: str):
    arrays = flat(walks(4))
    del arrays[name]
    return write_npz(tmp_path / "set.npz", arrays)


def test_nan_is_named_by_episode_and_row(tmp_path) -> None:
    arrays = flat(walks(4))
    row = arrays["lengths"][0] + 3
    arrays["observations"][row, 1] = np.nan
    with pytest.raises(DiasterError, match=r"^episode 1: row 3 of its observations holds nan"):
        episodes_of(write_npz(tmp_path / "set.npz", arrays))


def test_a_length_of_0_is_named(tmp_path) -> None:
    arrays = flat(walks(4))
    arrays["lengths"] = np.insert(arrays["lengths"], 2, 0)
    path = write_npz(tmp_path / "set.npz", arrays)
    with pytest.raises(DiasterError, match=r"^episode 2: it has no steps"):
        episodes_of(path)
    source, found = episodes_of(path, skip=True)
    assert [episode is None for episode in found] == [False, False, True, False, False]
    assert source.faults.n_episodes == 1


def test_columns_that_end_too_early_name_the_first_episode_that_lacks_a_row(tmp_path) -> None:
    arrays = flat(walks(4))
    arrays["actions"] = arrays["actions"][:-1]
    n = arrays["lengths"].sum()
    with pytest.raises(DiasterError, match=f"^episode 3: it ends at row {n} of 'actions', which has {n - 1}"):
        episodes_of(write_npz(tmp_path / "set.npz", arrays))


def test_columns_with_too_many_rows_are_refused(tmp_path) -> None:
    arrays = flat(walks(4))
    arrays["actions"] = np.concatenate([arrays["actions"]] * 2)
    with pytest.raises(DiasterError, match=r"steps by its lengths and .* rows in 'actions'"):
        NpzSource(write_npz(tmp_path / "set.npz", arrays), Faults())


def test_an_unknown_column_is_named_with_the_one_that_may_be_meant(tmp_path) -> None:
    path = changed(tmp_path, observatons=np.zeros(3))
    with pytest.raises(DiasterError, match=r"unknown column 'observatons' \(did you mean 'observations'"):
        NpzSource(path, Faults())
    source, found = episodes_of(path, skip=True)
    assert len(found) == 4 and "observatons" in source.faults.summary()[0]


@pytest.mark.parametrize("name", ["observations", "actions", "lengths"])
def test_a_missing_column_is_named(tmp_path, name: str) -> None:
    with pytest.raises(DiasterError, match=f"has no column '{name}'; it has "):
        NpzSource(without(tmp_path, name), Faults())


def test_missing_returns_are_named_by_episode(tmp_path) -> None:
    with pytest.raises(DiasterError, match=r"^episode 0: it has neither a return nor rewards"):
        episodes_of(without(tmp_path, "rewards"))


def test_another_number_of_returns_than_of_episodes_is_refused(tmp_path) -> None:
    with pytest.raises(DiasterError, match="has 4 lengths and 3 returns"):
        NpzSource(changed(tmp_path, returns=np.zeros(3)), Faults())


def test_python_objects_and_strange_orders_are_refused(tmp_path) -> None:
    with pytest.raises(DiasterError, match=r"'groups' in .* holds Python objects; save plain numbers"):
        NpzSource(changed(tmp_path, groups=np.array([{}, 1, 2, 3], object)), Faults())
    with pytest.raises(DiasterError, match="is in Fortran's order"):
        NpzSource(changed(tmp_path, actions=np.asfortranarray(flat(walks(4))["actions"])), Faults())


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused(tmp_path, share: float) -> None:
    path = changed(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DiasterError, match=r"is no .npz file, or one that was cut off"):
        NpzSource(path, Faults())


def test_damage_within_a_compressed_column_is_named_by_episode(tmp_path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(walks(40)), compressed=True)
    content = bytearray(path.read_bytes())
    middle = content.index(b"actions.npy") + 400
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(bytes(content))
    with pytest.raises(DiasterError, match=r"^episode 0: row 0 of its actions cannot be read"):
        episodes_of(path)


def test_an_array_that_claims_another_size_is_refused(tmp_path) -> None:
    path = changed(tmp_path)
    with zipfile.ZipFile(path, "a") as file, file.open("returns.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(member, header)
    with pytest.raises(DiasterError, match="does not hold the array of shape"):
        NpzSource(path, Faults())


def test_nothing_is_left_behind_where_writing_fails(tmp_path, monkeypatch) -> None:
    stored = walks(3)
    source = NpzSource(write_npz(tmp_path / "set.npz", flat(stored)), Faults())

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(DiasterError, match="cannot be written: No space left on device"):
        source.write(tmp_path / "new.npz", ones(stored))
    assert [path.name for path in tmp_path.iterdir()] == ["set.npz"]

import math

import numpy as np
import pytest
from data_sets import flat, walks, write_parquet

from diaster.errors import DiasterError
from diaster.offline import parquet
from diaster.offline.episodes import judged_episodes
from diaster.offline.faults import Faults
from diaster.offline.parquet import ParquetSource
from diaster.offline.relabelled import Relabelled

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch) -> None:
    monkeypatch.setattr(parquet, "BATCH", 17)  # episodes lie across batches


def episodes_of(path, skip: bool = False):
    return list(judged_episodes(ParquetSource(path, Faults(skip)), True, False))


def repeated(stored, values) -> list:
    return np.repeat(np.array(values, object), [len(e["rewards"]) for e in stored]).tolist()


def test_rows_with_one_episode_id_are_an_episode(tmp_path) -> None:
    stored = walks(12)
    found = episodes_of(write_parquet(tmp_path / "set.parquet", stored))
    assert [episode.length for episode in found] == [len(e["rewards"]) for e in stored]
    for episode, given in zip(found, stored, strict=True):
        assert np.array_equal(episode.obs[:-1], given["observations"][:-1])
        assert np.allclose(episode.action, given["actions"])
        assert episode.outcome == pytest.approx(given["rewards"].sum())


def test_returns_and_groups_are_repeated_in_all_rows(tmp_path) -> None:
    stored = walks(4)
    others = {"returns": repeated(stored, [1.0, 1.0, 2.0, 3.0]), "groups": repeated(stored, ["a", "a", "b", "b"])}
    found = episodes_of(write_parquet(tmp_path / "set.parquet", stored, **others))
    assert [episode.outcome for episode in found] == [1.0, 1.0, 2.0, 3.0]
    assert [episode.group for episode in found] == ["a", "a", "b", "b"]


def test_a_return_that_changes_within_an_episode_is_refused(tmp_path) -> None:
    stored = walks(4)
    returns = repeated(stored, [1.0, 1.0, 2.0, 3.0])
    returns[len(stored[0]["rewards"]) + 1] = 7.0
    with pytest.raises(DiasterError, match=r"episode 1 .*: its return is '1.0 in one row and 7.0 in another'"):
        episodes_of(write_parquet(tmp_path / "set.parquet", stored, returns=returns))


def test_a_copy_has_the_new_rewards_and_keeps_the_old_ones(tmp_path) -> None:
    stored = walks(5)
    path = write_parquet(tmp_path / "set.parquet", stored)
    before = path.read_bytes()
    lengths = np.array([len(e["rewards"]) for e in stored])
    relabelled = Relabelled(np.arange(lengths.sum(), dtype=float), lengths, np.ones(5, bool))
    ParquetSource(path, Faults()).write(tmp_path / "new.parquet", relabelled)
    new = pq.read_table(tmp_path / "new.parquet")
    assert path.read_bytes() == before
    assert np.array_equal(new["original_rewards"].to_numpy(), flat(stored)["rewards"])
    assert np.array_equal(new["rewards"].to_numpy(), np.arange(lengths.sum()))
    assert new["episode_id"].to_pylist() == repeated(stored, [f"run-{n}" for n in range(5)])


def test_a_copy_leaves_out_skipped_episodes(tmp_path) -> None:
    stored = walks(3)
    kept = [stored[0], stored[2]]
    lengths = np.array([len(e["rewards"]) for e in kept])
    relabelled = Relabelled(np.ones(lengths.sum()), lengths, np.array([True, False, True]))
    source = ParquetSource(write_parquet(tmp_path / "set.parquet", stored), Faults())
    source.write(tmp_path / "new.parquet", relabelled)
    found = episodes_of(tmp_path / "new.parquet")
    assert [episode.label for episode in found] == ["episode 0 (episode_id 'run-0')", "episode 1 (episode_id 'run-2')"]
    assert np.allclose(found[1].action, stored[2]["actions"])


def test_rows_of_other_widths_are_named(tmp_path) -> None:
    stored = walks(4)
    obs = flat(stored)["observations"].tolist()
    obs[len(stored[0]["rewards"]) + 2] = [1.0]
    path = write_parquet(tmp_path / "set.parquet", stored, observations=obs)
    with pytest.raises(
        DiasterError, match=r"^episode 1 .*: row 2 of its observations has 1 numbers, and rows before it 3"
    ):
        episodes_of(path)
    assert [episode is None for episode in episodes_of(path, skip=True)] == [False, True, False, False]


def test_missing_values_are_named(tmp_path) -> None:
    stored = walks(4)
    actions = flat(stored)["actions"].tolist()
    actions[len(stored[0]["rewards"]) + 2] = None
    with pytest.raises(DiasterError, match=r"^episode 1 .*: row 2 of its actions has 0 numbers"):
        episodes_of(write_parquet(tmp_path / "null.parquet", stored, actions=actions))
    rewards = flat(stored)["rewards"].tolist()
    rewards[3] = math.nan
    with pytest.raises(DiasterError, match=r"^episode 0 .*: row 3 of its rewards holds nan"):
        episodes_of(write_parquet(tmp_path / "nan.parquet", stored, rewards=rewards))


def test_texts_in_the_place_of_numbers_are_named(tmp_path) -> None:
    stored = walks(4)
    texts = ["x"] * len(flat(stored)["actions"])
    with pytest.raises(DiasterError, match=r"^episode 0 .*: its observations are no table of numbers"):
        episodes_of(write_parquet(tmp_path / "set.parquet", stored, observations=texts))


def test_rows_of_an_episode_stand_together(tmp_path) -> None:
    stored = walks(3)
    ids = repeated(stored, ["a", "b", "a"])
    with pytest.raises(DiasterError, match=r"the rows of episode_id 'a' in .* are not together"):
        ParquetSource(write_parquet(tmp_path / "set.parquet", stored, episode_id=ids), Faults())


def test_columns_are_checked(tmp_path) -> None:
    with pytest.raises(DiasterError, match=r"unknown column 'returned' \(did you mean 'returns'"):
        ParquetSource(
            write_parquet(tmp_path / "a.parquet", walks(2), returned=repeated(walks(2), [1.0, 2.0])), Faults()
        )
    pq.write_table(pyarrow.table({"observations": [[1.0]], "actions": [[1.0]]}), tmp_path / "b.parquet")
    with pytest.raises(DiasterError, match="has no column 'episode_id'"):
        ParquetSource(tmp_path / "b.parquet", Faults())


def test_a_file_that_was_cut_off_is_refused(tmp_path) -> None:
    path = write_parquet(tmp_path / "set.parquet", walks(9))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DiasterError, match="is no Parquet file, or one that was cut off"):
        ParquetSource(path, Faults())

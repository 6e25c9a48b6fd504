"""Checkpoints as files: what goes in comes out, what is dead is dropped, what is not ours stays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from diaster.errors import DiasterError
from diaster.rundir import checkpoint
from diaster.rundir.checkpoint import CheckpointWriter, Snapshot, generations, read_checkpoint
from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode

CAPACITY, MOST = 40, 1 << 20


def episode(length: int, mark: float = 0.0) -> Episode:
    obs = mark + np.arange(2.0 * (length + 1), dtype=np.float32).reshape(-1, 2)
    return Episode(obs, -obs[:-1, :1], 0.1 * length + mark, length % 2 == 0)


def same(one: Episode, other: Episode) -> bool:
    return (
        one.obs.tobytes() == other.obs.tobytes()
        and one.action.tobytes() == other.action.tobytes()
        and (one.episode_return, one.terminated) == (other.episode_return, other.terminated)
    )


def writer_in(folder: Path, n_seeds: int = 1) -> CheckpointWriter:
    return CheckpointWriter(folder / "checkpoint", "settings", n_seeds, CAPACITY)


def write(writer: CheckpointWriter, mark: float = 0.0, evaluations: tuple[int, ...] = ()) -> str | None:
    writer.write(Snapshot({"mark": mark}, {"net": np.full(3, mark, np.float32)}, evaluations))
    return writer.settle(wait=True)


def read(folder: Path, n_seeds: int = 1):
    found, complaints = read_checkpoint(folder / "checkpoint", "settings", n_seeds, CAPACITY, MOST)
    assert found is not None
    return found, complaints


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, n_seeds=2)
    given = [[episode(3), episode(1)], []]
    later = [[episode(2, 7.0)], [episode(5, 1.0)]]
    held_out = [
        [EvaluationEpisode(episode(4), np.arange(4, dtype=np.float32)), EvaluationEpisode(episode(2), None)],
        [],
    ]
    writer.add_episodes(given)
    assert write(writer) is None
    writer.add_episodes(later)
    writer.add_evaluation(6, held_out)
    assert write(writer, 2.5, (6,)) is None
    writer.close()
    found, complaints = read(tmp_path, n_seeds=2)
    assert (found.number, found.facts, complaints) == (2, {"mark": 2.5}, [])
    np.testing.assert_array_equal(found.arrays["net"], np.full(3, 2.5, np.float32))
    for position in range(2):
        both = [*given[position], *later[position]]
        assert [same(*pair) for pair in zip(found.episodes[position], both, strict=True)] == [True] * len(both)
    assert found.first == [EpisodeNumbers(), EpisodeNumbers()]
    (kept, unknown), nothing = found.evaluations[6]
    assert same(kept.episode, held_out[0][0].episode) and same(unknown.episode, held_out[0][1].episode)
    np.testing.assert_array_equal(kept.true_reward, np.arange(4))
    assert (unknown.true_reward, nothing) == (None, [])


def test_a_checkpoint_writes_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    sizes = []
    for count in (10, 1, 0):
        writer.add_episodes([[episode(1)] * count])
        assert (writer.new_bytes > 0) == (count > 0)
        write(writer)
        assert writer.new_bytes == 0
    writer.close()
    for number in (1, 2):
        sizes.append((tmp_path / "checkpoint" / f"replay-{number}.safetensors").stat().st_size)
    assert sizes[1] < sizes[0]
    assert not (tmp_path / "checkpoint" / "replay-3.safetensors").exists()


def test_episodes_that_the_ring_has_dropped_are_dropped_and_their_files_removed(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    lengths = [9, 4, 12, 7, 3, 11, 8, 6, 10, 2]
    for number, length in enumerate(lengths):
        writer.add_episodes([[episode(length, float(number))]])
        write(writer)
        found, _ = read(tmp_path)
        rows = np.cumsum([0, *(length + 1 for length in lengths[: number + 1])])
        live = [n for n in range(number + 1) if rows[n] >= rows[-1] - CAPACITY]
        assert found.first[0] == EpisodeNumbers(live[0], int(rows[live[0]]), int(rows[live[0]]) - live[0])
        assert [item.length for item in found.episodes[0]] == [lengths[n] for n in live]
    writer.close()
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert "replay-1.safetensors" not in names and "replay-10.safetensors" in names
    assert {name for name in names if name.startswith(("state", "manifest"))} == {
        "manifest-9.json", "manifest-10.json", "state-9.safetensors", "state-10.safetensors",
    }  # fmt: skip


def test_what_could_not_be_written_is_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_in(tmp_path)
    writer.add_episodes([[episode(3)]])
    assert write(writer, 1.0) is None

    def full(path: Path, content: bytes) -> None:
        raise DiasterError(f"'{path.name}' cannot be written: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", full)
        writer.add_episodes([[episode(4)]])
        writer.add_evaluation(0, [[EvaluationEpisode(episode(2), None)]])
        assert write(writer, 2.0, (0,)) == "'replay-2.safetensors' cannot be written: No space left on device."
        assert read(tmp_path)[0].facts == {"mark": 1.0}
    writer.add_episodes([[episode(5)]])
    assert write(writer, 3.0, (0,)) is None
    writer.close()
    found, _ = read(tmp_path)
    assert [item.length for item in found.episodes[0]] == [3, 4, 5]
    assert found.first[0] == EpisodeNumbers() and list(found.evaluations) == [0]
    assert generations(tmp_path / "checkpoint") == [2, 1]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No state can be written until this is undone; what is written before it can."""
    put = checkpoint.write_atomically

    def write_atomically(path: Path, content: bytes) -> None:
        if path.name.startswith("state"):
            raise DiasterError(f"'{path}' cannot be written: No space left on device.")
        put(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", write_atomically)
    return monkeypatch


def test_a_checkpoint_that_could_not_be_written_leaves_nothing_behind(
    tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path)
    writer.add_episodes([[episode(3)]])
    writer.add_evaluation(0, [[EvaluationEpisode(episode(4), None)]])
    assert "No space left" in (write(writer, evaluations=(0,)) or "")
    assert list((tmp_path / "checkpoint").iterdir()) == []
    full_disk.undo()
    assert write(writer, evaluations=(0,)) is None
    before = sorted((tmp_path / "checkpoint").iterdir())
    assert len(before) == 4
    writer.close()


def test_while_nothing_can_be_written_no_more_waits_than_the_ring_holds(
    tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    # One seed goes on while the disk is full, so far that the ring has dropped what was written before; one does not.
    writer = writer_in(tmp_path, n_seeds=2)
    full_disk.undo()
    writer.add_episodes([[episode(5, -1.0)], [episode(4)]])
    assert write(writer) is None
    full_disk.setattr(checkpoint, "write_atomically", lambda path, _: (_ for _ in ()).throw(OSError(28, "full")))
    sizes = []
    for number in range(30):
        writer.add_episodes([[episode(5, number)], []])
        writer.add_evaluation(number, [[EvaluationEpisode(episode(4), None)], []])
        assert write(writer, evaluations=(number,)) is not None
        sizes.append(writer.new_bytes)
    assert max(sizes) == sizes[-1] <= CAPACITY * 3 * 4
    assert list(writer._new_evaluations) == [29]
    full_disk.undo()
    assert write(writer) is None
    writer.close()
    found, _ = read(tmp_path, n_seeds=2)
    alive = CAPACITY // 6  # episodes of six rows
    assert [e.episode_return for e in found.episodes[0]] == [0.5 + n for n in range(30 - alive, 30)]
    assert found.first == [EpisodeNumbers(31 - alive, 6 * (31 - alive), 5 * (31 - alive)), EpisodeNumbers()]
    assert [same(e, episode(4)) for e in found.episodes[1]] == [True]


def test_counting_goes_on_from_a_checkpoint_that_was_read(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.add_episodes([[episode(3), episode(30)]])
    write(writer)
    writer.close()
    writer = writer_in(tmp_path)
    writer.go_on_from(read(tmp_path)[0])
    writer.add_episodes([[episode(20)]])
    write(writer)
    writer.close()
    found, _ = read(tmp_path)
    assert (found.number, found.first[0]) == (2, EpisodeNumbers(2, 35, 33))
    assert [item.length for item in found.episodes[0]] == [20]


def test_no_directory_is_no_checkpoint_and_no_complaint(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "checkpoint", "settings", 1, CAPACITY, MOST) == (None, [])


@pytest.mark.parametrize("lengths", [[0], [-1, 4], [2], [3, 1]], ids=["no step", "negative", "too few", "too many"])
def test_episodes_whose_lengths_do_not_add_up_are_no_episodes(lengths: list[int]) -> None:
    arrays = checkpoint.pack_episodes([episode(3)])
    arrays["length"] = np.array(lengths)
    with pytest.raises((ValueError, KeyError)):
        checkpoint.unpack_episodes(arrays)


@pytest.mark.parametrize("kind", ["manifest", "state", "replay", "held-out"])
@pytest.mark.parametrize("damage", ["torn", "altered", "missing", "empty", "longer"])
def test_a_damaged_file_is_found_and_the_older_generation_is_taken(tmp_path: Path, kind: str, damage: str) -> None:
    writer = writer_in(tmp_path)
    for number in (1, 2):
        writer.add_episodes([[episode(number)]])
        writer.add_evaluation(number, [[EvaluationEpisode(episode(2), None)]])
        write(writer, float(number), tuple(range(1, number + 1)))
    writer.close()
    path = tmp_path / "checkpoint" / f"{kind}-2.{'json' if kind == 'manifest' else 'safetensors'}"
    content = path.read_bytes()
    middle = len(content) // 2
    changed = {
        "torn": content[:middle],
        "altered": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "empty": b"",
        "longer": content + b"x",
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(changed[damage])
    found, complaints = read(tmp_path)
    assert (found.number, found.facts["mark"]) == (1, 1.0)
    if (kind, damage) != ("manifest", "missing"):  # then nothing tells that there was one
        assert [path.name in sentence for sentence in complaints] == [True]


# A directory that someone has tampered with


@pytest.fixture
def written(tmp_path: Path) -> Path:
    writer = writer_in(tmp_path)
    writer.add_episodes([[episode(3)]])
    writer.add_evaluation(0, [[EvaluationEpisode(episode(2), None)]])
    write(writer, 1.0, (0,))
    writer.close()
    return tmp_path


def forge(folder: Path, change) -> None:
    """Alter the manifest's body and make its checksum right."""
    path = folder / "checkpoint" / "manifest-1.json"
    body = json.loads(path.read_text())["body"]
    body = change(body) or body
    text = json.dumps(body, sort_keys=True)
    path.write_text(json.dumps({"sha256": checkpoint._checksum(text.encode()), "body": body}))


WRONG = [
    None,
    3,
    "text",
    [],
    {},
    [1, 2, 3],
    ["state-1.safetensors", "9", ""],
    ["../x", 3, ""],
    [["a", 1, "b"], []],
    True,
    -1,
]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("key", ["version", "number", "settings", "state", "replay", "held_out", "facts"])
def test_a_manifest_with_a_value_of_a_wrong_kind_is_a_sentence(written: Path, key: str, value: object) -> None:
    if (key, value) in (("replay", []), ("held_out", {}), ("facts", {})):
        return  # these are whole
    forge(written, lambda body: body.update({key: value}))
    with pytest.raises(DiasterError) as caught:
        read(written)
    assert "\n" not in str(caught.value)
    checkpoint.remove_others(written / "checkpoint", [1])


@pytest.mark.parametrize("key", ["version", "number", "settings", "state", "replay", "held_out", "facts"])
def test_a_manifest_without_a_value_is_a_sentence(written: Path, key: str) -> None:
    forge(written, lambda body: {name: value for name, value in body.items() if name != key})
    with pytest.raises(DiasterError, match="damaged"):
        read(written)


def test_a_file_larger_than_it_has_reason_to_be_is_not_read(written: Path) -> None:
    path = written / "checkpoint" / "state-1.safetensors"
    with path.open("ab") as file:
        file.truncate(1 << 40)
    forge(written, lambda body: body["state"].__setitem__(1, 1 << 40))
    with pytest.raises(DiasterError, match="at most"):
        read(written)


def test_nothing_is_read_written_or_removed_behind_a_link(written: Path) -> None:
    outside = written / "outside"
    (written / "checkpoint").rename(outside)
    (written / "checkpoint").symlink_to(outside)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    writer = writer_in(written)
    writer.add_episodes([[episode(4)]])
    assert "is a link" in str(write(writer))
    writer.close()
    for call in (lambda: read(written), lambda: checkpoint.remove_all(written / "checkpoint")):
        with pytest.raises(DiasterError, match="is a link"):
            call()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_episodes_that_are_not_finite_are_no_episodes() -> None:
    arrays = checkpoint.pack_episodes([episode(3)])
    arrays["obs"][1, 0] = np.nan
    with pytest.raises(ValueError, match="obs is not finite"):
        checkpoint.unpack_episodes(arrays)

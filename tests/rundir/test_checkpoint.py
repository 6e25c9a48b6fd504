"""Checkpoints as files: what goes in comes out, what is dead is dropped, what is not ours stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diaster.errors import DiasterError
from diaster.rundir.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Snapshot,
    generations,
    read_checkpoint,
    remove_all,
    writing,
)
from diaster.rundir.checkpoint.manifest import checksum
from diaster.rundir.checkpoint.removal import remove_others
from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode

CAPACITY, MOST = 40, 1 << 20
FORMER = Path(__file__).parent / "checkpoint_version_1"  # written by diaster 0.1.0


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


def read(folder: Path, n_seeds: int = 1) -> tuple[Checkpoint, list[str]]:
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


def write_as_version_1_did(folder: Path) -> None:
    """The calls that made the files in `FORMER`."""
    writer = writer_in(folder, n_seeds=2)
    writer.add_episodes([[episode(3), episode(1)], []])
    held_out = [
        [EvaluationEpisode(episode(2), np.arange(2, dtype=np.float32)), EvaluationEpisode(episode(1), None)],
        [],
    ]
    writer.add_evaluation(0, held_out)
    nan, infinity = float("nan"), float("-inf")
    writer.write(Snapshot({"step": 10, "rows": [{"return_mean": nan}]}, {"net": np.arange(3, dtype=np.float32)}, (0,)))
    assert writer.settle(wait=True) is None
    writer.add_episodes([[], [episode(5, 1.0)]])
    last = {"step": 20, "rows": [{"return_mean": infinity}]}
    writer.write(Snapshot(last, {"net": np.full(3, 2.5, np.float32)}, (0,)))
    assert writer.settle(wait=True) is None
    writer.close()


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    shutil.copytree(FORMER, tmp_path / "checkpoint")
    found, complaints = read(tmp_path, n_seeds=2)
    assert (found.number, complaints) == (2, [])
    assert found.facts == {"step": 20, "rows": [{"return_mean": float("-inf")}]}
    assert found.arrays["net"].tolist() == [2.5] * 3
    assert [[item.length for item in of_seed] for of_seed in found.episodes] == [[3, 1], [5]]
    assert same(found.episodes[1][0], episode(5, 1.0))
    known, unknown = found.evaluations[0][0]
    assert known.true_reward is not None and known.true_reward.tolist() == [0, 1]
    assert unknown.true_reward is None


def test_files_have_the_names_and_manifests_the_form_of_the_first_version(tmp_path: Path) -> None:
    def without_sums(value: Any) -> Any:
        """Sizes and checksums depend on the version of safetensors."""
        if isinstance(value, dict):
            return {name: without_sums(item) for name, item in value.items() if name != "sha256"}
        if isinstance(value, list):
            return value[:1] if str(value[:1]).endswith(".safetensors']") else [without_sums(item) for item in value]
        return value

    write_as_version_1_did(tmp_path)
    assert sorted(item.name for item in (tmp_path / "checkpoint").iterdir()) == sorted(i.name for i in FORMER.iterdir())
    for number in (1, 2):
        found, former = (
            json.loads((folder / f"manifest-{number}.json").read_text()) for folder in (tmp_path / "checkpoint", FORMER)
        )
        assert found.keys() == former.keys()
        assert without_sums(found) == without_sums(former)


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
        patch.setattr(writing, "write_atomically", full)
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
    put = writing.write_atomically

    def write_atomically(path: Path, content: bytes) -> None:
        if path.name.startswith("state"):
            raise DiasterError(f"'{path}' cannot be written: No space left on device.")
        put(path, content)

    monkeypatch.setattr(writing, "write_atomically", write_atomically)
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
    assert len(list((tmp_path / "checkpoint").iterdir())) == 4
    writer.close()


def test_while_nothing_can_be_written_no_more_waits_than_the_ring_holds(
    tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    # One seed goes on while the disk is full, so far that the ring has dropped what was written before; one does not.
    writer = writer_in(tmp_path, n_seeds=2)
    full_disk.undo()
    writer.add_episodes([[episode(5, -1.0)], [episode(4)]])
    assert write(writer) is None
    full_disk.setattr(writing, "write_atomically", lambda path, _: (_ for _ in ()).throw(OSError(28, "full")))
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


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "torn": lambda content: content[: len(content) // 2],
    "altered": lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "longer": lambda content: content + b"x",
}


def test_a_damaged_file_is_found_and_the_older_generation_is_taken(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for number in (1, 2):
        writer.add_episodes([[episode(number)]])
        writer.add_evaluation(number, [[EvaluationEpisode(episode(2), None)]])
        write(writer, float(number), tuple(range(1, number + 1)))
    writer.close()
    for name in ("manifest-2.json", "state-2.safetensors", "replay-2.safetensors", "held-out-2.safetensors"):
        path = tmp_path / "checkpoint" / name
        content = path.read_bytes()
        for damage, change in DAMAGES.items():
            changed = change(content)
            path.unlink() if changed is None else path.write_bytes(changed)
            found, complaints = read(tmp_path)
            assert (found.number, found.facts["mark"]) == (1, 1.0), (name, damage)
            if (name, damage) != ("manifest-2.json", "missing"):  # then nothing tells that there was one
                assert [name in sentence for sentence in complaints] == [True], (name, damage)
        path.write_bytes(content)
    assert read(tmp_path)[0].number == 2


# A directory that someone has tampered with


@pytest.fixture
def written(tmp_path: Path) -> Path:
    writer = writer_in(tmp_path)
    writer.add_episodes([[episode(3)]])
    writer.add_evaluation(0, [[EvaluationEpisode(episode(2), None)]])
    write(writer, 1.0, (0,))
    writer.close()
    return tmp_path


def forge(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Alter the manifest's body and make its checksum right."""
    path = folder / "checkpoint" / "manifest-1.json"
    body = json.loads(path.read_text())["body"]
    body = change(body) or body
    text = json.dumps(body, sort_keys=True)
    path.write_text(json.dumps({"sha256": checksum(text.encode()), "body": body}))


KEYS = ("version", "number", "settings", "state", "replay", "held_out", "facts")
WRONG: list[Any] = [
    *(None, 3, "text", [], {}, True, -1, [1, 2, 3]),
    *(["state-1.safetensors", "9", ""], ["../x", 3, ""], [["a", 1, "b"], []]),
]


def refusal(folder: Path, what: str) -> str:
    try:
        found = read(folder)
    except DiasterError as error:
        return str(error)
    pytest.fail(f"with {what}, {found} was read")


def test_a_manifest_with_a_value_of_a_wrong_kind_is_a_sentence(written: Path, tmp_path: Path) -> None:
    for key in KEYS:
        for number, value in enumerate(WRONG):
            if (key, value) in (("replay", []), ("held_out", {}), ("facts", {})):
                continue  # these are whole
            copy = tmp_path / f"{key}-{number}"
            shutil.copytree(written / "checkpoint", copy / "checkpoint")
            forge(copy, lambda body, key=key, value=value: {**body, key: value})  # type: ignore[misc]
            assert "\n" not in refusal(copy, f"{key} = {value!r}")
            remove_others(copy / "checkpoint", [1])  # no error either


def test_a_manifest_without_a_value_is_a_sentence(written: Path, tmp_path: Path) -> None:
    for key in KEYS:
        shutil.copytree(written / "checkpoint", tmp_path / key / "checkpoint")
        forge(tmp_path / key, lambda body, key=key: {n: value for n, value in body.items() if n != key})  # type: ignore[misc]
        assert "damaged" in refusal(tmp_path / key, f"no {key}")


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
    for call in (lambda: read(written), lambda: remove_all(written / "checkpoint")):
        with pytest.raises(DiasterError, match="is a link"):
            call()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_a_folder_with_the_name_of_an_old_file_stays_and_is_no_hindrance(tmp_path: Path) -> None:
    for name in ("state-9.safetensors", ".replay-9.safetensors.0123"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
    writer = writer_in(tmp_path)
    assert write(writer) is None
    writer.close()
    remove_all(tmp_path / "checkpoint")
    assert sorted(item.name for item in (tmp_path / "checkpoint").iterdir()) == [
        ".replay-9.safetensors.0123",
        "state-9.safetensors",
    ]


def test_a_state_with_the_metrics_of_a_long_time_without_an_evaluation_can_be_read(tmp_path: Path) -> None:
    metrics = {f"metrics.{call}.critic_loss": np.zeros(2, np.float32) for call in range(15_000)}
    writer = CheckpointWriter(tmp_path / "checkpoint", "settings", 1, CAPACITY)
    writer.write(Snapshot({}, metrics, ()))
    assert writer.settle(wait=True) is None
    writer.close()
    found, complaints = read_checkpoint(tmp_path / "checkpoint", "settings", 1, CAPACITY, 1 << 30)
    assert found is not None and complaints == []
    assert found.arrays.keys() == metrics.keys()

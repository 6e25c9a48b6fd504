"""A run directory and its copy: whatever has arrived when the sender dies can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from diaster.errors import DiasterError
from diaster.sweep import mirror
from diaster.sweep.mirror import DirectoryReceiver, DirectorySender, Gone, Piece, all_pieces, versions


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def put(path: Path, name: str, content: bytes = b"x") -> None:
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(content)


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in versions(path)}


def send(sender: DirectorySender, receiver: DirectoryReceiver) -> list[str]:
    """What was sent, by name."""
    sent = []
    for message in sender.changes():
        receiver.take(message)
        sent.append(message.name if isinstance(message, Piece) else f"-{','.join(message.names)}")
    return sent


def test_settings_go_first_manifests_after_what_they_name_and_done_after_everything(source: Path, copy: Path) -> None:
    sender = DirectorySender(source)
    order = [
        "config.toml",
        "metadata.json",
        "checkpoint/state-1.safetensors",
        "checkpoint/manifest-1.json",
        "progress.csv",
        "DONE",
    ]
    for name in reversed(order):
        put(source, name)
    assert send(sender, DirectoryReceiver(copy)) == order
    assert content(copy) == content(source)
    assert [piece.name for piece in all_pieces(source)] == order


def test_only_what_is_new_is_sent_and_what_is_gone_is_removed_last(source: Path, copy: Path) -> None:
    sender, receiver = DirectorySender(source), DirectoryReceiver(copy)
    put(source, "checkpoint/state-1.safetensors")
    put(source, "progress.csv")
    send(sender, receiver)
    (source / "checkpoint/state-1.safetensors").unlink()
    put(source, "checkpoint/state-2.safetensors")
    put(source, "progress.csv", b"longer")
    sent = send(sender, receiver)
    assert sent == ["checkpoint/state-2.safetensors", "progress.csv", "-checkpoint/state-1.safetensors"]
    assert content(copy) == content(source)
    assert send(sender, receiver) == []


def test_when_the_last_checkpoint_is_gone_so_is_its_folder(source: Path, copy: Path) -> None:
    sender, receiver = DirectorySender(source), DirectoryReceiver(copy)
    put(source, "checkpoint/state-1.safetensors")
    send(sender, receiver)
    (source / "checkpoint/state-1.safetensors").unlink()
    send(sender, receiver)
    assert not (copy / "checkpoint").exists()


def test_locks_and_files_that_are_being_written_stay_where_they_are(source: Path, copy: Path) -> None:
    sender = DirectorySender(source)
    for name in ("lock", ".progress.csv.abc", "checkpoint/.state-1.safetensors.abc"):
        put(source, name)
    assert send(sender, DirectoryReceiver(copy)) == []


def test_what_a_sender_begins_with_is_not_sent_back(source: Path) -> None:
    put(source, "config.toml")
    assert list(DirectorySender(source).changes()) == []


def test_large_files_go_in_pieces(source: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PIECE_BYTES", 4)
    sender = DirectorySender(source)
    put(source, "a", b"0123456789")
    put(source, "b", b"01234567")
    put(source, "c", b"")
    assert send(sender, DirectoryReceiver(copy)) == ["a", "a", "a", "b", "b", "c"]
    assert content(copy) == {"a": b"0123456789", "b": b"01234567", "c": b""}


def test_a_file_is_there_whole_or_not_at_all(copy: Path) -> None:
    receiver = DirectoryReceiver(copy)
    receiver.take(Piece("a", b"half", None))
    assert content(copy) == {}
    DirectoryReceiver(copy)  # the next attempt
    assert list(copy.iterdir()) == []


def test_a_file_that_arrives_damaged_is_refused(copy: Path) -> None:
    with pytest.raises(DiasterError, match="checksum"):
        DirectoryReceiver(copy).take(Piece("a", b"content", "0" * 64))
    assert content(copy) == {}


def test_nothing_is_written_or_removed_outside(source: Path, copy: Path) -> None:
    put(source.parent, "a")
    for name in ("../a", "/a", "checkpoint/../../a"):
        for message in (Piece(name, b"", "0" * 64), Gone((name,))):
            with pytest.raises(DiasterError, match="leads out of"):
                DirectoryReceiver(copy).take(message)
            assert (source.parent / "a").read_bytes() == b"x", message


def test_a_checkpoint_that_is_replaced_while_it_is_sent_waits_for_the_next(source: Path) -> None:
    sender = DirectorySender(source)
    put(source, "checkpoint/replay-1.safetensors")
    put(source, "checkpoint/state-1.safetensors")
    put(source, "checkpoint/manifest-1.json")
    changes = sender.changes()
    assert isinstance(next(changes), Piece)
    (source / "checkpoint/state-1.safetensors").unlink()
    assert list(changes) == []  # no manifest either

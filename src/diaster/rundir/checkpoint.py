"""Checkpoints: everything a run needs to go on as if nothing had happened.

    checkpoint/manifest-7.json            what belongs to the seventh, with sizes and checksums; written last
    checkpoint/state-7.safetensors        nets, optimisers, labels, metrics, the episodes under way
    checkpoint/replay-5.safetensors       the episodes that were new then; written once, kept while any is alive
    checkpoint/held-out-30.safetensors    the episodes of an evaluation that still serve the diagnostics

Randomness has no state here: every draw follows from the seed, the stream and the place in the run. Files are written
beside and renamed, by a thread of its own. Two generations are kept; what neither names is removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.rundir.files import parse_tensors, read_bytes, read_json, write_atomically
from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode

DIRECTORY = "checkpoint"
VERSION = 1
LARGEST_MANIFEST = 256 << 20  # the rows of a long run are in it
_OURS = re.compile(r"(manifest-\d+\.json|(state|replay|held-out)-\d+\.safetensors)")

Arrays = dict[str, NDArray[Any]]


class Part(NamedTuple):
    """A file of a checkpoint."""

    name: str
    size: int
    sha256: str


class ReplayPart(NamedTuple):
    """A file of episodes, and how many rows of every seed there were up to its end."""

    part: Part
    end_rows: tuple[int, ...]


class Snapshot(NamedTuple):
    """What a run hands over to be written."""

    facts: Mapping[str, Any]  # JSON can hold them
    arrays: Mapping[str, NDArray[Any]]
    evaluations: Sequence[int]  # whose episodes still serve


class Checkpoint(NamedTuple):
    """What is read back."""

    number: int
    facts: dict[str, Any]
    arrays: Arrays
    first: list[EpisodeNumbers]  # of every seed's oldest episode in `episodes`
    episodes: list[list[Episode]]  # of every seed
    evaluations: dict[int, list[list[EvaluationEpisode]]]
    parts: _Parts


class _Parts(NamedTuple):
    """The files that outlive a generation."""

    replay: tuple[ReplayPart, ...] = ()
    held_out: Mapping[int, Part] = {}  # by evaluation


class _New(NamedTuple):
    """What came since the last checkpoint."""

    first: list[EpisodeNumbers]  # of every seed
    episodes: list[list[Episode]]
    evaluations: dict[int, Sequence[Sequence[EvaluationEpisode]]]


class CheckpointWriter:
    """Gathers what is new since the last checkpoint, and writes checkpoints in the background."""

    def __init__(self, directory: Path, settings: str, n_seeds: int, capacity: int) -> None:
        self._directory, self._capacity = directory, capacity
        self._settings = _checksum(settings.encode())
        self._number = 0
        self._numbers = [EpisodeNumbers()] * n_seeds  # of the next episode
        self._new_episodes: list[list[Episode]] = [[] for _ in range(n_seeds)]
        self._new_evaluations: dict[int, Sequence[Sequence[EvaluationEpisode]]] = {}
        self._new_bytes = 0
        self._parts = _Parts()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[_Parts] | None = None
        self._taken: _New | None = None  # what is being written

    @property
    def new_bytes(self) -> int:
        """How much of the replay waits on the host to be written."""
        return self._new_bytes

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written, or has been and is not settled."""
        return self._writing is not None

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Count on from a checkpoint that was read."""
        self._number, self._parts = checkpoint.number, checkpoint.parts
        self._numbers = [_after(*pair) for pair in zip(checkpoint.first, checkpoint.episodes, strict=True)]
        remove_others(self._directory, [self._number, self._number - 1])

    def add_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Finished episodes that entered the replay, of every seed."""
        for of_seed, new in zip(self._new_episodes, episodes, strict=True):
            of_seed.extend(new)
            self._new_bytes += _bytes_of(new)

    def add_evaluation(self, number: int, episodes: Sequence[Sequence[EvaluationEpisode]]) -> None:
        """The episodes of an evaluation, of every seed."""
        self._new_evaluations[number] = episodes

    def write(self, snapshot: Snapshot) -> None:
        """Begin to write a checkpoint. The one before has to be settled."""
        assert self._writing is None, "settle() first"
        self._number += 1
        evaluations = {n: new for n, new in self._new_evaluations.items() if n in snapshot.evaluations}
        self._taken = _New(self._numbers, self._new_episodes, evaluations)
        self._numbers = [_after(first, episodes) for first, episodes in zip(*self._taken[:2], strict=True)]
        self._new_episodes, self._new_evaluations, self._new_bytes = [[] for _ in self._numbers], {}, 0
        # Episodes are packed by the thread as well: there may be hundreds of megabytes of them.
        self._writing = self._thread.submit(self._write, self._number, snapshot, self._taken, self._numbers)

    def settle(self, wait: bool = False) -> str | None:
        """Take note of a checkpoint that has been written. Returns what went wrong, if something did.

        What could not be written waits for the next one, as far as the ring still holds it: the disk may be full for
        long, and memory has an end too.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        try:
            self._parts = self._writing.result()
            failure = None
        except (DiasterError, OSError, MemoryError) as error:
            failure = str(error)
            assert self._taken is not None
            for position, (first, episodes) in enumerate(zip(*self._taken[:2], strict=True)):
                waiting = _alive(first, [*episodes, *self._new_episodes[position]], self._capacity)
                self._numbers[position], self._new_episodes[position] = waiting
            self._new_bytes = sum(map(_bytes_of, self._new_episodes))
            self._new_evaluations = {**self._taken.evaluations, **self._new_evaluations}
            self._number -= 1
        self._writing = self._taken = None
        return failure

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown(wait=True)

    def _write(self, number: int, snapshot: Snapshot, taken: _New, ends: Sequence[EpisodeNumbers]) -> _Parts:
        refuse_link(self._directory)
        self._directory.mkdir(exist_ok=True)
        try:
            return self._write_parts(number, snapshot, taken, ends)
        except (DiasterError, OSError, MemoryError):
            remove_others(self._directory, [number - 1, number - 2])  # half a checkpoint takes room from the next
            raise

    def _write_parts(self, number: int, snapshot: Snapshot, taken: _New, ends: Sequence[EpisodeNumbers]) -> _Parts:
        end_rows = tuple(end.row for end in ends)
        replay = [
            part
            for part in self._parts.replay
            if any(row > end - self._capacity for row, end in zip(part.end_rows, end_rows, strict=True))
        ]
        if any(taken.episodes):
            of_seeds = [
                {**pack_episodes(episodes), "first": np.array(first, np.int64)}
                for first, episodes in zip(taken.first, taken.episodes, strict=True)
            ]
            replay.append(ReplayPart(self._put(f"replay-{number}.safetensors", _of_all(of_seeds)), end_rows))
        kept = {n: part for n, part in self._parts.held_out.items() if n in snapshot.evaluations}
        for n, episodes in taken.evaluations.items():
            kept[n] = self._put(f"held-out-{n}.safetensors", _of_all(map(pack_evaluation, episodes)))
        state = self._put(f"state-{number}.safetensors", dict(snapshot.arrays))
        body = {
            "version": VERSION,
            "number": number,
            "settings": self._settings,
            "state": state,
            "replay": replay,
            "held_out": {str(n): part for n, part in kept.items()},
            "facts": to_json(snapshot.facts),
        }
        text = json.dumps(body, allow_nan=False, sort_keys=True)
        manifest = json.dumps({"sha256": _checksum(text.encode()), "body": body}, allow_nan=False, sort_keys=True)
        write_atomically(self._directory / f"manifest-{number}.json", manifest.encode())
        remove_others(self._directory, [number, number - 1])
        return _Parts(tuple(replay), kept)

    def _put(self, name: str, arrays: Arrays) -> Part:
        content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        write_atomically(self._directory / name, content)
        return Part(name, len(content), _checksum(content))


def read_checkpoint(
    directory: Path, settings: str, n_seeds: int, capacity: int, most: int, as_begun: str | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones. None where there is none at all.

    `most` is how large a file of it can be; `as_begun` the same settings as a version with fewer of them wrote them.
    """
    refuse_link(directory)
    complaints: list[str] = []
    numbers = generations(directory)
    for number in numbers:
        try:
            manifest = _read_manifest(directory / f"manifest-{number}.json", number)
        except DiasterError as error:
            complaints.append(str(error))
            continue
        if manifest.version != VERSION:
            raise DiasterError(
                f"'{directory}' holds a checkpoint of version {manifest.version}, and this diaster reads version "
                f"{VERSION}; resume it with the diaster that wrote it."
            )
        if manifest.settings not in [_checksum(text.encode()) for text in (settings, as_begun) if text is not None]:
            raise DiasterError(
                f"the settings of '{directory.parent}' are not those of its checkpoint; put config.toml back as it was."
            )
        try:
            return _read_parts(directory, manifest, n_seeds, capacity, most), complaints
        except DiasterError as error:
            complaints.append(str(error))
    if numbers:
        raise DiasterError(f"no checkpoint in '{directory}' is whole: {' '.join(complaints)} Train the run again.")
    return None, []


def refuse_link(directory: Path) -> None:
    """Nothing is read, written or removed behind a link: it may lead anywhere."""
    if directory.is_symlink():
        raise DiasterError(f"'{directory}' is a link; a run directory has to hold its folders itself.")


def generations(directory: Path) -> list[int]:
    """The numbers of the checkpoints in a directory, the newest first."""
    if not directory.is_dir():
        return []
    found = (re.fullmatch(r"manifest-(\d{1,9})\.json", item.name) for item in directory.iterdir())
    return sorted((int(match[1]) for match in found if match), reverse=True)


def remove_others(directory: Path, numbers: Sequence[int]) -> None:
    """Remove what none of these generations names; files that are not ours stay."""
    refuse_link(directory)
    named = set()
    for number in numbers:
        path = directory / f"manifest-{number}.json"
        if not path.exists():
            continue
        try:
            manifest = _read_manifest(path, number)
        except DiasterError:
            continue
        named |= {path.name, *(part.name for part in manifest.named)}
    for item in directory.iterdir() if directory.is_dir() else ():
        leftover = re.fullmatch(r"\.(.+)\.[^.]+", item.name)  # of a write that was cut off
        name = leftover[1] if leftover else item.name
        if _OURS.fullmatch(name) and item.name not in named:
            item.unlink(missing_ok=True)


def remove_all(directory: Path) -> None:
    """Remove every checkpoint: the run is complete."""
    remove_others(directory, [])
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def pack_episodes(episodes: Sequence[Episode]) -> Arrays:
    """Episodes end to end, as arrays for a file; nothing where there are none."""
    arrays = {
        "length": np.array([episode.length for episode in episodes], np.int64),
        "episode_return": np.array([episode.episode_return for episode in episodes], np.float64),
        "terminated": np.array([episode.terminated for episode in episodes], bool),
    }
    if episodes:
        arrays["obs"] = np.concatenate([episode.obs for episode in episodes])
        arrays["action"] = np.concatenate([episode.action for episode in episodes])
    return arrays


def unpack_episodes(arrays: Mapping[str, NDArray[Any]]) -> list[Episode]:
    """The inverse of `pack_episodes`. Raises ValueError or KeyError where the arrays do not fit together."""
    length = arrays["length"]
    if len(length) == 0:
        return []
    steps = len(arrays["action"])
    # Each is bounded, so that their sum cannot overflow.
    if length.min() < 1 or length.max() > steps or not steps == length.sum() == len(arrays["obs"]) - len(length):
        raise ValueError("the lengths of its episodes do not add up")
    for name in ("obs", "action", "episode_return"):
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not finite")
    ends = np.cumsum(length)
    actions = np.split(arrays["action"], ends[:-1])
    obs = np.split(arrays["obs"], (ends + np.arange(1, len(length) + 1))[:-1])
    numbers = zip(arrays["episode_return"].tolist(), arrays["terminated"].tolist(), strict=True)
    return [Episode(o, a, r, t) for o, a, (r, t) in zip(obs, actions, numbers, strict=True)]


def pack_evaluation(episodes: Sequence[EvaluationEpisode]) -> Arrays:
    """The same for episodes of an evaluation, with their hidden rewards."""
    arrays = pack_episodes([item.episode for item in episodes])
    arrays["is_known"] = np.array([item.true_reward is not None for item in episodes], bool)
    known = [item.true_reward for item in episodes if item.true_reward is not None]
    arrays["true_reward"] = np.concatenate(known) if known else np.zeros(0, np.float32)
    return arrays


def unpack_evaluation(arrays: Mapping[str, NDArray[Any]]) -> list[EvaluationEpisode]:
    """The inverse of `pack_evaluation`."""
    items, rest = [], arrays["true_reward"]
    for episode, is_known in zip(unpack_episodes(arrays), arrays["is_known"].tolist(), strict=True):
        items.append(EvaluationEpisode(episode, rest[: episode.length] if is_known else None))
        rest = rest[episode.length :] if is_known else rest
    return items


def to_json(value: Any) -> Any:
    """Plain values; numbers that JSON has not, as text."""
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`; of texts, only those three are numbers."""
    if isinstance(value, dict):
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


class _Manifest(NamedTuple):
    """What a manifest says, each value of the kind it has to be."""

    version: int
    settings: str
    number: int
    state: Part
    parts: _Parts
    facts: dict[str, Any]

    @property
    def named(self) -> list[Part]:
        """Every file that belongs to the checkpoint."""
        return [self.state, *(part.part for part in self.parts.replay), *self.parts.held_out.values()]


def _read_manifest(path: Path, number: int) -> _Manifest:
    """A manifest whose checksum is right. That alone proves nothing: whoever alters a file can alter its checksum."""
    outer = read_json(path, LARGEST_MANIFEST, root=path.parent.parent)
    try:
        body = outer["body"]
        text = json.dumps(body, allow_nan=False, sort_keys=True)
        if outer["sha256"] != _checksum(text.encode()) or body["number"] != number:
            raise ValueError("its checksum is wrong")
        if type(body["version"]) is not int or type(body["number"]) is not int:
            raise TypeError("its version is no number")
        if body["version"] != VERSION:  # nothing is known of the rest
            return _Manifest(body["version"], "", number, Part("", 0, ""), _Parts(), {})
        replay = tuple(ReplayPart(_part(part), tuple(map(int, rows))) for part, rows in body["replay"])
        held_out = {int(n): _part(part) for n, part in body["held_out"].items()}
        facts = body["facts"]
        if not isinstance(facts, dict) or not isinstance(body["replay"], list):
            raise TypeError("it has no facts")
        return _Manifest(VERSION, body["settings"], number, _part(body["state"]), _Parts(replay, held_out), facts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DiasterError(f"'{path}' is damaged.") from None


def _part(value: Any) -> Part:
    name, size, checksum = value
    if not (isinstance(name, str) and type(size) is int and isinstance(checksum, str) and _OURS.fullmatch(name)):
        raise ValueError("a part is none of a checkpoint")
    return Part(name, size, checksum)


def _read_parts(directory: Path, manifest: _Manifest, n_seeds: int, capacity: int, most: int) -> Checkpoint:
    read = partial(_read_part, directory, most=most)
    arrays = read(manifest.state)
    first: list[EpisodeNumbers] = [EpisodeNumbers()] * n_seeds
    ends = list(first)
    episodes: list[list[Episode]] = [[] for _ in range(n_seeds)]
    evaluations: dict[int, list[list[EvaluationEpisode]]] = {}
    try:
        for part in manifest.parts.replay:
            found = read(part.part)
            for position in range(n_seeds):
                of_seed = _of_seed(found, position)
                start, new = EpisodeNumbers(*of_seed["first"].tolist()), unpack_episodes(of_seed)
                if start != ends[position]:  # what was between them has been dropped by the ring, and all before it
                    first[position], episodes[position] = start, []
                episodes[position] += new
                ends[position] = _after(start, new)
            if len(part.end_rows) != n_seeds:
                raise ValueError("it is of another number of seeds")
        for number, kept in manifest.parts.held_out.items():
            found = read(kept)
            evaluations[number] = [unpack_evaluation(_of_seed(found, position)) for position in range(n_seeds)]
        for position in range(n_seeds):
            first[position], episodes[position] = _alive(first[position], episodes[position], capacity)
        facts = from_json(manifest.facts)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DiasterError(f"a file of '{directory}' is damaged: {error}.") from None
    return Checkpoint(manifest.number, facts, arrays, first, episodes, evaluations, manifest.parts)


def _alive(first: EpisodeNumbers, episodes: list[Episode], capacity: int) -> tuple[EpisodeNumbers, list[Episode]]:
    """Leave out episodes that the ring has dropped: those that begin more than its capacity before its end."""
    end = _after(first, episodes)
    dropped = 0
    while dropped < len(episodes) and first.row < end.row - capacity:
        first = first.after(episodes[dropped].length)
        dropped += 1
    return first, episodes[dropped:]


def _after(first: EpisodeNumbers, episodes: Sequence[Episode]) -> EpisodeNumbers:
    """The numbers of the episode that follows these."""
    for episode in episodes:
        first = first.after(episode.length)
    return first


def _bytes_of(episodes: Sequence[Episode]) -> int:
    return sum(episode.obs.nbytes + episode.action.nbytes for episode in episodes)


def _of_all(of_seeds: Iterable[Arrays]) -> Arrays:
    """The arrays of all seeds for one file; the inverse of `_of_seed`."""
    return {f"{position}.{name}": array for position, arrays in enumerate(of_seeds) for name, array in arrays.items()}


def _of_seed(arrays: Mapping[str, NDArray[Any]], position: int) -> Arrays:
    prefix = f"{position}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read_part(directory: Path, part: Part, most: int) -> Arrays:
    path = directory / part.name
    content = read_bytes(path, min(part.size, most), root=directory.parent)
    if len(content) != part.size or _checksum(content) != part.sha256:
        raise DiasterError(f"'{path}' is damaged: its checksum is wrong.")
    return parse_tensors(content, path)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

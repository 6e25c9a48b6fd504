"""Writes checkpoints in the background, each file once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.rundir.checkpoint.manifest import (
    LastingFiles,
    Manifest,
    ReplayFile,
    StoredFile,
    checksum,
    manifest_bytes,
    manifest_name,
    read_manifest,
)
from diaster.rundir.checkpoint.packing import (
    Arrays,
    bytes_of,
    join_seeds,
    numbers_after,
    pack_episodes,
    pack_evaluation,
    without_overwritten,
)
from diaster.rundir.checkpoint.reading import Checkpoint
from diaster.rundir.checkpoint.removal import remove_others
from diaster.rundir.files import refuse_link, write_atomically
from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode


class Snapshot(NamedTuple):
    """What a run hands over to be written."""

    facts: Mapping[str, Any]  # JSON can hold them
    arrays: Mapping[str, NDArray[Any]]
    evaluations: Sequence[int]  # whose episodes are still used


class _New(NamedTuple):
    """What is new since the last checkpoint."""

    first: list[EpisodeNumbers]  # of every seed
    episodes: list[list[Episode]]
    evaluations: dict[int, Sequence[Sequence[EvaluationEpisode]]]


class CheckpointWriter:
    """Gathers what is new since the last checkpoint, and writes checkpoints in the background."""

    def __init__(self, directory: Path, settings: str, n_seeds: int, capacity: int) -> None:
        self._directory, self._capacity = directory, capacity
        self._settings = checksum(settings.encode())
        self._number = 0
        self._numbers = [EpisodeNumbers()] * n_seeds  # of the next episode
        self._new_episodes: list[list[Episode]] = [[] for _ in range(n_seeds)]
        self._new_evaluations: dict[int, Sequence[Sequence[EvaluationEpisode]]] = {}
        self._new_bytes = 0
        self._lasting = LastingFiles()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[LastingFiles] | None = None
        self._taken: _New | None = None  # what is being written

    @property
    def new_bytes(self) -> int:
        """How much of the replay waits in the host's memory to be written."""
        return self._new_bytes

    @property
    def number(self) -> int:
        """The generation that was written last, or is being written."""
        return self._number

    @property
    def replay_bytes(self) -> int:
        """How large the replay is that the next checkpoint names."""
        return sum(item.file.size for item in self._lasting.replay) + self._new_bytes

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written, or has been and is not settled."""
        return self._writing is not None

    def size_of(self, number: int) -> int:
        """The bytes of all files of a generation."""
        return sum(file.size for file in read_manifest(self._directory, number).files)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Continue the count of a checkpoint that was read."""
        self._number, self._lasting = checkpoint.number, checkpoint.lasting
        self._numbers = [numbers_after(*pair) for pair in zip(checkpoint.first, checkpoint.episodes, strict=True)]
        remove_others(self._directory, [self._number, self._number - 1])

    def add_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Finished episodes that entered the replay, of every seed."""
        for of_seed, new in zip(self._new_episodes, episodes, strict=True):
            of_seed.extend(new)
            self._new_bytes += bytes_of(new)

    def add_evaluation(self, number: int, episodes: Sequence[Sequence[EvaluationEpisode]]) -> None:
        """The episodes of an evaluation, of every seed."""
        self._new_evaluations[number] = episodes

    def write(self, snapshot: Snapshot) -> None:
        """Begin to write a checkpoint. The previous one has to be settled."""
        assert self._writing is None, "settle() first"
        self._number += 1
        evaluations = {n: new for n, new in self._new_evaluations.items() if n in snapshot.evaluations}
        self._taken = _New(self._numbers, self._new_episodes, evaluations)
        self._numbers = [numbers_after(first, episodes) for first, episodes in zip(*self._taken[:2], strict=True)]
        self._new_episodes, self._new_evaluations, self._new_bytes = [[] for _ in self._numbers], {}, 0
        # The thread packs the episodes as well: there may be hundreds of megabytes of them.
        self._writing = self._thread.submit(self._write, self._number, snapshot, self._taken, self._numbers)

    def settle(self, wait: bool = False) -> str | None:
        """Take note of a checkpoint that has been written. Returns what went wrong, if anything did.

        What could not be written waits for the next checkpoint, as far as the ring still holds it: a disk may stay
        full for a long time, and memory is limited too.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        try:
            self._lasting = self._writing.result()
            failure = None
        except (DiasterError, OSError, MemoryError) as error:
            failure = str(error)
            assert self._taken is not None
            self._put_back(self._taken)
            self._number -= 1
        self._writing = self._taken = None
        return failure

    def _put_back(self, taken: _New) -> None:
        for position, (first, episodes) in enumerate(zip(*taken[:2], strict=True)):
            waiting = without_overwritten(first, [*episodes, *self._new_episodes[position]], self._capacity)
            self._numbers[position], self._new_episodes[position] = waiting
        self._new_bytes = sum(map(bytes_of, self._new_episodes))
        self._new_evaluations = {**taken.evaluations, **self._new_evaluations}

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown(wait=True)

    def _write(self, number: int, snapshot: Snapshot, new: _New, ends: Sequence[EpisodeNumbers]) -> LastingFiles:
        refuse_link(self._directory)
        self._directory.mkdir(exist_ok=True)
        try:
            lasting = self._write_lasting(number, snapshot.evaluations, new, tuple(end.row for end in ends))
            state = self._write_arrays(f"state-{number}.safetensors", dict(snapshot.arrays))
            manifest = Manifest(number, self._settings, state, lasting, snapshot.facts)
            write_atomically(self._directory / manifest_name(number), manifest_bytes(manifest))
            remove_others(self._directory, [number, number - 1])
            return lasting
        except (DiasterError, OSError, MemoryError):
            remove_others(self._directory, [number - 1, number - 2])  # half a checkpoint takes room from the next
            raise

    def _write_lasting(
        self, number: int, evaluations: Sequence[int], new: _New, end_rows: tuple[int, ...]
    ) -> LastingFiles:
        """Keep the files that are still needed, and add one for everything new."""
        replay = [
            item
            for item in self._lasting.replay
            if any(row > end - self._capacity for row, end in zip(item.end_rows, end_rows, strict=True))
        ]
        if any(new.episodes):
            of_seeds = [
                {**pack_episodes(episodes), "first": np.array(first, np.int64)}
                for first, episodes in zip(new.first, new.episodes, strict=True)
            ]
            file = self._write_arrays(f"replay-{number}.safetensors", join_seeds(of_seeds))
            replay.append(ReplayFile(file, end_rows))
        held_out = {n: file for n, file in self._lasting.held_out.items() if n in evaluations}
        for n, episodes in new.evaluations.items():
            held_out[n] = self._write_arrays(f"held-out-{n}.safetensors", join_seeds(map(pack_evaluation, episodes)))
        return LastingFiles(tuple(replay), held_out)

    def _write_arrays(self, name: str, arrays: Arrays) -> StoredFile:
        content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        write_atomically(self._directory / name, content)
        return StoredFile(name, len(content), checksum(content))

"""When checkpoints of a run are written, and which of them stays when the run is complete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from diaster.config import RunConfig, write_toml
from diaster.errors import DiasterError
from diaster.rundir.checkpoint import DIRECTORY, Checkpoint, CheckpointWriter, Snapshot, remove_all
from diaster.training.progress import Reporter
from diaster.training.schedule import Chunk, crosses, last_shared_chunk
from diaster.types import Episode, EvaluationEpisode

CHECKPOINT_SECONDS = 300.0
MOST_UNWRITTEN = 512 << 20  # bytes of the replay that wait on the host for the next checkpoint
MEGABYTE = 1_000_000


class Checkpoints:
    """Those of one run. Where its settings ask for none, nothing is gathered and nothing is written."""

    def __init__(self, config: RunConfig, run: Path, capacity: int, reporter: Reporter) -> None:
        self._config, self._reporter, self._directory = config, reporter, run / DIRECTORY
        self._writer: CheckpointWriter | None = None
        if config.checkpoint_every != 0:
            self._writer = CheckpointWriter(self._directory, write_toml(config), len(config.seeds), capacity)
        self._last = time.perf_counter(), 0  # when one was written last, and at which step
        self._final: int | None = None  # the number of the one that the run can be extended from

    @property
    def are_written(self) -> bool:
        return self._writer is not None

    def add_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Finished episodes that entered the replay, of every seed."""
        if self._writer is not None:
            self._writer.add_episodes(episodes)

    def add_evaluation(self, number: int, episodes: Sequence[Sequence[EvaluationEpisode]]) -> None:
        """The episodes of an evaluation, of every seed."""
        if self._writer is not None:
            self._writer.add_evaluation(number, episodes)

    def go_on_from(self, checkpoint: Checkpoint, chunk: Chunk) -> None:
        """Continue the count of a checkpoint that was read."""
        self._last = time.perf_counter(), chunk.end
        if self._writer is not None:
            self._writer.go_on_from(checkpoint)
            self._note_final(chunk.number == last_shared_chunk(self._config))

    def is_due(self, chunk: Chunk) -> bool:
        """Whether to write one now, when a chunk is stored and has not been learnt from."""
        if self._writer is None:
            return False
        if chunk.number == last_shared_chunk(self._config):
            return self.may_stay()
        self.settle()
        every, (last_time, last_step) = self._config.checkpoint_every, self._last
        if self._writer.is_busy:
            return False
        if every != "auto":
            return crosses(every, last_step, chunk.end)
        is_late = time.perf_counter() - last_time > CHECKPOINT_SECONDS
        return is_late or self._writer.new_bytes > MOST_UNWRITTEN

    def may_stay(self) -> bool:
        """Whether one that is written now is small enough to stay when the run is complete."""
        self.settle(wait=True)
        return self._writer is not None and self._writer.replay_bytes <= self._config.keep_checkpoint * MEGABYTE > 0

    def write(self, snapshot: Snapshot, chunk: Chunk, is_last: bool = False) -> None:
        """Begin to write one; the previous one has to be settled. `is_last`: the run ends here."""
        assert self._writer is not None
        self._last = time.perf_counter(), chunk.end
        self._writer.write(snapshot)
        self._note_final(is_last or chunk.number == last_shared_chunk(self._config))

    def settle(self, wait: bool = False, then: str = "the run goes on and tries again later") -> None:
        """Take note of one that has been written, and say so if it could not be."""
        failure = None if self._writer is None else self._writer.settle(wait)
        if failure is not None:
            self._final = None
            self._reporter.warn(f"a checkpoint could not be written, {then}: {failure}")

    def final(self) -> int | None:
        """The number of the one that stays, if any does. Waits for it."""
        self.settle(wait=True)
        if self._writer is None or self._final is None:
            return None
        with contextlib.suppress(DiasterError):  # its manifest cannot be read
            if self._writer.size_of(self._final) <= self._config.keep_checkpoint * MEGABYTE:
                return self._final
        return None

    def clear(self) -> None:
        """Remove all but the final one: the run is complete."""
        remove_all(self._directory, but=self.final())

    def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._writer.close()

    def _note_final(self, is_final: bool) -> None:
        assert self._writer is not None
        self._final = self._writer.number if is_final else None

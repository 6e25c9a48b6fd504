"""The newest whole checkpoint of a run, read and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diaster.errors import DiasterError
from diaster.rundir.checkpoint.manifest import (
    LastingFiles,
    Manifest,
    OtherVersionError,
    StoredFile,
    checksum,
    generations,
    read_manifest,
)
from diaster.rundir.checkpoint.packing import (
    Arrays,
    arrays_of_seed,
    numbers_after,
    unpack_episodes,
    unpack_evaluation,
    unpack_numbers,
    without_overwritten,
)
from diaster.rundir.files import parse_tensors, read_bytes, refuse_link
from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode

LEAST_EPISODES = 2  # of a seed, to learn from
# A state holds an array for each metric of every call of the learner since the last evaluation: a million of them here,
# and as many as safetensors reads.
MOST_HEADER = 100_000_000


class Checkpoint(NamedTuple):
    """What is read back."""

    number: int
    facts: dict[str, Any]
    arrays: Arrays
    first: list[EpisodeNumbers]  # of every seed's oldest episode in `episodes`
    episodes: list[list[Episode]]  # of every seed
    evaluations: dict[int, list[list[EvaluationEpisode]]]
    lasting: LastingFiles


def read_checkpoint(
    directory: Path,
    settings: str,
    n_seeds: int,
    capacity: int,
    most: int,
    as_begun: str | None = None,
    former: Sequence[str] = (),
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and sentences on what is wrong with newer ones. None where there is none.

    Generations share the files of the replay. Where one of those is damaged, the newest generation is taken with the
    episodes that are whole, if every seed has enough of them to learn from.

    `most` limits the bytes of a file; `as_begun` is the text of the same settings as a version with fewer of them
    wrote it; `former` are checksums of the settings that the run had when it was shorter.
    """
    refuse_link(directory)
    known = [*former, *(checksum(text.encode()) for text in (settings, as_begun) if text is not None)]
    complaints: list[str] = []
    readable: list[Manifest] = []
    numbers = generations(directory)
    for number in numbers:
        try:
            manifest = read_manifest(directory, number)
        except OtherVersionError:
            raise
        except DiasterError as error:
            complaints.append(str(error))
            continue
        if manifest.settings not in known:
            raise DiasterError(
                f"the settings of '{directory.parent}' are not those of its checkpoint; put config.toml back as it was."
            )
        readable.append(manifest)
        try:
            checkpoint, _ = _read_files(directory, manifest, n_seeds, capacity, most)
        except DiasterError as error:
            complaints.append(str(error))
            continue
        return checkpoint, [f"a checkpoint could not be used, an older one is taken: {text}" for text in complaints]
    for manifest in readable:
        with contextlib.suppress(DiasterError):
            checkpoint, lost = _read_files(directory, manifest, n_seeds, capacity, most, allows_loss=True)
            if min(map(len, checkpoint.episodes)) >= LEAST_EPISODES:
                return checkpoint, [
                    f"{', '.join(lost)} of the replay cannot be read; its episodes, and those before or after it, are "
                    "lost. The run goes on without them, and differs from one that was never cut off."
                ]
    if numbers:
        raise DiasterError(f"no checkpoint in '{directory}' is whole: {' '.join(complaints)} Train the run again.")
    return None, []


def _read_files(
    directory: Path, manifest: Manifest, n_seeds: int, capacity: int, most: int, allows_loss: bool = False
) -> tuple[Checkpoint, list[str]]:
    """A checkpoint, and the files of its replay that are lost, where that is allowed."""
    read = partial(_read_file, directory, most=most)
    lost: list[str] = []
    arrays = read(manifest.state)
    first: list[EpisodeNumbers] = [EpisodeNumbers()] * n_seeds
    ends = list(first)
    episodes: list[list[Episode]] = [[] for _ in range(n_seeds)]
    evaluations: dict[int, list[list[EvaluationEpisode]]] = {}
    try:
        for replay in manifest.lasting.replay:
            try:
                found = read(replay.file)
            except DiasterError:
                if not allows_loss:
                    raise
                lost.append(replay.file.name)
                continue
            for position in range(n_seeds):
                of_seed = arrays_of_seed(found, position)
                start, new = unpack_numbers(of_seed), unpack_episodes(of_seed)
                if start != ends[position]:  # the ring has overwritten what was between them, and all before it
                    first[position], episodes[position] = start, []
                episodes[position] += new
                ends[position] = numbers_after(start, new)
            if len(replay.end_rows) != n_seeds:
                raise ValueError("it is of another number of seeds")
        for number, held_out in manifest.lasting.held_out.items():
            found = read(held_out)
            evaluations[number] = [unpack_evaluation(arrays_of_seed(found, position)) for position in range(n_seeds)]
        for position in range(n_seeds):
            kept = without_overwritten(first[position], episodes[position], capacity)
            first[position], episodes[position] = kept
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise DiasterError(f"a file of '{directory}' is damaged: {error}.") from None
    whole = tuple(replay for replay in manifest.lasting.replay if replay.file.name not in lost)
    lasting = manifest.lasting._replace(replay=whole)
    return Checkpoint(manifest.number, dict(manifest.facts), arrays, first, episodes, evaluations, lasting), lost


def _read_file(directory: Path, file: StoredFile, most: int) -> Arrays:
    path = directory / file.name
    content = read_bytes(path, min(file.size, most), root=directory.parent)
    if len(content) != file.size or checksum(content) != file.sha256:
        raise DiasterError(f"'{path}' is damaged: its checksum is wrong.")
    return parse_tensors(content, path, MOST_HEADER)

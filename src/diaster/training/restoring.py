"""What a run goes on from: its last whole checkpoint, read and checked against its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from diaster.config import RunConfig, write_toml
from diaster.learning.shards import AnyLearner
from diaster.nn.trees import leaf_names
from diaster.replay.store import EpisodeStore, refill_store, store_bytes
from diaster.rundir.checkpoint import DIRECTORY, Checkpoint, read_checkpoint
from diaster.rundir.files import Form, tensor_bytes
from diaster.rundir.records import former_settings, read_config, read_settings
from diaster.rundir.writer import RunWriter
from diaster.training.best import best_forms
from diaster.training.checkpoints import MOST_UNWRITTEN
from diaster.training.progress import Reporter
from diaster.training.schedule import Chunk, chunks
from diaster.training.state import RunState, refuse_another_chunk, unpack_state
from diaster.types import EnvSpec


class Found(NamedTuple):
    """A checkpoint and what it holds."""

    checkpoint: Checkpoint
    state: RunState
    chunk: Chunk
    """That was stored last, and has not been learnt from."""
    stores: list[EpisodeStore]  # of every seed


def read_state(
    config: RunConfig, spec: EnvSpec, capacity: int, learner: AnyLearner, writer: RunWriter, reporter: Reporter
) -> Found | None:
    """The state of the last checkpoint; None where a run was cut off before its first one. `learner` is a fresh one."""
    path, directory = writer.path, writer.path / DIRECTORY
    fresh, policies = learner.snapshot(), learner.send_policies().tree
    expected = {name: (leaf.shape, leaf.dtype) for name, leaf in fresh.arrays.items()}
    best = best_forms({name: (leaf.shape, leaf.dtype) for name, leaf in leaf_names(policies)})
    checkpoint, warnings = read_checkpoint(
        directory,
        write_toml(config),
        len(config.seeds),
        capacity,
        largest_file(config, spec, capacity, expected),
        as_begun=read_settings(path),
        former=[entry["settings"] for entry in former_settings(writer.before)],
    )
    for warning in warnings:
        reporter.warn(warning)
    if checkpoint is None:
        return None
    state = unpack_state(checkpoint, config, spec, expected, list(fresh.good), best, path, directory)
    chunk = next(islice(chunks(config), state.facts.chunk, None))
    refuse_another_chunk(read_config(path), chunk, directory)
    stores = [
        refill_store(capacity, spec.obs_dim, spec.action_dim, first, episodes, config.feedback, spec.obs_dtype)
        for first, episodes in zip(checkpoint.first, checkpoint.episodes, strict=True)
    ]
    return Found(checkpoint, state, chunk, stores)


def largest_file(config: RunConfig, spec: EnvSpec, capacity: int, expected: Mapping[str, Form]) -> int:
    """Bytes a file of a checkpoint can have: some replays, where the disk was full for long, and the nets twice."""
    ring = store_bytes(capacity, spec.obs_dim, spec.action_dim, config.feedback, spec.obs_dtype)
    return 4 * len(config.seeds) * ring + 2 * tensor_bytes(expected) + MOST_UNWRITTEN


def warn_of_other_episodes(seeds: Sequence[int], are_same: Sequence[bool], reporter: Reporter) -> None:
    """Say which environments could not be brought back to where they were."""
    for seed, is_same in zip(seeds, are_same, strict=True):
        if not is_same:
            reporter.warn(
                f"the environment of seed {seed} does not repeat itself, so its unfinished episode could not be "
                "brought back and a new one begins; from here the run differs from one that was never cut off."
            )

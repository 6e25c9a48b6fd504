"""Checkpoints: everything a run needs to continue as if it had never stopped.

    checkpoint/manifest-7.json            what belongs to the seventh, with sizes and checksums; written last
    checkpoint/state-7.safetensors        nets, optimisers, labels, metrics, the unfinished episodes
    checkpoint/replay-5.safetensors       the episodes that were new then; written once, kept while any is in the replay
    checkpoint/held-out-30.safetensors    the episodes of an evaluation that the diagnostics still use

Randomness has no state here: every draw follows from the seed, the stream and the place in the run. A background
thread writes each file under another name and renames it. Two generations are kept; what neither names is removed.
"""

from diaster.rundir.checkpoint.manifest import DIRECTORY, checksum, generations
from diaster.rundir.checkpoint.reading import Checkpoint, read_checkpoint
from diaster.rundir.checkpoint.removal import remove_all
from diaster.rundir.checkpoint.writing import CheckpointWriter, Snapshot

__all__ = [
    "DIRECTORY",
    "Checkpoint",
    "CheckpointWriter",
    "Snapshot",
    "checksum",
    "generations",
    "read_checkpoint",
    "remove_all",
]

"""Beginning with the nets of another run: which of them are taken, and why others cannot be.

Taken are policies, critics, targets, temperature and what normalises, the encoders that see images, and the decomposers
where the method is the same. Optimisers with their step sizes, replay, IRCR's best episodes and the table begin anew;
DQN explores as it did at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.rundir.files import MOST_TENSOR_BYTES, MissingFileError, check_finite, parse_tensors, read_bytes, typed
from diaster.rundir.records import NETS, read_config

AGENT, DECOMPOSER = "state.agent.", "state.decomposer."
ENCODER = f"{DECOMPOSER}encoder."  # where observations are images; the agent's nets see nothing without it
Arrays = Mapping[str, NDArray[Any]]


class Inheritance(NamedTuple):
    """The nets that a run begins with, and what its metadata say of them."""

    arrays: dict[str, NDArray[Any]]  # [S, …], the seeds of the new run
    facts: dict[str, Any]


def inherited_nets(config: RunConfig, own: Arrays, before: Any = None) -> Inheritance:
    """What a run takes over from the one its settings name. `own` are its nets as they would begin.

    `before` is what was noted when the run began, if it did: a run that goes on begins with the same nets again.
    """
    source = Path(config.from_run)
    theirs = read_config(source)
    if theirs.agent.name != config.agent.name:
        raise DiasterError(
            f"'{source}' was trained with the agent '{theirs.agent.name}', whose nets '{config.agent.name}' has no use "
            f"for; add --agent {theirs.agent.name}, or leave --from out."
        )
    parts = [AGENT, ENCODER, *([DECOMPOSER] if theirs.method.name == config.method.name else [])]
    content = _read(source)
    facts = {"run": str(source), "nets": hashlib.sha256(content).hexdigest(), "takes": _taken(theirs, config)}
    if before is not None and before != facts:
        raise DiasterError(
            f"what is in '{source}' is not what this run began with; put it back as it was, or begin this run again."
        )
    places = _places(config, theirs, source)
    found = {
        name: array for name, array in parse_tensors(content, source / NETS).items() if name.startswith(tuple(parts))
    }
    wanted = {name: array for name, array in own.items() if name.startswith(tuple(parts))}
    _check_forms(found, wanted, source)
    check_finite(found, source / NETS)
    return Inheritance({name: array[places] for name, array in found.items()}, facts)


def _read(source: Path) -> bytes:
    """The file of nets, which a complete run has."""
    try:
        return read_bytes(source / NETS, MOST_TENSOR_BYTES)
    except MissingFileError:
        raise DiasterError(
            f"'{source}' has no {NETS}, which a run writes when it is complete; finish it with 'diaster resume "
            f"{typed(source)}', or train it again if an earlier version of diaster has."
        ) from None


def _taken(theirs: RunConfig, config: RunConfig) -> str:
    if theirs.method.name == config.method.name:
        return "agent and decomposer"
    return f"agent; the decomposer begins anew, since '{theirs.method.name}' is another method"


def _places(config: RunConfig, theirs: RunConfig, source: Path) -> NDArray[np.int64]:
    """For each seed the place of the nets it takes: of the seed with its number, or of the only one there is."""
    if len(theirs.seeds) == 1:
        return np.zeros(len(config.seeds), np.int64)
    missing = [seed for seed in config.seeds if seed not in theirs.seeds]
    if missing:
        raise DiasterError(
            f"'{source}' has nets of the seeds {', '.join(map(str, theirs.seeds))}, and none of seed {missing[0]}; "
            "give some of its seeds with --seeds, or a run of a single seed, which serves all."
        )
    return np.array([theirs.seeds.index(seed) for seed in config.seeds], np.int64)


def _check_forms(found: Arrays, wanted: Arrays, source: Path) -> None:
    """Nets of other sizes are of no use."""
    for name in sorted(wanted.keys() | found.keys()):
        sizes = [None if name not in of else (list(of[name].shape[1:]), str(of[name].dtype)) for of in (found, wanted)]
        if sizes[0] != sizes[1]:
            there, here = ("none" if size is None else f"{size[1]} {size[0]}" for size in sizes)
            raise DiasterError(
                f"the nets of '{source}' do not fit: '{name.removeprefix('state.')}' is {there} there and {here} here; "
                "give the environment and the sizes that it was trained with."
            )

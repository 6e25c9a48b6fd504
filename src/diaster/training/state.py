"""What a checkpoint holds of a run: packed for its files, and read back with every value checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.actors.collector import CollectorState
from diaster.config import RunConfig, updates_due
from diaster.config.limits import MOST
from diaster.errors import DiasterError
from diaster.learning.snapshot import LABELS, LearnerSnapshot
from diaster.rundir.checkpoint import Checkpoint
from diaster.rundir.files import Form, check_tensors, damaged
from diaster.rundir.results import COLUMNS, ResultRow
from diaster.training.schedule import Chunk, chunks, n_chunks
from diaster.types import EnvSpec, Episode, Feedback

COLLECTOR_COUNTS, COLLECTOR_ARRAYS = CollectorState._fields[:3], CollectorState._fields[3:]
MOST_DIVERGENCES = 2**31 - 1  # the learner counts in 32 bits
MOST_METRICS = 1_000_000  # calls of the learner between two evaluations


class RunFacts(NamedTuple):
    """What a checkpoint holds of a run apart from arrays and episodes. JSON holds it under these names."""

    chunk: int
    """The chunk that was stored last; it has not been learnt from."""
    seconds: float
    episodes: list[int]
    numbers: list[int]
    """Of feedback: for an episode, or for a span each."""
    collectors: list[list[int]]
    faults: list[int]
    divergences: list[int]
    recent_returns: list[list[float]]
    evaluations: int
    held_out_stride: int
    n_metrics: int
    rows: list[ResultRow]
    decomposer_updates: int
    made_updates: list[int]
    """Of the decomposer of each seed."""
    agent_updates: int
    label_age: int
    warned: bool
    first_learning: float | None


class RunState(NamedTuple):
    """All that a run has to be given back to go on."""

    facts: RunFacts
    learner: LearnerSnapshot
    metrics: list[dict[str, Any]]
    collectors: list[CollectorState]
    best: dict[str, NDArray[Any]]


def packed_arrays(
    learner: LearnerSnapshot,
    metrics: Sequence[Mapping[str, Any]],
    collectors: Sequence[CollectorState],
    best: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint, by name."""
    return {
        **learner.arrays,
        **best,
        **{f"good.{name}": array for name, array in learner.good.items()},
        **{f"metrics.{n}.{name}": np.array(v) for n, entry in enumerate(metrics) for name, v in entry.items()},
        **{
            f"collector.{position}.{name}": getattr(state, name)
            for position, state in enumerate(collectors)
            for name in COLLECTOR_ARRAYS
        },
    }


def unpack_state(
    checkpoint: Checkpoint,
    config: RunConfig,
    spec: EnvSpec,
    expected: Mapping[str, Form],
    good: Sequence[str],
    best: Mapping[str, Form],
    run: Path,
    directory: Path,
) -> RunState:
    """A run's state from a checkpoint that was read; what does not fit its settings is damage.

    `expected` are the learner's arrays, `good` the names of those that a rollback returns to, and `best` what is kept
    of the best policies.
    """
    n_seeds = len(config.seeds)
    try:
        # Earlier versions had a number for every episode.
        given = {"numbers": checkpoint.facts.get("episodes"), **checkpoint.facts}
        facts = checked_facts(given, config, spec.lanes > 0)
        arrays = dict(checkpoint.arrays)
        metrics = _metrics(arrays, facts.n_metrics, n_seeds)
        collectors = [_collector(arrays, position, counts) for position, counts in enumerate(facts.collectors)]
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, DiasterError):
            raise
        raise damaged(directory, f"its parts do not fit together ({type(error).__name__}: {error})") from None
    for collector in collectors:
        _refuse_another_environment(spec, collector.obs, collector.action, run)
    for episode in (episode for of_seed in checkpoint.episodes for episode in of_seed):
        _refuse_another_environment(spec, episode.obs, episode.action, run)
    for episodes in (of_seed for kept in checkpoint.evaluations.values() for of_seed in kept):
        _check_lengths([item.episode for item in episodes], spec, directory)
    for of_seed in checkpoint.episodes:
        _check_lengths(of_seed, spec, directory)
        _check_feedback(of_seed, config.feedback, spec.horizon, directory)
    nets = {name: arrays.pop(f"good.{name}") for name in good if f"good.{name}" in arrays}
    check_tensors(nets, {name: expected[name] for name in good}, directory)
    found_best = {name: arrays.pop(name) for name in best if name in arrays}
    if found_best:  # an earlier version kept none
        check_tensors(found_best, best, directory)
    arrays = _with_room(arrays, expected)
    check_tensors(arrays, expected, directory)
    learner = LearnerSnapshot(arrays, nets, list(facts.divergences), facts.label_age)
    return RunState(facts, learner, metrics, collectors, found_best)


def refuse_another_chunk(before: RunConfig, chunk: Chunk, directory: Path) -> None:
    """A run is made longer from where the longer run passes too; its last chunk may be shorter than it is there."""
    if next(islice(chunks(before), chunk.number, None), None) != chunk:
        raise DiasterError(
            f"the checkpoint in '{directory}' is of the last {before.steps % before.chunk_steps} steps, which a longer "
            f"run takes together with others; give it as many steps as it has, and another run --from this one."
        )


def _with_room(arrays: dict[str, NDArray[Any]], expected: Mapping[str, Form]) -> dict[str, NDArray[Any]]:
    """The labels of a run that was shorter: the ring of a longer one has more places, and the first ones are filled."""
    if LABELS not in arrays or LABELS not in expected or arrays[LABELS].ndim != 2:
        return arrays
    missing = expected[LABELS][0][1] - arrays[LABELS].shape[1]
    return {**arrays, LABELS: np.pad(arrays[LABELS], ((0, 0), (0, max(0, missing))))}


def checked_facts(given: Mapping[str, Any], config: RunConfig, is_vector: bool = False) -> RunFacts:
    """The facts, each of its kind and within its range; ValueError or TypeError where one is not.

    The environments of a vector have one collector.
    """
    n_seeds = len(config.seeds)
    n_collectors = n_seeds if is_vector else n_seeds * config.envs
    if "decomposer_updates" in given:  # in earlier versions every seed made all of them
        given = {"made_updates": [given["decomposer_updates"]] * n_seeds, **given}
    if set(given) != set(RunFacts._fields):
        raise ValueError("it has other facts than a run")
    facts = RunFacts(**given)
    _check_count(facts.chunk, n_chunks(config) - 1)
    _check_count(facts.evaluations)
    _check_count(facts.decomposer_updates, updates_due(config.method, config.steps))
    _check_list(facts.made_updates, n_seeds)
    for count in facts.made_updates:
        _check_count(count, facts.decomposer_updates)
    _check_count(facts.label_age, facts.decomposer_updates)
    _check_count(facts.agent_updates, updates_due(config.agent, config.steps))
    _check_count(facts.n_metrics, MOST_METRICS)
    _check_count(facts.held_out_stride, least=1)
    of_seeds = (facts.episodes, facts.numbers, facts.faults)
    for counts, most in (*((counts, MOST) for counts in of_seeds), (facts.divergences, MOST_DIVERGENCES)):
        _check_list(counts, n_seeds)
        for count in counts:
            _check_count(count, most)
    _check_list(facts.collectors, n_collectors)
    for counts in facts.collectors:
        _check_list(counts, len(COLLECTOR_COUNTS))
        for count in counts:
            _check_count(count)
    _check_list(facts.recent_returns, n_seeds)
    for returns in facts.recent_returns:
        _check_list(returns)
        if not all(_is_number(value) and math.isfinite(value) for value in returns):
            raise ValueError("a return is no finite number")
    seconds = [facts.seconds, 0.0 if facts.first_learning is None else facts.first_learning]
    if not all(_is_number(value) and 0.0 <= value < math.inf for value in seconds):
        raise ValueError("a time is no number of seconds")
    if type(facts.warned) is not bool:
        raise TypeError("warned is neither true nor false")
    _check_list(facts.rows)
    for row in facts.rows:
        if not isinstance(row, dict) or not {"step", "seed", "return_mean", "fit_r2"} <= set(row) <= set(COLUMNS):
            raise ValueError("a row is none of the table")
        if not all(map(_is_number, row.values())):
            raise ValueError("a row has something that is no number")
        _check_count(row["step"])
        _check_count(row["seed"])
    if len(facts.rows) % n_seeds:
        raise ValueError("an evaluation lacks rows")
    return facts


def _check_count(value: Any, most: int = MOST, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no count of it")


def _check_list(value: Any, n: int | None = None) -> None:
    if not isinstance(value, list) or n not in (None, len(value)):
        raise ValueError("a list is missing or has another length")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _metrics(arrays: dict[str, NDArray[Any]], n: int, n_seeds: int) -> list[dict[str, Any]]:
    """What was measured since the last evaluation, call by call."""
    metrics: list[dict[str, Any]] = [{} for _ in range(n)]
    for name in [name for name in arrays if name.startswith("metrics.")]:
        _, number, metric = name.split(".", 2)
        if int(number) not in range(n) or arrays[name].shape != (n_seeds,):
            raise ValueError(f"'{name[:60]}' is no metric of it")
        metrics[int(number)][metric] = arrays.pop(name)
    return metrics


def _collector(arrays: dict[str, NDArray[Any]], position: int, counts: Sequence[int]) -> CollectorState:
    episodes, faults, in_a_row = counts
    found = {name: arrays.pop(f"collector.{position}.{name}") for name in COLLECTOR_ARRAYS}
    state = CollectorState(episodes, faults, in_a_row, **found)
    n_steps = len(state.action)
    if state.obs.ndim != 2 or state.action.ndim != 2 or len(state.obs) not in (0, n_steps + 1):
        raise ValueError("an unfinished episode has other shapes")
    if len(state.hidden_reward) not in (0, n_steps) or (len(state.obs) == 0 and n_steps > 0):
        raise ValueError("an unfinished episode has other lengths")
    return state


def _refuse_another_environment(spec: EnvSpec, obs: NDArray[Any], action: NDArray[Any], run: Path) -> None:
    """Its package may have changed since; nets and replay are of no use to an environment of other sizes."""
    sizes, before = (spec.obs_dim, spec.action_dim), (obs.shape[-1], action.shape[-1])
    if sizes != before:
        raise DiasterError(
            f"'{spec.id}' has {sizes[0]} observations and {sizes[1]} actions now, and had {before[0]} and "
            f"{before[1]} when '{run}' was trained; resume it with the version of the environment's package that it "
            "was begun with."
        )


def _check_feedback(episodes: Sequence[Episode], feedback: Feedback, horizon: int, directory: Path) -> None:
    """The replay has room for what the settings say, and for nothing else."""
    for episode in episodes:
        spans = episode.to_decompose
        if (
            (episode.spans is not None) != feedback.has_spans
            or (episode.known_reward is not None) != feedback.has_known
            or not (feedback.has_gaps or spans.is_rated.all())
            or spans.length.max() > feedback.longest_span(horizon)
        ):
            raise damaged(directory, "it holds an episode with other feedback than the run has")


def _check_lengths(episodes: Sequence[Episode], spec: EnvSpec, directory: Path) -> None:
    if any(episode.length > spec.horizon for episode in episodes):
        raise damaged(directory, f"it holds an episode that is longer than the horizon {spec.horizon}")

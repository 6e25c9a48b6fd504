"""Episodes as arrays for a file and back, and the counts that place them in the replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.types import Episode, EpisodeNumbers, EvaluationEpisode, Spans

Arrays = dict[str, NDArray[Any]]

_KINDS = {
    "length": ("i", 1),
    "episode_return": ("f", 1),
    "terminated": ("b", 1),
    "obs": ("fu", 2),  # images are whole numbers
    "action": ("f", 2),
    # Where feedback comes in pieces, or a part of the rewards is known:
    "n_spans": ("i", 1),
    "span_end": ("i", 1),
    "span_number": ("f", 1),
    "known_reward": ("f", 1),
}
MOST_ROWS = 2**31 - 1  # the replay counts in 32 bits


def pack_episodes(episodes: Sequence[Episode]) -> Arrays:
    """The steps of all episodes in one array each; no `obs` and no `action` where there are no episodes."""
    arrays = {
        "length": np.array([episode.length for episode in episodes], np.int64),
        "episode_return": np.array([episode.episode_return for episode in episodes], np.float64),
        "terminated": np.array([episode.terminated for episode in episodes], bool),
    }
    if episodes:
        arrays["obs"] = np.concatenate([episode.obs for episode in episodes])
        arrays["action"] = np.concatenate([episode.action for episode in episodes])
    spans = [episode.spans for episode in episodes if episode.spans is not None]
    if spans:
        assert len(spans) == len(episodes), "all episodes of a run have spans, or none"
        arrays["n_spans"] = np.array([len(of_one.end) for of_one in spans], np.int64)
        arrays["span_end"] = np.concatenate([of_one.end for of_one in spans])
        arrays["span_number"] = np.concatenate([of_one.number for of_one in spans])
    known = [episode.known_reward for episode in episodes if episode.known_reward is not None]
    if known:
        assert len(known) == len(episodes), "of all rewards of a run a part is known, or of none"
        arrays["known_reward"] = np.concatenate(known)
    return arrays


def unpack_episodes(arrays: Mapping[str, NDArray[Any]]) -> list[Episode]:
    """The inverse of `pack_episodes`. Raises ValueError or KeyError where the arrays do not fit together."""
    for name in _KINDS.keys() & arrays.keys():
        kinds, n_axes = _KINDS[name]
        if arrays[name].dtype.kind not in kinds or arrays[name].ndim != n_axes:
            raise ValueError(f"{name} is no array of episodes")
    length = arrays["length"]
    if len(length) == 0:
        return []
    steps = len(arrays["action"])
    # Each length is bounded, so that their sum cannot overflow.
    if length.min() < 1 or length.max() > steps or not steps == length.sum() == len(arrays["obs"]) - len(length):
        raise ValueError("the lengths of its episodes do not add up")
    for name in ("obs", "action", "episode_return", "known_reward"):
        if name in arrays and not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not finite")
    spans = _unpack_spans(arrays, length) if "n_spans" in arrays else [None] * len(length)
    ends = np.cumsum(length)
    actions = np.split(arrays["action"], ends[:-1])
    obs = np.split(arrays["obs"], (ends + np.arange(1, len(length) + 1))[:-1])
    known: Sequence[Any] = [None] * len(length)
    if "known_reward" in arrays:
        if len(arrays["known_reward"]) != steps:
            raise ValueError("known rewards are not of its steps")
        known = np.split(arrays["known_reward"], ends[:-1])
    numbers = zip(arrays["episode_return"].tolist(), arrays["terminated"].tolist(), strict=True)
    parts = zip(obs, actions, numbers, spans, known, strict=True)
    return [Episode(o, a, r, t, spans=of_one, known_reward=k) for o, a, (r, t), of_one, k in parts]


def _unpack_spans(arrays: Mapping[str, NDArray[Any]], length: NDArray[Any]) -> list[Spans]:
    """The spans of every episode; each has a step at least, and the last one ends with its episode."""
    n_spans, end, number = arrays["n_spans"], arrays["span_end"], arrays["span_number"]
    # Each count is bounded, so that their sum cannot overflow.
    if n_spans.shape != length.shape or n_spans.min() < 1 or n_spans.max() > len(end):
        raise ValueError("its spans are not of its episodes")
    if not n_spans.sum() == len(end) == len(number) or np.isinf(number).any():
        raise ValueError("its spans are not of one piece")
    last = np.cumsum(n_spans) - 1
    starts = np.concatenate([[0], end[:-1]])
    starts[np.concatenate([[0], last[:-1] + 1])] = 0
    if (end <= starts).any() or (end[last] != length).any():
        raise ValueError("its spans are no parts of its episodes")
    cuts = last[:-1] + 1
    return [Spans(e, n) for e, n in zip(np.split(end, cuts), np.split(number, cuts), strict=True)]


def unpack_numbers(arrays: Mapping[str, NDArray[Any]]) -> EpisodeNumbers:
    """The numbers of the first of the episodes; ValueError where no episode can have them."""
    first, n_counts = arrays["first"], len(EpisodeNumbers._fields)
    # Earlier versions counted no cuts.
    if first.dtype.kind != "i" or first.shape not in ((n_counts,), (n_counts - 1,)):
        raise ValueError("its episodes have no numbers")
    numbers = EpisodeNumbers(*first.tolist())
    # An episode has one row more than it has steps, and a span has a step at least.
    if min(numbers) < 0 or numbers.row > MOST_ROWS or numbers.row != numbers.step + numbers.episode:
        raise ValueError("its episodes have numbers that do not fit together")
    if numbers.cuts and numbers.span > numbers.step:
        raise ValueError("its spans have numbers that do not fit together")
    return numbers


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


def join_seeds(of_seeds: Iterable[Arrays]) -> Arrays:
    """The arrays of all seeds for one file."""
    return {f"{position}.{name}": array for position, arrays in enumerate(of_seeds) for name, array in arrays.items()}


def arrays_of_seed(arrays: Mapping[str, NDArray[Any]], position: int) -> Arrays:
    """The inverse of `join_seeds`, for one seed."""
    prefix = f"{position}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def numbers_after(first: EpisodeNumbers, episodes: Sequence[Episode]) -> EpisodeNumbers:
    """The numbers of the episode that follows these."""
    for episode in episodes:
        first = first.after(episode)
    return first


def without_overwritten(
    first: EpisodeNumbers, episodes: list[Episode], capacity: int
) -> tuple[EpisodeNumbers, list[Episode]]:
    """Leave out what the ring has overwritten: episodes that begin more than its capacity before its end."""
    end = numbers_after(first, episodes)
    dropped = 0
    while dropped < len(episodes) and first.row < end.row - capacity:
        first = first.after(episodes[dropped])
        dropped += 1
    return first, episodes[dropped:]


def bytes_of(episodes: Sequence[Episode]) -> int:
    """How much memory episodes take."""
    return sum(episode.obs.nbytes + episode.action.nbytes for episode in episodes)

"""Episodes whose feedback comes in pieces, as their caller tells of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from diaster.envs.delayed import LARGEST_RETURN, as_number
from diaster.errors import DiasterError
from diaster.replay.rated import rated_parts
from diaster.replay.store import EpisodeBlock
from diaster.types import Episode, Spans


def spans_of(length: int, episode_return: Any, marks: Iterable[tuple[int, float | None]] | None) -> Spans:
    """The spans of an episode: one with its return, or those between marks; what has no number waits for it.

    A mark says where a span ends, and its number. Steps after the last one are a span without a number.
    """
    if marks is None:
        return Spans(np.array([length], np.int64), np.array([return_of(episode_return)]))
    if episode_return is not None:
        raise DiasterError(
            f"an episode with the return {episode_return} and with spans was given; give None as its return, since "
            "the numbers of the spans say it all."
        )
    try:
        given = [(end, _number_or_nan(number)) for end, number in marks]
    except (TypeError, ValueError):
        raise DiasterError(
            "spans of another form than [(end, number), …] were given; give for each span after how many steps of the "
            "episode it ends, and its number or None."
        ) from None
    ends = [end for end, _ in given]
    is_whole = all(isinstance(end, int | np.integer) and not isinstance(end, bool) for end in ends)
    if not is_whole or any(after <= before for before, after in zip([0, *ends], ends, strict=False)):
        raise DiasterError(f"spans that end after {ends} steps were given; these have to be whole numbers that rise.")
    if ends and ends[-1] > length:
        raise DiasterError(f"a span that ends after {ends[-1]} steps was given, and the episode has {length}.")
    if not ends or ends[-1] < length:
        given.append((length, math.nan))
    end, number = zip(*given, strict=True)
    return Spans(np.array(end, np.int64), np.array(number, np.float64))


def checked_number(value: Any) -> float:
    """A number of feedback that comes late."""
    try:
        number = as_number(value, "feedback")
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= LARGEST_RETURN:
        raise DiasterError(
            f"feedback of {value!r} was given; it has to be a finite number of at most {LARGEST_RETURN:g}. "
            "An episode that gets none needs no call."
        )
    return number


def rated_spans_alone(episode: Episode) -> list[Episode]:
    """Each span with a number as an episode of its own, less what is known of its rewards."""
    found = []
    for part in rated_parts(episode):
        spans = part.to_decompose
        for start, end, number in zip(spans.start, spans.end, spans.number, strict=True):
            is_last = part.terminated and end == part.length
            found.append(Episode(part.obs[start : end + 1], part.action[start:end], float(number), bool(is_last)))
    return found


def only_span(block: EpisodeBlock) -> Episode:
    """The same of a block with one span."""
    obs, action = np.asarray(block.obs), np.asarray(block.action)
    length = int(block.length[0])
    return Episode(obs[: length + 1], action[:length], float(block.episode_return[0]), bool(block.terminated[0]))


def return_of(given: Any) -> float:
    """An episode's return, or NaN where it is not known."""
    try:
        return _number_or_nan(given)
    except (TypeError, ValueError):
        raise DiasterError(f"an episode with the return {given!r} was given; it has to be a number.") from None


def _number_or_nan(number: Any) -> float:
    return math.nan if number is None else as_number(number, "a number of feedback")

"""Settings for numbers that are each for a few steps: an update takes more of them, and looks at as many steps as ever.

Settings say how many episodes an update looks at, and how many steps of each. Of a span of one step no more than that
step can be seen; four of them would be a batch of four steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from diaster.config import DiasterConfig, RdConfig, RrdConfig, RudderConfig

MOST_SPANS = 256  # of an update, unless there were as many episodes: sums over spans take space with their square


def settings_for_spans(settings: Any, horizon: int, longest: int) -> Any:
    """The settings of a method for spans of at most `longest` steps, from those for episodes of `horizon` steps."""
    if longest >= horizon or not isinstance(settings, DiasterConfig | RdConfig | RrdConfig | RudderConfig):
        return settings
    seen_before, seen = (_steps_seen(settings, length) for length in (horizon, longest))
    n_spans = settings.batch_episodes * -(-seen_before // seen)
    n_spans = max(settings.batch_episodes, min(n_spans, MOST_SPANS))
    smaller: dict[str, Any] = {"batch_episodes": n_spans}
    if isinstance(settings, DiasterConfig) and settings.segments == "sampled":
        length = min(settings.segment_length, longest)
        most = (longest - 2) // length + 2  # segments of a span, wherever the grid begins
        smaller |= {"segment_length": length, "segments_per_episode": min(settings.segments_per_episode, most)}
    if isinstance(settings, RrdConfig):
        smaller["subset"] = min(settings.subset, max(longest, 2))  # the unbiased variant needs two, of one step twice
    return dataclasses.replace(settings, **smaller)


def _steps_seen(settings: DiasterConfig | RdConfig | RrdConfig | RudderConfig, length: int) -> int:
    """How many steps an update looks at of an episode, or span, of so many."""
    if isinstance(settings, RrdConfig):
        return min(settings.subset, length)
    if isinstance(settings, DiasterConfig) and settings.segments == "sampled":
        return min(settings.segments_per_episode * settings.segment_length, length)
    return length

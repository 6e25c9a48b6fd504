"""What flows between the host's modules: plain NumPy records, and the named random streams.

Nothing here imports JAX, so that the processes which step environments start fast and stay small.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Observation = NDArray[Any]  # of 32-bit floats; images keep their 8 bits

IMAGE_FEATURES = 64  # what an encoder makes of an image


class Image(NamedTuple):
    """The form of observations that are images: squares of 8 bits, laid flat."""

    side: int
    channels: int  # of all images that are seen together


class EnvSpec(NamedTuple):
    """What agents and decomposers have to know of an environment.

    Nets see continuous actions in [−1, 1] and discrete ones as one-hot vectors.
    """

    id: str
    obs_dim: int
    action_dim: int  # of a vector, or how many discrete actions there are
    action_low: FloatArray  # [A]
    action_high: FloatArray  # [A]
    action_shape: tuple[int, ...]
    horizon: int
    discrete: bool = False
    first_action: int = 0  # what the environment calls the first of its discrete actions
    # Where an action is several choices at once (MultiDiscrete, MultiBinary), each combination is a discrete action.
    parts: tuple[int, ...] = ()  # how many values each has
    first_parts: tuple[int, ...] = ()  # what the environment calls the first of each
    action_type: str = "float32"  # of numbers in arrays
    lanes: int = 0  # environments of the vector that is stepped at once; 0 where it is no vector
    image: Image | None = None  # where observations are images

    @property
    def obs_dtype(self) -> type[np.float32] | type[np.uint8]:
        """What observations are kept as."""
        return np.float32 if self.image is None else np.uint8

    @property
    def of_features(self) -> EnvSpec:
        """The same as seen by agents and methods, before which an encoder stands where observations are images."""
        return self if self.image is None else self._replace(obs_dim=IMAGE_FEATURES, image=None)

    @property
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last number of discrete actions, or of each choice in them."""
        first = np.asarray(self.first_parts or self.first_action, np.int64).reshape(self.action_shape)
        sizes = np.asarray(self.parts or self.action_dim, np.int64).reshape(self.action_shape)
        return first, first + sizes - 1

    def to_env(self, action: FloatArray) -> Any:
        """An action of the policy in the environment's terms: scaled and shifted into its bounds, or its number.

        The number of a single action is none of NumPy's arrays: environments look it up in their tables.
        """
        if self.discrete:
            chosen = np.argmax(action, axis=-1)
            if not self.parts:
                return chosen + self.first_action
            values = np.stack(np.unravel_index(chosen, self.parts), axis=-1) + self.first_parts
            return values.astype(self.action_type).reshape(action.shape[:-1] + self.action_shape)
        unit = np.minimum(np.maximum(action, -1.0), 1.0)  # np.clip takes three times as long for a few numbers
        scaled = self.action_low + (unit + 1.0) * 0.5 * (self.action_high - self.action_low)
        # Rounding may lead out of the bounds.
        inside = np.minimum(np.maximum(scaled, self.action_low), self.action_high)
        if self.action_type != "float32":  # whole numbers
            inside = np.rint(inside)
        return inside.astype(self.action_type, copy=False).reshape(action.shape[:-1] + self.action_shape)

    def from_env(self, action: Any) -> FloatArray:
        """The inverse of `to_env`: an action of the environment as the nets see it."""
        batch = np.shape(action)[: np.ndim(action) - len(self.action_shape)]
        if self.discrete:
            chosen = np.asarray(action, np.int64) - self.first_action
            if self.parts:
                values = chosen.reshape(*batch, len(self.parts)) - self.first_parts
                chosen = np.asarray(np.ravel_multi_index(tuple(np.moveaxis(values, -1, 0)), self.parts))
            return np.eye(self.action_dim, dtype=np.float32)[chosen]
        flat = np.asarray(action, np.float32).reshape((*batch, self.action_dim))
        unit = (flat - self.action_low) / (self.action_high - self.action_low) * 2.0 - 1.0
        return unit.astype(np.float32)


class Feedback(NamedTuple):
    """How feedback on an episode comes."""

    every: int | str = "episode"
    """'episode': one number for all of it. A count: one for so many steps. 'environment': for the spans that the
    environment marks, of which some may have none."""
    has_known: bool = False
    """Whether a part of every step's reward is known, and only the rest is to be decomposed."""

    @property
    def has_spans(self) -> bool:
        """Whether an episode may have several numbers."""
        return self.every != "episode"

    @property
    def has_gaps(self) -> bool:
        """Whether some steps may have no feedback, now or ever."""
        return self.every == "environment"

    def longest_span(self, horizon: int) -> int:
        """How many steps a number can be for."""
        return min(self.every, horizon) if isinstance(self.every, int) else horizon


EPISODIC = Feedback()


class Spans(NamedTuple):
    """The parts of an episode that have one number each, one after the other."""

    end: NDArray[np.int64]  # [K] where each ends; the last one where the episode does
    number: NDArray[np.float64]  # [K] NaN where a span has none

    @property
    def length(self) -> NDArray[np.int64]:
        """How many steps each has.  # [K]"""
        return np.diff(self.end, prepend=0)

    @property
    def start(self) -> NDArray[np.int64]:
        """The first step of each.  # [K]"""
        return self.end - self.length

    @property
    def is_rated(self) -> NDArray[np.bool_]:
        """Which of them have a number.  # [K]"""
        return ~np.isnan(self.number)


class Episode(NamedTuple):
    """A finished episode as learning may see it: a number for all of it or for each span, no reward for a step."""

    obs: Observation  # [L+1, D]
    action: FloatArray  # [L, A], in [−1, 1] or one-hot
    episode_return: float
    terminated: bool  # False where a time limit ended it: the last state then still has a value
    hidden_reward: FloatArray | None = None  # [L]; kept for the method `dense` alone
    spans: Spans | None = None  # None: one span, whose number is the return
    known_reward: FloatArray | None = None  # [L]; the part of each step's reward that is no secret

    @property
    def length(self) -> int:
        return len(self.action)

    @property
    def to_decompose(self) -> Spans:
        """Its spans, with what known rewards leave of their numbers."""
        spans = self.spans or Spans(np.array([self.length]), np.array([self.episode_return], np.float64))
        if self.known_reward is None:
            return spans
        known = np.add.reduceat(self.known_reward, spans.start, dtype=np.float64)
        return spans._replace(number=spans.number - known)


class EpisodeNumbers(NamedTuple):
    """How many episodes, rows and steps came before an episode; or how many there have been in all."""

    episode: int = 0
    row: int = 0
    step: int = 0
    cuts: int = 0  # how often an episode went on in another span

    @property
    def span(self) -> int:
        """How many spans there were."""
        return self.episode + self.cuts

    def after(self, episode: Episode) -> EpisodeNumbers:
        """The numbers of the next episode, where this one has them."""
        length, cuts = episode.length, 0 if episode.spans is None else len(episode.spans.end) - 1
        return EpisodeNumbers(self.episode + 1, self.row + length + 1, self.step + length, self.cuts + cuts)


class EvaluationEpisode(NamedTuple):
    """An episode that never enters the replay, with the hidden rewards where the environment has them."""

    episode: Episode
    true_reward: FloatArray | None  # [L]; None where it is not known


class Stream(enum.IntEnum):
    """Every use of randomness has a stream of its own, so that no use can disturb another."""

    INIT_AGENT = 0
    INIT_DECOMPOSER = 1
    UPDATE_AGENT = 2
    UPDATE_DECOMPOSER = 3
    COLLECT_RESET = 4
    COLLECT_ACTION = 5
    EVALUATE_RESET = 6
    RECORD_RESET = 7
    RECORD_ACTION = 8
    WATCH_REWARDS = 9
    HOLD_OUT = 10
    LEARN_FEATURES = 11
    WARMUP_MANNER = 12
    SURVEY_STEPS = 13


def host_random(seed: int, stream: Stream, *index: int) -> np.random.Generator:
    """NumPy's generator for one seed, one use and one place in the run; there is no state to carry."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, int(stream), *index))))


def reset_seed(seed: int, stream: Stream, *index: int) -> int:
    """The seed given to an environment's `reset`: every episode has its own and can be replayed alone."""
    return int(np.random.SeedSequence((seed, int(stream), *index)).generate_state(1)[0] & 0x7FFFFFFF)

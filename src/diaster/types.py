"""What flows between the host's modules: plain NumPy records, and the named random streams.

Nothing here imports JAX, so that the processes which step environments start fast and stay small.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


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

    def to_env(self, action: FloatArray) -> NDArray[Any]:
        """An action of the policy in the environment's terms: scaled and shifted into its bounds, or its number."""
        if self.discrete:
            return np.asarray(np.argmax(action, axis=-1) + self.first_action)
        unit = np.minimum(np.maximum(action, -1.0), 1.0)  # np.clip takes three times as long for a few numbers
        scaled = self.action_low + (unit + 1.0) * 0.5 * (self.action_high - self.action_low)
        # Rounding may lead out of the bounds.
        inside = np.minimum(np.maximum(scaled, self.action_low), self.action_high)
        return inside.astype(np.float32, copy=False).reshape(action.shape[:-1] + self.action_shape)

    def from_env(self, action: NDArray[Any]) -> FloatArray:
        """The inverse of `to_env`: an action of the environment as the nets see it."""
        if self.discrete:
            return np.eye(self.action_dim, dtype=np.float32)[np.asarray(action, np.int64) - self.first_action]
        batch = np.shape(action)[: np.ndim(action) - len(self.action_shape)]
        flat = np.asarray(action, np.float32).reshape((*batch, self.action_dim))
        unit = (flat - self.action_low) / (self.action_high - self.action_low) * 2.0 - 1.0
        return unit.astype(np.float32)


class Episode(NamedTuple):
    """A finished episode as learning may see it: one number for all of it, no reward for a step."""

    obs: FloatArray  # [L+1, D]
    action: FloatArray  # [L, A], in [−1, 1] or one-hot
    episode_return: float
    terminated: bool  # False where a time limit ended it: the last state then still has a value
    hidden_reward: FloatArray | None = None  # [L]; kept for the method `dense` alone

    @property
    def length(self) -> int:
        return len(self.action)


class EpisodeNumbers(NamedTuple):
    """How many episodes, rows and steps came before an episode; or how many there have been in all."""

    episode: int = 0
    row: int = 0
    step: int = 0

    def after(self, length: int) -> EpisodeNumbers:
        """The numbers of the next episode, where this one has `length` steps."""
        return EpisodeNumbers(self.episode + 1, self.row + length + 1, self.step + length)


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


def host_random(seed: int, stream: Stream, *index: int) -> np.random.Generator:
    """NumPy's generator for one seed, one use and one place in the run; there is no state to carry."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, int(stream), *index))))


def reset_seed(seed: int, stream: Stream, *index: int) -> int:
    """The seed given to an environment's `reset`: every episode has its own and can be replayed alone."""
    return int(np.random.SeedSequence((seed, int(stream), *index)).generate_state(1)[0] & 0x7FFFFFFF)

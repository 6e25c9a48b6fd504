"""Seeds dealt out to several devices: one learner on each, with the same interface as a single one.

Seeds share nothing but a program, so nothing has to be exchanged between devices, and their number need not be a
multiple of the devices'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from diaster.agents import Agent, Metrics
from diaster.decomposers import Decomposer
from diaster.learning.learner import Learner
from diaster.learning.policies import JoinedPolicies
from diaster.learning.snapshot import LearnerSnapshot
from diaster.replay.store import EpisodeStore
from diaster.types import EPISODIC, EnvSpec, Episode, Feedback


class ShardedLearner:
    """Learners of neighbouring seeds, each on a device of its own."""

    def __init__(
        self,
        make: Callable[[Sequence[int], jax.Device], Learner],
        seeds: Sequence[int],
        devices: Sequence[jax.Device],
    ) -> None:
        parts = np.array_split(np.arange(len(seeds)), min(len(devices), len(seeds)))
        self._spans = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
        used = devices[: len(self._spans)]
        self._home = used[0]
        self.learners = [make(seeds[span], device) for span, device in zip(self._spans, used, strict=True)]

    def store_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        for learner, span in self._shares():
            learner.store_episodes(episodes[span])

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        return self._joined(
            [learner.fit_decomposer(ready[span], first_update, n_updates) for learner, span in self._shares()]
        )

    def skip_updates(self, n_updates: int) -> None:
        for learner in self.learners:
            learner.skip_updates(n_updates)

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        return self._joined(
            [learner.fit_agent(ready[span], first_update, n_updates) for learner, span in self._shares()]
        )

    def renew_labels(self, oldest: int) -> None:
        for learner in self.learners:
            learner.renew_labels(oldest)

    def send_policies(self) -> JoinedPolicies:
        return JoinedPolicies([learner.send_policies() for learner in self.learners])

    def frozen_decomposers(self) -> Any:
        """On the first device."""
        return self._together([learner.frozen_decomposers() for learner in self.learners])

    def keep_nets(self) -> None:
        for learner in self.learners:
            learner.keep_nets()

    def snapshot(self) -> LearnerSnapshot:
        snapshots = [learner.snapshot() for learner in self.learners]
        return LearnerSnapshot(
            _concatenated([snapshot.arrays for snapshot in snapshots]),
            _concatenated([snapshot.good for snapshot in snapshots]),
            [count for snapshot in snapshots for count in snapshot.rollbacks],
            snapshots[0].label_age,
        )

    def nets(self) -> dict[str, NDArray[Any]]:
        nets: dict[str, NDArray[Any]] = _concatenated([learner.nets() for learner in self.learners])
        return nets

    def inherit(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for learner, span in self._shares():
            learner.inherit({name: array[span] for name, array in arrays.items()})

    def restart_agents(self, which: NDArray[np.bool_]) -> None:
        for learner, span in self._shares():
            learner.restart_agents(which[span])

    def restore(self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore]) -> None:
        for learner, span in self._shares():
            part = LearnerSnapshot(
                {name: array[span] for name, array in snapshot.arrays.items()},
                {name: array[span] for name, array in snapshot.good.items()},
                snapshot.rollbacks[span],
                snapshot.label_age,
            )
            learner.restore(part, stores[span])

    def _shares(self) -> list[tuple[Learner, slice]]:
        return list(zip(self.learners, self._spans, strict=True))

    def _joined(self, metrics: Sequence[Metrics]) -> Metrics:
        """One array for all seeds, on the first device; nothing waits for it."""
        joined: Metrics = self._together(metrics)
        return joined

    def _together(self, trees: Sequence[Any]) -> Any:
        here = [jax.device_put(tree, self._home) for tree in trees]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *here)


AnyLearner = Learner | ShardedLearner


def make_learner(
    decomposer: Decomposer,
    agent: Agent,
    spec: EnvSpec,
    seeds: Sequence[int],
    capacity: int,
    batch_size: int,
    devices: Sequence[jax.Device],
    feedback: Feedback = EPISODIC,
) -> AnyLearner:
    """The learner of all seeds, on one device or on several."""

    def make(seeds: Sequence[int], device: jax.Device) -> Learner:
        return Learner(decomposer, agent, spec, seeds, capacity, batch_size, device, feedback)

    return ShardedLearner(make, seeds, devices) if len(devices) > 1 else make(seeds, devices[0])


def _concatenated(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)

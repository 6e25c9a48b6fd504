"""Seeds dealt out to several devices: one learner on each, with the same face as a single one.

Seeds share nothing but a program, so nothing has to be exchanged between devices, and their number need not be a
multiple of the devices'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from diaster.acting import HostParameters
from diaster.agents import Acting, Metrics
from diaster.learner import Learner, LearnerSnapshot, LearnerState
from diaster.replay import EpisodeBlock, EpisodeStore
from diaster.types import Episode


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

    def prepare(self, episodes: Sequence[Sequence[Episode]]) -> list[EpisodeBlock | None]:
        return [learner.prepare(episodes[span]) for learner, span in self._shares()]

    def ingest(self, episodes: Sequence[Sequence[Episode]], prepared: list[EpisodeBlock | None] | None = None) -> None:
        for (learner, span), block in zip(self._shares(), prepared or self.prepare(episodes), strict=True):
            learner.ingest(episodes[span], block)

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        return self._joined(
            [learner.fit_decomposer(ready[span], first_update, n_updates) for learner, span in self._shares()]
        )

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        return self._joined(
            [learner.fit_agent(ready[span], first_update, n_updates) for learner, span in self._shares()]
        )

    def renew_labels(self, oldest: int) -> None:
        for learner in self.learners:
            learner.renew_labels(oldest)

    def policies(self) -> list[HostParameters]:
        return self.policies_later()()

    def policies_later(self) -> Callable[[], list[HostParameters]]:
        parts = [learner.policies_later() for learner in self.learners]
        return lambda: [policy for part in parts for policy in part()]

    def policy_tree(self) -> Acting:
        tree: Acting = _concatenated([learner.policy_tree() for learner in self.learners])
        return tree

    def send_policies(self) -> None:
        for learner in self.learners:
            learner.send_policies()

    def policies_are_here(self) -> bool:
        return all(learner.policies_are_here() for learner in self.learners)

    def policies_are_finite(self) -> NDArray[np.bool_]:
        return np.concatenate([learner.policies_are_finite() for learner in self.learners])

    def frozen(self) -> LearnerState:
        """On the first device."""
        nets: LearnerState = self._together([learner.frozen() for learner in self.learners])
        return nets

    def snapshot(self) -> LearnerSnapshot:
        snapshots = [learner.snapshot() for learner in self.learners]
        return LearnerSnapshot(_concatenated([snapshot.arrays for snapshot in snapshots]), snapshots[0].label_age)

    def go_back(self, position: int, nets: LearnerState, attempt: int) -> None:
        learner, span = self._of(position)
        learner.go_back(position - span.start, nets, attempt)

    def restore(
        self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore], attempts: Sequence[int] | None = None
    ) -> None:
        for learner, span in self._shares():
            part = LearnerSnapshot({name: array[span] for name, array in snapshot.arrays.items()}, snapshot.label_age)
            learner.restore(part, stores[span], None if attempts is None else attempts[span])

    def _shares(self) -> list[tuple[Learner, slice]]:
        return list(zip(self.learners, self._spans, strict=True))

    def _of(self, position: int) -> tuple[Learner, slice]:
        return next(share for share in self._shares() if position < share[1].stop)

    def _joined(self, metrics: Sequence[Metrics]) -> Metrics:
        """One array for all seeds, on the first device; nobody waits for it."""
        joined: Metrics = self._together(metrics)
        return joined

    def _together(self, trees: Sequence[Any]) -> Any:
        here = [jax.device_put(tree, self._home) for tree in trees]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *here)


def _concatenated(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)

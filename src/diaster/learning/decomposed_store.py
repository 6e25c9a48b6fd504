"""The replay of all seeds with the decomposers inside: what goes in, how they are fitted, and the one way to a reward.

Seeds are the leading axis of every state. All calls launch work on the device and return at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.agents import Metrics
from diaster.decomposers import Decomposer
from diaster.errors import DiasterError
from diaster.learning.labels import Labels
from diaster.learning.late_feedback import LateFeedback
from diaster.learning.updates import each_seed, loop_options, scan_updates, stream_key
from diaster.nn.trees import leaf_names
from diaster.replay.rated import RatedSpans, rated_parts, rated_spans
from diaster.replay.store import (
    EpisodeBlock,
    EpisodeStore,
    Steps,
    draw_rated_steps,
    draw_steps,
    gather_numbered,
    insert,
    make_block,
    n_slots,
)
from diaster.types import EPISODIC, EnvSpec, Episode, Feedback, Stream

SMALL_BLOCK = 512  # rows; a chunk of short episodes fits
OF_EPISODES = ("first_row", "first_step", "length", "episode_return", "terminated", "rated")  # others are of steps


class DecomposedStore:
    """Stores, decomposers and labels of all seeds, on one device."""

    def __init__(
        self,
        decomposer: Decomposer,
        spec: EnvSpec,
        store: EpisodeStore,
        state: Any,
        device: jax.Device,
        feedback: Feedback = EPISODIC,
    ) -> None:
        has_labels = decomposer.label is not None or decomposer.exact_sum
        assert decomposer.sample is None or not (has_labels or feedback.has_known), "these belong to steps of the store"
        self._decomposer, self._spec, self._device, self._feedback = decomposer, spec, device, feedback
        self.store, self.state = store, state
        n_seeds, capacity = store.episode.shape
        self.labels = Labels(decomposer, spec.horizon, n_seeds, capacity, device)
        self.inserted = np.zeros(n_seeds, np.int64)  # steps ever inserted, per seed
        self._late = LateFeedback(decomposer, spec.horizon)
        self._ingest = jax.jit(each_seed(self._ingest_seed), donate_argnums=(0, 1))
        # One trace per number of updates; a schedule that divides the chunks gives one.
        options = loop_options(device.platform)
        self._fit = jax.jit(self._fit_seeds, static_argnums=5, donate_argnums=0, compiler_options=options)
        self._learn = jax.jit(self._learn_of_seeds, static_argnums=5, donate_argnums=0, compiler_options=options)

    def add(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the finished episodes of every seed and let the decomposer see their statistics."""
        n_rows = self._rows_for(episodes)
        if n_rows == 0:
            return
        block, rated = self._block_of(episodes, n_rows, self._feedback), None
        if self._feedback.has_gaps:  # what has no number trains nothing
            parts = [[part for episode in of_seed for part in rated_parts(episode)] for of_seed in episodes]
            rated = self._block_of(parts, n_rows, self._feedback._replace(has_known=False))
        self.store, self.state = self._ingest(self.store, self.state, block, rated)
        before = self.inserted.copy()
        self.inserted += [sum(episode.length for episode in of_seed) for of_seed in episodes]
        self.labels.add(self.state, self.store, episodes, n_rows, before, self.inserted)

    def give_feedback(self, span: int, value: float) -> EpisodeBlock:
        """A number that comes late, for a stored span of the only seed; returns the span as the decomposer has seen it.

        Spans are numbered as in `replay/late.py`.
        """
        self.state, self.store, waited, block = self._late.give(
            self.state, self.store, self.labels, [[span]], [[value]]
        )
        assert waited.all(), "a span that is stored and waits for its number"
        found: EpisodeBlock = jax.tree.map(lambda leaf: np.asarray(leaf)[0], block)
        return found

    def fit(self, ready: NDArray[np.bool_], seed_keys: Array, first_update: int, n_updates: int) -> Metrics:
        """Updates of the decomposers of seeds that are ready; their mean metrics, on the device  # [S]"""
        self.state, metrics = self._fit(self.state, self.store, ready, seed_keys, np.int32(first_update), n_updates)
        self.labels.age += n_updates
        return dict(metrics)

    def learn_features(self, ready: NDArray[np.bool_], seed_keys: Array, first_update: int, n_updates: int) -> Metrics:
        """Updates of the encoders of seeds that are ready, where observations are images; likewise."""
        self.state, metrics = self._learn(self.state, self.store, ready, seed_keys, np.int32(first_update), n_updates)
        return dict(metrics)

    def renew_labels(self, oldest: int) -> None:
        """Renew every stored label with the present model if they are older than this number of updates."""
        if self.labels.are_learnt and self.labels.age > oldest:
            self.labels.renew_all(self.state, self.store, self.inserted)

    def renew_labels_of(self, positions: NDArray[np.intp]) -> None:
        """Renew those of some seeds, whose nets are others after a rollback."""
        self.labels.renew_seeds(self.state, self.store, self.inserted, positions)

    def refill(self, stores: Sequence[EpisodeStore]) -> None:
        """Put other replays in the place of those of all seeds."""
        self.store = jax.tree.map(lambda *parts: jax.device_put(np.stack(parts), self._device), *stores)
        self.inserted = np.array([int(store.next_step) for store in stores], np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that changes here, on the host, of the only seed; of rings, what has been filled."""
        [next_row], [newest] = jax.device_get((self.store.next_row, self.store.newest))
        found = {}
        for name, leaf in leaf_names({"store": _without_counts(jax.device_get(self.store))}):
            filled = newest if name.removeprefix("store.") in OF_EPISODES else next_row
            found[name] = np.array(leaf[0][:filled] if leaf.ndim > 1 else leaf[0])
        found |= {name: np.array(leaf[0]) for name, leaf in leaf_names({"state": jax.device_get(self.state)})}
        if self.labels.values is not None:
            found["labels"] = np.array(jax.device_get(self.labels.values)[0][:next_row])
        return {**found, "label_age": np.array(self.labels.age), "capacity": np.array(self.store.episode.shape[1])}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` has found in another one of the same form."""

        def filled(name: str, leaf: Array) -> Array:
            whole, found = np.zeros(leaf.shape[1:], leaf.dtype), arrays.get(name)
            is_ring = not name.startswith("state") and whole.ndim > 0  # these are as long as they were filled
            if found is None or found.dtype != whole.dtype or found.shape[is_ring:] != whole.shape[is_ring:]:
                raise _of_another_kind(name)
            if is_ring:
                whole[: len(found)] = found
            else:
                whole[...] = found
            return jnp.asarray(whole[None], device=self._device)

        if arrays.get("capacity") != self.store.episode.shape[1]:
            raise _of_another_kind("capacity")
        trees = {"store": _without_counts(self.store), "state": self.state}
        trees |= {} if self.labels.values is None else {"labels": self.labels.values}
        named = leaf_names(trees)
        for name in arrays:
            if name.startswith("store.") and name not in dict(named):
                raise _of_another_kind(name)
        leaves = [filled(name, leaf) for name, leaf in named]
        restored = jax.tree.unflatten(jax.tree.structure(trees), leaves)
        self.store = _with_counts(restored["store"])
        self.state, self.labels.values = restored["state"], restored.get("labels")
        self.labels.age = int(arrays["label_age"])
        self.inserted = np.asarray(self.store.next_step, np.int64)

    def _rows_for(self, episodes: Sequence[Sequence[Episode]]) -> int:
        """How many rows a block for the finished episodes of every seed has; 0 where there are none."""
        rows = max(sum(episode.length + 1 for episode in of_seed) for of_seed in episodes)
        if rows == 0:
            return 0
        # Few sizes, because each is compiled: what most chunks need, what a chunk that ends a long episode needs, and
        # more only where several environments end theirs.
        n_rows = SMALL_BLOCK
        while n_rows < rows or SMALL_BLOCK < n_rows < 2 * self._spec.horizon:
            n_rows *= 2
        return n_rows

    def _block_of(self, episodes: Sequence[Sequence[Episode]], n_rows: int, feedback: Feedback) -> EpisodeBlock:
        """The finished episodes of every seed on the device."""
        n_entries = n_slots(n_rows, feedback) - 1  # an entry of one row is not alone in its episode
        sizes = n_rows, n_entries, self._spec.obs_dim, self._spec.action_dim
        blocks = [make_block(list(of_seed), *sizes, feedback, self._spec.obs_dtype) for of_seed in episodes]
        block: EpisodeBlock = jax.device_put(jax.tree.map(lambda *parts: np.stack(parts), *blocks), self._device)
        return block

    def _ingest_seed(
        self, store: EpisodeStore, state: Any, block: EpisodeBlock, rated: EpisodeBlock | None
    ) -> tuple[EpisodeStore, Any]:
        store = insert(store, block)
        return store, self._decomposer.ingest(state, store, block if rated is None else rated)

    def _fit_seeds(
        self, states: Any, stores: EpisodeStore, ready: Array, seed_keys: Array, first_update: Array, n_updates: int
    ) -> tuple[Any, Metrics]:
        draw, fit = self._decomposer.draw, self._decomposer.update
        assert draw is not None and fit is not None, "a method that fits nothing has no updates"

        def fit_seed(state: Any, store: EpisodeStore, is_ready: Array, seed_key: Array) -> tuple[Any, Metrics]:
            def draw_one(index: Array) -> Any:
                return draw(state, store, stream_key(seed_key, Stream.UPDATE_DECOMPOSER, index))

            def update(state: Any, _: Array, batch: Any) -> tuple[Any, Metrics]:
                return fit(state, batch)

            is_ready = store.is_enough(is_ready)
            new, metrics = scan_updates(draw_one, update, state, first_update, n_updates, is_ready)
            return new, metrics | {"return_scale": self._decomposer.scale(new)}

        fitted: tuple[Any, Metrics] = each_seed(fit_seed)(states, stores, ready, seed_keys)
        return fitted

    def _learn_of_seeds(
        self, states: Any, stores: EpisodeStore, ready: Array, seed_keys: Array, first_update: Array, n_updates: int
    ) -> tuple[Any, Metrics]:
        assert self._decomposer.features is not None, "observations are no images"
        learn = self._decomposer.features.learn

        def learn_of_seed(state: Any, store: EpisodeStore, is_ready: Array, seed_key: Array) -> tuple[Any, Metrics]:
            def key_of(index: Array) -> Array:
                return stream_key(seed_key, Stream.LEARN_FEATURES, index)

            def update(state: Any, _: Array, key: Array) -> tuple[Any, Metrics]:
                return learn(state, store, key)

            return scan_updates(key_of, update, state, first_update, n_updates, is_ready)

        learnt: tuple[Any, Metrics] = each_seed(learn_of_seed)(states, stores, ready, seed_keys)
        return learnt


def _without_counts(store: EpisodeStore) -> dict[str, Any]:
    """The fields of a store, of its rated spans only which they are: the rest is counted from that."""
    return {**store._asdict(), "rated": None if store.rated is None else store.rated.is_rated}


def _with_counts(fields: dict[str, Any]) -> EpisodeStore:
    """The inverse."""
    rated: RatedSpans | None = None
    if fields["rated"] is not None:
        counted = (fields[name] for name in ("rated", "length", "oldest", "newest"))
        rated = jax.vmap(rated_spans)(*counted)
    return EpisodeStore(**{**fields, "rated": rated})


def _of_another_kind(name: str) -> DiasterError:
    return DiasterError(
        f"a state was given whose '{name}' is not that of this replay; go on with the same arguments, that is spaces, "
        "horizon, method, capacity and what feedback is like."
    )


def draw_batch(decomposer: Decomposer, state: Any, store: EpisodeStore, key: Array, n: int) -> tuple[Array, Steps]:
    """The steps of a batch of one seed, and their numbers in the store: 0 where a method chooses steps itself."""
    if decomposer.sample is not None:
        steps = decomposer.sample(state, store, key, n)
        return jnp.zeros_like(steps.time), steps
    number = (draw_rated_steps if decomposer.learns_from_rated_steps else draw_steps)(store, key, n)
    return number, gather_numbered(store, number)


def learning_reward(
    decomposer: Decomposer, state: Any, store: EpisodeStore, label: Array | None, number: Array, steps: Steps
) -> Array:
    """The one place where rewards to learn from come from: a step's label, or r̂ as it is now, and what is known.

    Of one seed: the decomposer's state, the store, its labels if the method has any  # [N], and numbered steps  # […]
    """
    if label is None:
        reward = decomposer.reward(state, steps)
    else:
        reward = label[number % label.shape[0]]
        if decomposer.is_scaled_when_drawn:
            reward = reward / decomposer.scale(state)
    if store.known is not None and not decomposer.is_hidden_reward:
        reward = reward + store.known[number % store.known.shape[0]] / decomposer.scale(state)
    return reward


def with_features(decomposer: Decomposer, state: Any, store: EpisodeStore) -> EpisodeStore:
    """The store as agents see it: where it has images, steps come out of it with features of these."""
    return store if decomposer.features is None else store._replace(encoder=decomposer.features.net(state))


class DrawnStretches(NamedTuple):
    """Stored steps, each with the rewards of the steps that follow it in its episode, and where these lead."""

    obs: Any  # [B, D] arrays of JAX, or of NumPy on the host
    action: Any  # [B, A]
    reward: Any  # [B, K] of the step and of those after it; 0 past the end of the episode
    n_steps: Any  # [B] how many there are, 1 to K
    next_obs: Any  # [B, D] after the last of them
    terminal: Any  # [B] True where nothing follows that; False at time limits


def draw_stretches_with_rewards(
    decomposer: Decomposer, state: Any, store: EpisodeStore, label: Array | None, key: Array, n: int, n_steps: int
) -> DrawnStretches:
    """A batch of one seed for returns over some steps; with one step, the batch that an agent of ours gets."""
    number, first = draw_batch(decomposer, state, store, key, n)
    if n_steps == 1:
        reward = learning_reward(decomposer, state, store, label, number, first)[:, None]
        return DrawnStretches(
            first.obs, first.action, reward, jnp.ones_like(first.time), first.next_obs, first.terminal
        )
    assert decomposer.sample is None, "steps that a method chooses itself have no numbers"
    left = jnp.minimum(first.length - first.time, n_steps)  # [B]
    offset = jnp.arange(n_steps)
    numbers = number[:, None] + jnp.minimum(offset, left[:, None] - 1)  # [B, K] the last one again past the end
    steps = gather_numbered(store, numbers)
    reward = jnp.where(offset < left[:, None], learning_reward(decomposer, state, store, label, numbers, steps), 0.0)
    return DrawnStretches(first.obs, first.action, reward, left, steps.next_obs[:, -1], steps.terminal[:, -1])

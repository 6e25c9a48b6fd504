"""The learner: store, decomposer and agent of all seeds, and the compiled programs that move them on.

Seeds are the leading axis of every state. A seed's random keys come from the seed, the stream and the number of the
update, so they do not depend on the other seeds. All calls launch work on the device and return at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.decomposers import Decomposer
from diaster.learning.labels import Labels
from diaster.learning.policies import LearnerPolicies
from diaster.learning.snapshot import (
    LearnerSnapshot,
    LearnerState,
    copied,
    net_arrays,
    nets_of,
    sound_nets,
    with_earlier,
)
from diaster.learning.updates import each_seed, key_after_rollbacks, key_of_seed, loop_options, scan_updates, stream_key
from diaster.nn.trees import leaf_names
from diaster.replay.store import (
    EpisodeBlock,
    EpisodeStore,
    Steps,
    draw_steps,
    draw_stretches,
    gather_numbered,
    init_store,
    insert,
    make_block,
)
from diaster.types import EnvSpec, Episode, Stream

SMALL_BLOCK = 512  # rows; a chunk of short episodes fits
WATCHED = (1024, 4)  # stored steps one after the other, and stretches of them, whose rewards an agent may look at


class Learner:
    """Everything that learns, on one device."""

    def __init__(
        self,
        decomposer: Decomposer,
        agent: Agent,
        spec: EnvSpec,
        seeds: Sequence[int],
        capacity: int,
        batch_size: int,
        device: jax.Device,
    ) -> None:
        has_labels = decomposer.label is not None or decomposer.exact_sum
        assert decomposer.sample is None or not has_labels, "labels belong to steps of the store"
        self._decomposer, self._agent, self._spec = decomposer, agent, spec
        self._batch_size, self._device = batch_size, device
        self._working_form = None if device.platform == "cpu" else agent.working_form
        self._seed_keys = jax.device_put(jax.vmap(key_of_seed)(np.asarray(seeds, np.uint32)), device)
        self._first_keys = self._seed_keys
        self._rollbacks = jax.device_put(np.zeros(len(seeds), np.int32), device)
        self._relabelled_rollbacks = np.zeros(len(seeds), np.int32)  # those after which labels were renewed
        self._inserted = np.zeros(len(seeds), np.int64)  # steps ever inserted, per seed

        def init(seed_key: Array) -> tuple[EpisodeStore, LearnerState]:
            state = LearnerState(
                decomposer.init(stream_key(seed_key, Stream.INIT_DECOMPOSER, 0), spec),
                agent.init(stream_key(seed_key, Stream.INIT_AGENT, 0), spec),
            )
            return init_store(capacity, spec.obs_dim, spec.action_dim), state

        # Drawing weights is done once: compiling that fast matters more than running it fast.
        quick = {"xla_backend_optimization_level": 0} if device.platform == "cpu" else None
        self.store, self.state = jax.jit(each_seed(init), compiler_options=quick)(self._seed_keys)
        self._good: LearnerState = copied(self.state)
        self.labels = Labels(decomposer, spec.horizon, len(seeds), capacity, device)
        self._ingest = jax.jit(each_seed(self._ingest_seed), donate_argnums=(0, 1))
        # One trace per number of updates; a schedule that divides the chunks gives one.
        options = loop_options(device.platform)
        self._fit_decomposer = jax.jit(
            self._fit_decomposers, static_argnums=5, donate_argnums=0, compiler_options=options
        )
        self._fit_agent = jax.jit(self._fit_agents, static_argnums=7, donate_argnums=0, compiler_options=options)
        self._policy_form = jax.tree.flatten(jax.eval_shape(jax.vmap(agent.policy), self.state.agent))
        self._roll_back = jax.jit(self._roll_back_seeds, donate_argnums=0)
        self._sent: LearnerPolicies | None = None

    def store_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the finished episodes of every seed and let the decomposer see their statistics."""
        self._relabel_after_rollbacks()
        block = self._block_of(episodes)
        if block is None:
            return
        self.store, decomposer_state = self._ingest(self.store, self.state.decomposer, block)
        self.state = self.state._replace(decomposer=decomposer_state)
        before = self._inserted.copy()
        self._inserted += [sum(episode.length for episode in of_seed) for of_seed in episodes]
        self.labels.add(self.state.decomposer, self.store, episodes, block.obs.shape[1], before, self._inserted)

    def _block_of(self, episodes: Sequence[Sequence[Episode]]) -> EpisodeBlock | None:
        """The finished episodes of every seed on the device, if there are any."""
        rows = max(sum(episode.length + 1 for episode in of_seed) for of_seed in episodes)
        if rows == 0:
            return None
        # Few sizes, because each is compiled: what most chunks need, what a chunk that ends a long episode needs, and
        # more only where several environments end theirs.
        n_rows = SMALL_BLOCK
        while n_rows < rows or SMALL_BLOCK < n_rows < 2 * self._spec.horizon:
            n_rows *= 2
        blocks = [
            make_block(list(of_seed), n_rows, n_rows // 2, self._spec.obs_dim, self._spec.action_dim)
            for of_seed in episodes
        ]
        block: EpisodeBlock = jax.device_put(jax.tree.map(lambda *parts: np.stack(parts), *blocks), self._device)
        return block

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the decomposers of seeds that are ready; their mean metrics, on the device  # [S]"""
        state, metrics = self._fit_decomposer(
            self.state.decomposer, self.store, ready, self._seed_keys, np.int32(first_update), n_updates
        )
        self.state = self.state._replace(decomposer=state)
        self.labels.age += n_updates
        return dict(metrics)

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the agents of seeds that are ready, likewise."""
        state, metrics = self._fit_agent(
            self.state.agent,
            self.state.decomposer,
            self.store,
            self.labels.values,
            ready,
            self._seed_keys,
            np.int32(first_update),
            n_updates,
        )
        self.state = self.state._replace(agent=state)
        self._sent = None
        return dict(metrics)

    def renew_labels(self, oldest: int) -> None:
        """Renew every stored label with the present model if they are older than this number of updates."""
        if self.labels.are_learnt and self.labels.age > oldest:
            self.labels.renew_all(self.state.decomposer, self.store, self._inserted)

    def send_policies(self) -> LearnerPolicies:
        """Let the policies set out for the host; they arrive when the learning launched so far has ended.

        A seed whose policy has diverged is rolled back first, to the nets that were kept, with other random numbers.
        That is decided on the device, so that more learning can be launched before this has ended. A net that is not
        finite makes the policy so within an update or two, because the policy learns from it.
        """
        if self._sent is None:
            self.state, self._seed_keys, self._rollbacks, flat = self._roll_back(
                self.state, self._good, self._first_keys, self._rollbacks
            )
            self._sent = LearnerPolicies(flat, self._rollbacks, self._unflattened)
        return self._sent

    def _unflattened(self, flat: NDArray[Any]) -> Acting:
        leaves, structure = self._policy_form
        ends = np.cumsum([leaf.size // len(flat) for leaf in leaves])
        parts = np.split(flat, ends[:-1], axis=1)
        parameters: Acting = jax.tree.unflatten(
            structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )
        return parameters

    def frozen_decomposers(self) -> Any:
        """The decomposers as they are now; learning does not change this copy."""
        return copied(self.state.decomposer)

    def keep_nets(self) -> None:
        """Keep the nets as they are now: from here on, a rollback returns to them."""
        self._good = sound_nets(self.state, self._good)

    def decomposer_state(self, position: int) -> Any:
        """The decomposer's state of one seed."""
        return jax.tree.map(lambda leaf: leaf[position], self.state.decomposer)

    def snapshot(self) -> LearnerSnapshot:
        """Everything learning has changed but the replay, on the host. Waits for the learning launched so far."""
        labels = {} if self.labels.values is None else {"labels": np.array(self.labels.values)}
        rollbacks = np.asarray(self._rollbacks).tolist()
        return LearnerSnapshot({**net_arrays(self.state), **labels}, net_arrays(self._good), rollbacks, self.labels.age)

    def restore(self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore]) -> None:
        """Go on from a snapshot and the replay of every seed."""
        trees = {"state": self.state, "labels": self.labels.values}
        names = [name for name, _ in leaf_names(trees)]
        leaves = [jax.device_put(snapshot.arrays[name], self._device) for name in names]
        restored = jax.tree.unflatten(jax.tree.structure(trees), leaves)
        self.state, self.labels.values = restored["state"], restored["labels"]
        self.labels.age = snapshot.label_age
        self._good = jax.device_put(nets_of(snapshot.good, self._good), self._device)
        self._relabelled_rollbacks = np.array(snapshot.rollbacks, np.int32)
        self._rollbacks = jax.device_put(self._relabelled_rollbacks, self._device)
        self._seed_keys = jax.jit(jax.vmap(key_after_rollbacks))(self._first_keys, self._rollbacks)
        self._sent = None
        self.store = jax.tree.map(lambda *parts: jax.device_put(np.stack(parts), self._device), *stores)
        self._inserted = np.array([int(store.next_step) for store in stores], np.int64)

    def _relabel_after_rollbacks(self) -> None:
        """Labels are of the nets from before; the host waits to know whose, which only methods with labels pay for."""
        if not self.labels.are_learnt:
            return
        rollbacks = self.send_policies().rollbacks
        positions = np.flatnonzero(rollbacks > self._relabelled_rollbacks)
        if len(positions):
            self.labels.renew_seeds(self.state.decomposer, self.store, self._inserted, positions)
            self._relabelled_rollbacks = rollbacks

    def _roll_back_seeds(
        self, state: LearnerState, good: LearnerState, first_keys: Array, rollbacks: Array
    ) -> tuple[LearnerState, Array, Array, Array]:
        def flat_policy(agent: Any) -> Array:
            return ravel_pytree(self._agent.policy(agent))[0]

        has_diverged = ~jnp.isfinite(jax.vmap(flat_policy)(state.agent)).all(axis=1)  # [S]
        state = with_earlier(has_diverged, state, good)
        rollbacks = rollbacks + has_diverged
        keys = jax.vmap(key_after_rollbacks)(first_keys, rollbacks)
        return state, keys, rollbacks, jax.vmap(flat_policy)(state.agent)

    def _ingest_seed(self, store: EpisodeStore, state: Any, block: EpisodeBlock) -> tuple[EpisodeStore, Any]:
        store = insert(store, block)
        return store, self._decomposer.ingest(state, store, block)

    def _fit_decomposers(
        self, states: Any, stores: EpisodeStore, ready: Array, seed_keys: Array, first_update: Array, n_updates: int
    ) -> tuple[Any, Metrics]:
        draw, fit = self._decomposer.draw, self._decomposer.update
        assert draw is not None and fit is not None, "a method that fits nothing has no updates"

        def fit_seed(state: Any, store: EpisodeStore, is_ready: Array, seed_key: Array) -> tuple[Any, Metrics]:
            def draw_one(index: Array) -> Any:
                return draw(state, store, stream_key(seed_key, Stream.UPDATE_DECOMPOSER, index))

            def update(state: Any, _: Array, batch: Any) -> tuple[Any, Metrics]:
                return fit(state, batch)

            new, metrics = scan_updates(draw_one, update, state, first_update, n_updates, is_ready)
            return new, metrics | {"return_scale": self._decomposer.scale(new)}

        fitted: tuple[Any, Metrics] = each_seed(fit_seed)(states, stores, ready, seed_keys)
        return fitted

    def _fit_agents(
        self,
        states: Any,
        decomposer_states: Any,
        stores: EpisodeStore,
        labels: Array | None,
        ready: Array,
        seed_keys: Array,
        first_update: Array,
        n_updates: int,
    ) -> tuple[Any, Metrics]:
        def fit_seed(
            state: Any,
            decomposer_state: Any,
            store: EpisodeStore,
            label: Array | None,
            is_ready: Array,
            seed_key: Array,
        ) -> tuple[Any, Metrics]:
            # The one place where an agent's rewards come from: a step's label, or r̂ as it is now.
            def reward_of(number: Array, steps: Steps) -> Array:
                if label is None:
                    return self._decomposer.reward(decomposer_state, steps)
                stored: Array = label[number % label.shape[0]]
                if self._decomposer.is_scaled_when_drawn:
                    return stored / self._decomposer.scale(decomposer_state)
                return stored

            def draw_one(index: Array) -> tuple[Transition, Any]:
                draw_key, noise_key = jax.random.split(stream_key(seed_key, Stream.UPDATE_AGENT, index))
                number, drawn = self._draw_batch(decomposer_state, store, draw_key)
                reward = reward_of(number, drawn)
                batch = Transition(drawn.obs, drawn.action, reward, drawn.next_obs, drawn.terminal)
                return batch, self._agent.noise(noise_key, batch)

            def update(state: Any, index: Array | int, drawn: tuple[Transition, Any]) -> tuple[Any, Metrics]:
                return self._agent.update(state, *drawn, index)

            if self._agent.watch is not None:
                number = draw_stretches(store, stream_key(seed_key, Stream.WATCH_REWARDS, first_update), *WATCHED)
                steps = gather_numbered(store, number)
                watched = self._agent.watch(state, reward_of(number, steps), steps.time == steps.length - 1)
                state = jax.tree.map(lambda after, before: jnp.where(is_ready, after, before), watched, state)
            if self._working_form is None:
                return scan_updates(draw_one, update, state, first_update, n_updates, is_ready)
            packed = self._working_form.pack(state)
            new, metrics = scan_updates(draw_one, update, packed, first_update, n_updates, is_ready, self._agent.cycle)
            return self._working_form.unpack(new), metrics

        fitted: tuple[Any, Metrics] = each_seed(fit_seed)(states, decomposer_states, stores, labels, ready, seed_keys)
        return fitted

    def _draw_batch(self, decomposer_state: Any, store: EpisodeStore, key: Array) -> tuple[Array, Steps]:
        """The steps of a batch, and their numbers in the store. Those that a method chooses itself have none."""
        if self._decomposer.sample is not None:
            steps = self._decomposer.sample(decomposer_state, store, key, self._batch_size)
            return jnp.zeros_like(steps.time), steps
        number = draw_steps(store, key, self._batch_size)
        return number, gather_numbered(store, number)

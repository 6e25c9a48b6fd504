"""The compiled half of training: all seeds in one program. The only module that knows jit, vmap and donation.

Seeds are the leading axis of every state. A seed's random keys come from the seed, the stream and the number
of the update, so they do not depend on the seeds beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from diaster.agents import Agent, Metrics, Transition
from diaster.decompose import Decomposer
from diaster.nets import MLP
from diaster.replay import (
    EpisodeBlock,
    EpisodeStore,
    draw_steps,
    gather_steps,
    gather_transitions,
    init_store,
    insert,
    make_block,
)
from diaster.types import EnvSpec, Episode, FloatArray, Stream

MIN_BLOCK_ROWS = 256
LABEL_ROWS = 64  # rows per call that renews labels


class LearnerState(NamedTuple):
    """What learning changes; [S, …]"""

    decomposer: Any
    agent: Any


def stream_key(seed_key: Array, stream: Stream, index: Array | int) -> Array:
    """The key of one use of randomness; nothing has to be carried."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, int(stream)), index)


class Learner:
    """Store, decomposer and agent of all seeds, and the programs that move them on."""

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
        self._decomposer, self._agent, self._spec = decomposer, agent, spec
        self._batch_size, self._device = batch_size, device
        self._seed_keys = jax.device_put(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)), device)
        self._inserted = np.zeros(len(seeds), np.int64)  # steps ever inserted, per seed

        def init(seed_key: Array) -> tuple[EpisodeStore, LearnerState]:
            state = LearnerState(
                decomposer.init(stream_key(seed_key, Stream.INIT_DECOMPOSER, 0), spec),
                agent.init(stream_key(seed_key, Stream.INIT_AGENT, 0), spec),
            )
            return init_store(capacity, spec.obs_dim, spec.action_dim), state

        # Drawing weights is done once: compiling that fast matters more than running it fast.
        quick = {"xla_backend_optimization_level": 0} if device.platform == "cpu" else None
        self.store, self.state = jax.jit(jax.vmap(init), compiler_options=quick)(self._seed_keys)
        self.labels: Array | None = None
        if decomposer.label is not None:
            self.labels = jax.device_put(jnp.zeros((len(seeds), capacity)), device)
        self._ingest = jax.jit(jax.vmap(self._ingest_one), donate_argnums=(0, 1))
        # One trace per number of updates; a schedule that divides the chunks gives one.
        self._fit_decomposer = jax.jit(self._fit_decomposers, static_argnums=4, donate_argnums=0)
        self._fit_agent = jax.jit(self._fit_agents, static_argnums=6, donate_argnums=0)
        self._relabel = jax.jit(jax.vmap(self._relabel_one), donate_argnums=2)

    def ingest(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the finished episodes of every seed and let the decomposer see their statistics."""
        rows = max(sum(episode.length + 1 for episode in of_seed) for of_seed in episodes)
        if rows == 0:
            return
        n_rows = MIN_BLOCK_ROWS
        while n_rows < rows:
            n_rows *= 2
        blocks = [
            make_block(list(of_seed), n_rows, n_rows // 2, self._spec.obs_dim, self._spec.action_dim)
            for of_seed in episodes
        ]
        block = jax.tree.map(lambda *parts: jax.device_put(np.stack(parts), self._device), *blocks)
        self.store, decomposer_state = self._ingest(self.store, self.state.decomposer, block)
        self.state = self.state._replace(decomposer=decomposer_state)
        before = self._inserted.copy()
        self._inserted += [sum(episode.length for episode in of_seed) for of_seed in episodes]
        if self.labels is not None:
            self._relabel_from(before)

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the decomposers of seeds that are ready. Returns at once, with mean metrics  # [S]"""
        state, metrics = self._fit_decomposer(
            self.state.decomposer, self.store, ready, np.int32(first_update), n_updates
        )
        self.state = self.state._replace(decomposer=state)
        return dict(metrics)

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the agents of seeds that are ready, likewise."""
        state, metrics = self._fit_agent(
            self.state.agent,
            self.state.decomposer,
            self.store,
            self.labels,
            ready,
            np.int32(first_update),
            n_updates,
        )
        self.state = self.state._replace(agent=state)
        return dict(metrics)

    def relabel(self) -> None:
        """Renew every stored label with the present model."""
        if self.labels is not None:
            capacity = self.labels.shape[1]
            self._relabel_from(np.maximum(self._inserted - capacity, 0))

    def policies(self) -> list[tuple[tuple[FloatArray, FloatArray], ...]]:
        """The policy of every seed, on the host. Waits for the learning that is under way."""
        layers = self.policy_tree()
        n_seeds = len(self._inserted)
        return [
            tuple((np.asarray(layer.weight[s]), np.asarray(layer.bias[s])) for layer in layers) for s in range(n_seeds)
        ]

    def policy_tree(self) -> MLP:
        """The parameters that act, of all seeds  # [S, …]"""
        layers: MLP = jax.device_get(self._agent.policy(self.state.agent))
        return layers

    def decomposer_state(self, position: int) -> Any:
        """The decomposer's state of one seed."""
        return jax.tree.map(lambda leaf: leaf[position], self.state.decomposer)

    def _ingest_one(self, store: EpisodeStore, state: Any, block: EpisodeBlock) -> tuple[EpisodeStore, Any]:
        return insert(store, block), self._decomposer.ingest(state, block)

    def _fit_decomposers(
        self, states: Any, stores: EpisodeStore, ready: Array, first_update: Array, n_updates: int
    ) -> tuple[Any, Metrics]:
        def fit_one(state: Any, store: EpisodeStore, is_ready: Array, seed_key: Array) -> tuple[Any, Metrics]:
            def update(state: Any, index: Array) -> tuple[Any, Metrics]:
                key = stream_key(seed_key, Stream.UPDATE_DECOMPOSER, index)
                return self._decomposer.update(state, self._decomposer.draw(state, store, key))

            new, metrics = _scan_updates(update, state, first_update, n_updates, is_ready)
            return new, metrics | {"return_scale": self._decomposer.scale(new)}

        return jax.vmap(fit_one)(states, stores, ready, self._seed_keys)

    def _fit_agents(
        self,
        states: Any,
        decomposer_states: Any,
        stores: EpisodeStore,
        labels: Array | None,
        ready: Array,
        first_update: Array,
        n_updates: int,
    ) -> tuple[Any, Metrics]:
        def fit_one(
            state: Any,
            decomposer_state: Any,
            store: EpisodeStore,
            label: Array | None,
            is_ready: Array,
            seed_key: Array,
        ) -> tuple[Any, Metrics]:
            def update(state: Any, index: Array) -> tuple[Any, Metrics]:
                draw_key, noise_key = jax.random.split(stream_key(seed_key, Stream.UPDATE_AGENT, index))
                steps = draw_steps(store, draw_key, self._batch_size)
                drawn = gather_transitions(store, steps)
                if label is None:
                    reward = self._decomposer.reward(decomposer_state, drawn.obs, drawn.action)
                else:
                    reward = label[steps % label.shape[0]]
                # The one place where a learner's reward is filled.
                batch = Transition(drawn.obs, drawn.action, reward, drawn.next_obs, drawn.terminal)
                return self._agent.update(state, batch, self._agent.noise(noise_key, batch))

            return _scan_updates(update, state, first_update, n_updates, is_ready)

        return jax.vmap(fit_one)(states, decomposer_states, stores, labels, ready, self._seed_keys)

    def _relabel_from(self, first: np.ndarray) -> None:
        span = self._spec.horizon * LABEL_ROWS
        for offset in range(0, int((self._inserted - first).max()), span):
            start = (first + offset).astype(np.int32)
            self.labels = self._relabel(self.state.decomposer, self.store, self.labels, start)

    def _relabel_one(self, state: Any, store: EpisodeStore, labels: Array, start: Array) -> Array:
        """Renew the labels of LABEL_ROWS · horizon steps.

        Each row is to label `horizon` steps and begins at the start of the episode its first step belongs to.
        """
        assert self._decomposer.label is not None
        horizon, capacity = self._spec.horizon, labels.shape[0]
        first_wanted = start + jnp.arange(LABEL_ROWS) * horizon  # [W]
        first_wanted = jnp.maximum(first_wanted, store.first_live_step)
        first_step = store.first_step[store.episode[first_wanted % capacity]]
        number = first_step + jnp.arange(2 * horizon)[:, None]  # [T, W]
        wanted = (number >= first_wanted) & (number < start + (jnp.arange(LABEL_ROWS) + 1) * horizon)
        wanted &= number < store.next_step
        number = jnp.where(wanted | (number < first_wanted), number, first_step)
        episode = store.episode[number % capacity]
        step = number - store.first_step[episode]
        obs, action = gather_steps(store, episode, step)
        values = self._decomposer.label(state, obs, action, step)
        return labels.at[jnp.where(wanted, number % capacity, capacity)].set(values, mode="drop")


def _scan_updates(
    update: Callable[[Any, Array], tuple[Any, Metrics]], state: Any, first_update: Array, n_updates: int, ready: Array
) -> tuple[Any, Metrics]:
    """Numbered updates in one loop. A seed that is not ready keeps its state: a branch would run both sides."""
    new, metrics = jax.lax.scan(update, state, first_update + jnp.arange(n_updates))
    kept = jax.tree.map(lambda after, before: jnp.where(ready, after, before), new, state)
    return kept, {name: jnp.where(ready, values.mean(), jnp.nan) for name, values in metrics.items()}

"""The compiled half of training: all seeds in one program. The only module that knows jit, vmap and donation.

Seeds are the leading axis of every state. A seed's random keys come from the seed, the stream and the number
of the update, so they do not depend on the seeds beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.decomposers import Decomposer
from diaster.learning.policies import PoliciesOfLearner
from diaster.nn.trees import leaf_names
from diaster.replay.store import (
    EpisodeBlock,
    EpisodeStore,
    draw_steps,
    gather_numbered,
    gather_steps,
    init_store,
    insert,
    make_block,
)
from diaster.types import EnvSpec, Episode, Stream

SMALL_BLOCK = 512  # rows; a chunk of short episodes fits
DIVERGED = 1 << 20  # far from the numbers of streams: keys of a seed that begins anew
DRAWN_AHEAD = 50  # batches drawn at a time
TABLE_BLOCK = 1024  # steps whose rewards are computed at a time
LABEL_ROWS = (2, 64)  # rows per call that renews labels: of the newest episodes, of all


class LearnerState(NamedTuple):
    """What learning changes; [S, …]"""

    decomposer: Any
    agent: Any


class LearnerSnapshot(NamedTuple):
    """What learning has changed, on the host; the replay is apart, because of its size."""

    arrays: dict[str, NDArray[Any]]  # nets, and labels where there are any
    good: dict[str, NDArray[Any]]  # the nets that a seed goes back to
    times_back: list[int]
    label_age: int


def stream_key(seed_key: Array, stream: Stream, index: Array | int) -> Array:
    """The key of one use of randomness; nothing has to be carried."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, int(stream)), index)


def key_after_going_back(first_key: Array, times: Array) -> Array:
    """A seed's key: other random numbers each time it has gone back."""
    return jnp.where(times > 0, jax.random.fold_in(first_key, DIVERGED + times), first_key)


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
        # While fewer steps are stored than a chunk's updates look at, a CPU saves time by computing the reward of each
        # once. A branch among several seeds would be both of its sides; on an accelerator rewards cost next to nothing.
        self._tabulates = device.platform == "cpu" and len(seeds) == 1 and decomposer.sample is None
        self._working_form = None if device.platform == "cpu" else agent.working_form
        self._seed_keys = jax.device_put(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)), device)
        self._first_keys = self._seed_keys
        self._times_back = jax.device_put(np.zeros(len(seeds), np.int32), device)
        self._times_relabelled = np.zeros(len(seeds), np.int32)  # for having gone back
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
        self._good: LearnerState = _copied(self.state)
        # Rewards of single steps are stored for methods that need the history, and for the upper reference alone.
        self.labels: Array | None = None
        if decomposer.label is not None or decomposer.is_hidden_reward:
            self.labels = jax.device_put(jnp.zeros((len(seeds), capacity)), device)
        self._label_age = 0  # updates since all labels were renewed
        self._ingest = jax.jit(each_seed(self._ingest_one), donate_argnums=(0, 1))
        # One trace per number of updates; a schedule that divides the chunks gives one.
        options = loop_options(device.platform)
        self._fit_decomposer = jax.jit(
            self._fit_decomposers, static_argnums=5, donate_argnums=0, compiler_options=options
        )
        self._fit_agent = jax.jit(self._fit_agents, static_argnums=7, donate_argnums=0, compiler_options=options)
        self._policy_form = jax.tree.flatten(jax.eval_shape(jax.vmap(agent.policy), self.state.agent))
        self._send_back = jax.jit(self._send_back_all, donate_argnums=0)
        self._sent: PoliciesOfLearner | None = None
        self._relabel = jax.jit(self._relabel_all, static_argnums=4, donate_argnums=2)
        self._write_hidden = jax.jit(each_seed(self._write_hidden_one), donate_argnums=1)

    def prepare(self, episodes: Sequence[Sequence[Episode]]) -> EpisodeBlock | None:
        """The finished episodes of every seed on their way to the device, if there are any; changes nothing."""
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

    def ingest(self, episodes: Sequence[Sequence[Episode]], prepared: EpisodeBlock | None = None) -> None:
        """Store the finished episodes of every seed and let the decomposer see their statistics."""
        self._relabel_who_went_back()
        block = prepared or self.prepare(episodes)
        if block is None:
            return
        self.store, decomposer_state = self._ingest(self.store, self.state.decomposer, block)
        self.state = self.state._replace(decomposer=decomposer_state)
        before = self._inserted.copy()
        self._inserted += [sum(episode.length for episode in of_seed) for of_seed in episodes]
        if self._decomposer.is_hidden_reward:
            hidden = np.zeros(block.obs.shape[:2], np.float32)
            for row, of_seed in zip(hidden, episodes, strict=True):
                rewards = [episode.hidden_reward for episode in of_seed if episode.hidden_reward is not None]
                assert len(rewards) == len(of_seed), "the upper reference needs the hidden rewards"
                if rewards:
                    row[: sum(map(len, rewards))] = np.concatenate(rewards)
            count = (self._inserted - before).astype(np.int32)
            self.labels = self._write_hidden(
                self.state.decomposer, self.labels, self.store, jax.device_put(hidden, self._device), count
            )
        elif self.labels is not None:
            self._relabel_from(before)

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the decomposers of seeds that are ready. Returns at once, with mean metrics  # [S]"""
        state, metrics = self._fit_decomposer(
            self.state.decomposer, self.store, ready, self._seed_keys, np.int32(first_update), n_updates
        )
        self.state = self.state._replace(decomposer=state)
        self._label_age += n_updates
        return dict(metrics)

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the agents of seeds that are ready, likewise."""
        state, metrics = self._fit_agent(
            self.state.agent,
            self.state.decomposer,
            self.store,
            self.labels,
            ready,
            self._seed_keys,
            np.int32(first_update),
            n_updates,
        )
        self.state = self.state._replace(agent=state)
        self._sent = None
        return dict(metrics)

    def renew_labels(self, oldest: int) -> None:
        """Renew every stored label with the present model if they are older than so many updates."""
        if self._decomposer.label is not None and self.labels is not None and self._label_age > oldest:
            capacity = self.labels.shape[1]
            self._relabel_from(np.maximum(self._inserted - capacity, 0))
            self._label_age = 0

    def send_policies(self) -> PoliciesOfLearner:
        """Let the policies set out for the host; they arrive when the learning that is under way has ended.

        A seed whose policy has diverged goes back first to the nets that were kept, with other random numbers. That is
        decided on the device, so that the learning that follows can be given to it before this one has ended. A net
        that is not finite makes the policy so within an update or two: what it learns from passes it on.
        """
        if self._sent is None:
            self.state, self._seed_keys, self._times_back, flat = self._send_back(
                self.state, self._good, self._first_keys, self._times_back
            )
            self._sent = PoliciesOfLearner(flat, self._times_back, self._unflattened)
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
        """As they are now: a copy on the device, because further learning takes over their memory."""
        return _copied(self.state.decomposer)

    def keep(self) -> None:
        """Keep the nets as they are now: from here on, seeds that diverge go back to them."""
        self._good = sound_nets(self.state, self._good)

    def decomposer_state(self, position: int) -> Any:
        """The decomposer's state of one seed."""
        return jax.tree.map(lambda leaf: leaf[position], self.state.decomposer)

    def snapshot(self) -> LearnerSnapshot:
        """Everything learning has changed but the replay, on the host. Waits for the learning that is under way."""
        labels = {} if self.labels is None else {"labels": np.array(self.labels)}
        times_back = np.asarray(self._times_back).tolist()
        return LearnerSnapshot(
            {**net_arrays(self.state), **labels}, net_arrays(self._good), times_back, self._label_age
        )

    def restore(self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore]) -> None:
        """Go on from a snapshot and the replay of every seed."""
        trees = {"state": self.state, "labels": self.labels}
        names = [name for name, _ in leaf_names(trees)]
        leaves = [jax.device_put(snapshot.arrays[name], self._device) for name in names]
        restored = jax.tree.unflatten(jax.tree.structure(trees), leaves)
        self.state, self.labels = restored["state"], restored["labels"]
        self._good = jax.device_put(nets_of(snapshot.good, self._good), self._device)
        self._times_relabelled = np.array(snapshot.times_back, np.int32)
        self._times_back = jax.device_put(self._times_relabelled, self._device)
        self._seed_keys = jax.jit(jax.vmap(key_after_going_back))(self._first_keys, self._times_back)
        self._sent = None
        self.store = jax.tree.map(lambda *parts: jax.device_put(np.stack(parts), self._device), *stores)
        self._inserted = np.array([int(store.next_step) for store in stores], np.int64)
        self._label_age = snapshot.label_age

    def _relabel_who_went_back(self) -> None:
        """Labels are of the nets from before; the host waits to know whose, which only methods with labels pay for."""
        if self._decomposer.label is None or self.labels is None:
            return
        times_back = self.send_policies().times_back
        went_back = np.flatnonzero(times_back > self._times_relabelled)
        if len(went_back):
            kept = np.array(self.labels)
            self._relabel_from(np.maximum(self._inserted - kept.shape[1], 0))
            kept[went_back] = np.asarray(self.labels)[went_back]
            self.labels = jax.device_put(kept, self._device)
            self._times_relabelled = times_back

    def _send_back_all(
        self, state: LearnerState, good: LearnerState, first_keys: Array, times_back: Array
    ) -> tuple[LearnerState, Array, Array, Array]:
        def flat_policy(agent: Any) -> Array:
            return ravel_pytree(self._agent.policy(agent))[0]

        is_lost = ~jnp.isfinite(jax.vmap(flat_policy)(state.agent)).all(axis=1)  # [S]
        state = _with_earlier(is_lost, state, good)
        times_back = times_back + is_lost
        keys = jax.vmap(key_after_going_back)(first_keys, times_back)
        return state, keys, times_back, jax.vmap(flat_policy)(state.agent)

    def _ingest_one(self, store: EpisodeStore, state: Any, block: EpisodeBlock) -> tuple[EpisodeStore, Any]:
        store = insert(store, block)
        return store, self._decomposer.ingest(state, store, block)

    def _fit_decomposers(
        self, states: Any, stores: EpisodeStore, ready: Array, seed_keys: Array, first_update: Array, n_updates: int
    ) -> tuple[Any, Metrics]:
        draw, fit = self._decomposer.draw, self._decomposer.update
        assert draw is not None and fit is not None, "a method that fits nothing has no updates"

        def fit_one(state: Any, store: EpisodeStore, is_ready: Array, seed_key: Array) -> tuple[Any, Metrics]:
            def draw_one(index: Array) -> Any:
                return draw(state, store, stream_key(seed_key, Stream.UPDATE_DECOMPOSER, index))

            def update(state: Any, _: Array, batch: Any) -> tuple[Any, Metrics]:
                return fit(state, batch)

            new, metrics = _scan_updates(draw_one, update, state, first_update, n_updates, is_ready)
            return new, metrics | {"return_scale": self._decomposer.scale(new)}

        fitted: tuple[Any, Metrics] = each_seed(fit_one)(states, stores, ready, seed_keys)
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
        def fit_one(
            state: Any,
            decomposer_state: Any,
            store: EpisodeStore,
            label: Array | None,
            is_ready: Array,
            seed_key: Array,
        ) -> tuple[Any, Metrics]:
            table_size = n_updates * self._batch_size
            has_table = self._tabulates and label is None
            is_tabulated = store.n_steps <= table_size
            table = self._reward_table(decomposer_state, store, table_size, is_tabulated) if has_table else None

            def draw_one(index: Array) -> tuple[Transition, Any]:
                draw_key, noise_key = jax.random.split(stream_key(seed_key, Stream.UPDATE_AGENT, index))
                if self._decomposer.sample is not None:
                    drawn = self._decomposer.sample(decomposer_state, store, draw_key, self._batch_size)
                    reward = self._decomposer.reward(decomposer_state, drawn)
                else:
                    steps = draw_steps(store, draw_key, self._batch_size)
                    drawn = gather_numbered(store, steps)
                    if label is not None:
                        reward = label[steps % label.shape[0]]
                    elif table is not None:
                        reward = jax.lax.cond(
                            is_tabulated,
                            lambda: table[steps % table_size],
                            lambda: self._decomposer.reward(decomposer_state, drawn),
                        )
                    else:
                        reward = self._decomposer.reward(decomposer_state, drawn)
                # The one place where a learner's reward is filled.
                batch = Transition(drawn.obs, drawn.action, reward, drawn.next_obs, drawn.terminal)
                return batch, self._agent.noise(noise_key, batch)

            def update(state: Any, index: Array, drawn: tuple[Transition, Any]) -> tuple[Any, Metrics]:
                return self._agent.update(state, *drawn, index)

            if self._working_form is None:
                return _scan_updates(draw_one, update, state, first_update, n_updates, is_ready)
            packed = self._working_form.pack(state)
            new, metrics = _scan_updates(draw_one, update, packed, first_update, n_updates, is_ready)
            return self._working_form.unpack(new), metrics

        fitted: tuple[Any, Metrics] = each_seed(fit_one)(states, decomposer_states, stores, labels, ready, seed_keys)
        return fitted

    def _reward_table(self, state: Any, store: EpisodeStore, size: int, is_used: Array) -> Array:
        """r̂ of every stored step, each in the place of its number; nothing where the table is not used.  # [size]"""

        def add_block(number: Array, table: Array) -> Array:
            steps = store.first_live_step + number * TABLE_BLOCK + jnp.arange(TABLE_BLOCK)
            is_stored = steps < store.next_step
            rewards = self._decomposer.reward(state, gather_numbered(store, jnp.where(is_stored, steps, steps[0])))
            return table.at[jnp.where(is_stored, steps % size, size)].set(rewards, mode="drop")

        n_blocks = jnp.where(is_used, (store.n_steps + TABLE_BLOCK - 1) // TABLE_BLOCK, 0)
        table: Array = jax.lax.fori_loop(0, n_blocks, add_block, jnp.zeros(size))
        return table

    def _relabel_from(self, first: NDArray[np.int64]) -> None:
        """Renew the labels of all episodes that start at a numbered step or later."""
        n_steps = int((self._inserted - first).max())
        n_rows = next((n for n in LABEL_ROWS if n_steps <= n * self._spec.horizon), LABEL_ROWS[-1])
        for offset in range(0, n_steps, self._spec.horizon * n_rows):
            start = (first + offset).astype(np.int32)
            self.labels = self._relabel(self.state.decomposer, self.store, self.labels, start, n_rows)

    def _relabel_all(self, states: Any, stores: EpisodeStore, labels: Array, starts: Array, n_rows: int) -> Array:
        relabel = each_seed(partial(self._relabel_one, n_rows=n_rows))
        renewed: Array = relabel(states, stores, labels, starts)
        return renewed

    def _relabel_one(self, state: Any, store: EpisodeStore, labels: Array, start: Array, n_rows: int) -> Array:
        """Renew the labels of the episodes that start within n_rows · horizon steps.

        Each row takes the episodes that start within `horizon` steps, whole: two horizons hold them.
        """
        assert self._decomposer.label is not None
        horizon, capacity = self._spec.horizon, labels.shape[0]
        begin = jnp.maximum(start + jnp.arange(n_rows) * horizon, store.first_live_step)  # [W]
        end = start + (jnp.arange(n_rows) + 1) * horizon
        under_way = store.episode[begin % capacity]
        # The first episode that starts here: the one under way, or the next.
        is_first = store.first_step[under_way] == begin
        first_step = jnp.where(is_first, begin, store.first_step[under_way] + store.length[under_way])
        number = first_step + jnp.arange(2 * horizon)[:, None]  # [T, W]
        is_stored = number < store.next_step
        number = jnp.where(is_stored, number, jnp.maximum(store.next_step - 1, 0))
        episode = store.episode[number % capacity]
        wanted = is_stored & (store.first_step[episode] >= begin) & (store.first_step[episode] < end)
        values = self._decomposer.label(state, gather_steps(store, episode, number - store.first_step[episode]))
        return labels.at[jnp.where(wanted, number % capacity, capacity)].set(values, mode="drop")

    def _write_hidden_one(self, state: Any, labels: Array, store: EpisodeStore, rewards: Array, count: Array) -> Array:
        """Store the hidden rewards of the newest steps, in the learner's scale."""
        capacity = labels.shape[0]
        index = jnp.arange(rewards.shape[0])
        place = (store.next_step - count + index) % capacity
        return labels.at[jnp.where(index < count, place, capacity)].set(
            rewards / self._decomposer.scale(state), mode="drop"
        )


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


@jax.jit
def sound_nets(nets: LearnerState, before: LearnerState) -> LearnerState:
    """The nets; those of a seed in which a number is lost as they were before."""
    floats = [leaf for leaf in jax.tree.leaves(nets) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # End to end, because a reduction of each leaf of its own takes seconds to compile.
    numbers = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in floats], axis=1)
    return _with_earlier(jnp.isnan(numbers).any(axis=1), nets, before)


def _with_earlier(is_earlier: Array, nets: LearnerState, before: LearnerState) -> LearnerState:
    """The nets; those of some seeds as they were before."""

    def choose(leaf: Array, earlier: Array) -> Array:
        return jnp.where(is_earlier.reshape(-1, *[1] * (leaf.ndim - 1)), earlier, leaf)

    chosen: LearnerState = jax.tree.map(choose, nets, before)
    return chosen


def net_arrays(nets: LearnerState) -> dict[str, NDArray[Any]]:
    """Nets, optimisers and statistics on the host, by name. Waits for the learning that is under way."""
    # Copies: on a CPU what JAX hands out may be the very memory that the next update takes over.
    return {name: np.array(leaf) for name, leaf in leaf_names({"state": jax.device_get(nets)})}


def nets_of(arrays: Mapping[str, NDArray[Any]], like: LearnerState) -> LearnerState:
    """The way back, to a device."""
    tree = {"state": like}
    leaves = [jnp.asarray(arrays[name]) for name, _ in leaf_names(tree)]
    nets: LearnerState = jax.tree.unflatten(jax.tree.structure(tree), leaves)["state"]
    return nets


@cache
def loop_options(platform: str) -> dict[str, bool] | None:
    """How loops of updates are compiled: on a CPU, without copies of nets that a closer look shows to be needless."""
    options = {"xla_cpu_copy_insertion_use_region_analysis": True}
    if platform != "cpu":
        return None
    try:
        jax.jit(jnp.negative, compiler_options=options).lower(np.float32(0.0)).compile()
    except Exception:  # versions of JAX differ in the options they know, and in how they say so
        return None
    return options


def each_seed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` over the leading axis, the seeds; a single seed is taken out of it and put back.

    On a CPU, gathers with a batch axis of one cost more than all else that drawing does.
    """

    def apply(*arguments: Any) -> Any:
        if jax.tree.leaves(arguments)[0].shape[0] > 1:
            return jax.vmap(function)(*arguments)
        result = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return apply


def _scan_updates(
    draw: Callable[[Array], Any],
    update: Callable[[Any, Array, Any], tuple[Any, Metrics]],
    state: Any,
    first_update: Array,
    n_updates: int,
    ready: Array,
) -> tuple[Any, Metrics]:
    """Numbered updates in one loop. A seed that is not ready keeps its state: a branch would run both sides.

    What the updates look at is drawn for some of them at once: on a GPU a draw has as many kernels as an update, and
    they take as long for one batch as for many.
    """
    n_ahead = next(n for n in range(min(DRAWN_AHEAD, n_updates), 0, -1) if n_updates % n == 0)

    def update_some(state: Any, indices: Array) -> tuple[Any, Array]:
        def update_one(state: Any, x: tuple[Array, Any]) -> tuple[Any, Array]:
            state, metrics = update(state, *x)
            names[:] = sorted(metrics)
            return state, jnp.array([metrics[name] for name in names])  # one array to write, not one for each

        return jax.lax.scan(update_one, state, (indices, jax.vmap(draw)(indices)))

    names: list[str] = []
    indices = first_update + jnp.arange(n_updates).reshape(-1, n_ahead)
    new, metrics = jax.lax.scan(update_some, state, indices)
    kept = jax.tree.map(lambda after, before: jnp.where(ready, after, before), new, state)
    means = jnp.where(ready, metrics.reshape(n_updates, -1).mean(axis=0), jnp.nan)
    return kept, dict(zip(names, means, strict=True))

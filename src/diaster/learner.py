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

from diaster.acting import HostParameters
from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.decompose import Decomposer
from diaster.replay import (
    EpisodeBlock,
    EpisodeStore,
    draw_steps,
    gather_numbered,
    gather_steps,
    init_store,
    insert,
    make_block,
)
from diaster.trees import leaf_names
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

    arrays: dict[str, NDArray[Any]]
    label_age: int


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
        # While fewer steps are stored than a chunk's updates look at, a CPU saves time by computing the reward of each
        # once. A branch among several seeds would be both of its sides; on an accelerator rewards cost next to nothing.
        self._tabulates = device.platform == "cpu" and len(seeds) == 1 and decomposer.sample is None
        self._working_form = None if device.platform == "cpu" else agent.working_form
        self._seed_keys = jax.device_put(jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32)), device)
        self._first_keys = self._seed_keys
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
        self._flat_policy = jax.jit(jax.vmap(self._flat_policy_of_one))
        self._policy_on_its_way: tuple[Array, Array] | None = None
        self._policies: Callable[[], list[HostParameters]] | None = None
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
        self._forget_policies()
        return dict(metrics)

    def renew_labels(self, oldest: int) -> None:
        """Renew every stored label with the present model if they are older than so many updates."""
        if self._decomposer.label is not None and self.labels is not None and self._label_age > oldest:
            capacity = self.labels.shape[1]
            self._relabel_from(np.maximum(self._inserted - capacity, 0))
            self._label_age = 0

    def send_policies(self) -> None:
        """Let the policies set out for the host; they arrive when the learning that is under way has ended."""
        if self._policy_on_its_way is None:
            self._policy_on_its_way = self._flat_policy(self.state.agent)
            for part in reversed(self._policy_on_its_way):  # what is small, and waited for, does not wait for the rest
                part.copy_to_host_async()

    def policies_are_here(self) -> bool:
        """Whether `policies` takes no waiting."""
        parts: Sequence[Any] = self._policy_on_its_way or ()  # JAX does not tell a type checker of `is_ready`
        return bool(parts) and all(part.is_ready() for part in parts)

    def policies_are_finite(self) -> NDArray[np.bool_]:
        """Whether the policy of each seed can act at all. Waits for the learning that is under way.  # [S]"""
        self.send_policies()
        assert self._policy_on_its_way is not None
        return np.asarray(self._policy_on_its_way[1])

    def policies(self) -> list[HostParameters]:
        """The policy of every seed, on the host. Waits for the learning that is under way."""
        return self.policies_later()()

    def policies_later(self) -> Callable[[], list[HostParameters]]:
        """What `policies` would return now, for who asks when the next learning is under way."""
        if self._policies is None:
            self.send_policies()
            assert self._policy_on_its_way is not None
            self._policies = cache(partial(self._host_policies, self._policy_on_its_way[0]))
        return self._policies

    def _host_policies(self, flat: Array) -> list[HostParameters]:
        layers, exploration = self._unflattened(flat)
        return [
            HostParameters(
                tuple((np.asarray(layer.weight[s]), np.asarray(layer.bias[s])) for layer in layers),
                float(exploration[s]),
            )
            for s in range(len(self._inserted))
        ]

    def _forget_policies(self) -> None:
        self._policy_on_its_way = self._policies = None

    def policy_tree(self) -> Acting:
        """The parameters that act, of all seeds, on the host  # [S, …]"""
        self.send_policies()
        assert self._policy_on_its_way is not None
        return self._unflattened(self._policy_on_its_way[0])

    def _unflattened(self, policies: Array) -> Acting:
        leaves, structure = self._policy_form
        flat = np.asarray(policies)
        ends = np.cumsum([leaf.size // len(flat) for leaf in leaves])
        parts = np.split(flat, ends[:-1], axis=1)
        parameters: Acting = jax.tree.unflatten(
            structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )
        return parameters

    def frozen(self) -> LearnerState:
        """The nets as they are now: a copy on the device, because further learning takes over their memory."""
        copy: LearnerState = _copied(self.state)
        return copy

    def decomposer_state(self, position: int) -> Any:
        """The decomposer's state of one seed."""
        return jax.tree.map(lambda leaf: leaf[position], self.state.decomposer)

    def snapshot(self) -> LearnerSnapshot:
        """Everything learning has changed but the replay, on the host. Waits for the learning that is under way."""
        labels = {} if self.labels is None else {"labels": np.array(self.labels)}
        return LearnerSnapshot({**net_arrays(self.state), **labels}, self._label_age)

    def go_back(self, position: int, nets: LearnerState, attempt: int) -> None:
        """Put one seed's nets back, and let it draw other random numbers. The others keep every bit."""
        nets = jax.device_put(nets, self._device)
        self.state = jax.tree.map(lambda leaf, kept: leaf.at[position].set(kept), self.state, nets)
        self._forget_policies()
        self._take_other_keys(position, attempt)
        if self._decomposer.label is not None and self.labels is not None:
            kept = np.array(self.labels)
            self._relabel_from(np.maximum(self._inserted - kept.shape[1], 0))
            kept[position] = np.asarray(self.labels)[position]
            self.labels = jax.device_put(kept, self._device)

    def _take_other_keys(self, position: int, attempt: int) -> None:
        if attempt > 0:
            key = jax.random.fold_in(self._first_keys[position], DIVERGED + attempt)
            self._seed_keys = self._seed_keys.at[position].set(key)

    def restore(
        self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore], attempts: Sequence[int] | None = None
    ) -> None:
        """Go on from a snapshot and the replay of every seed; `attempts` are the numbers that `go_back` was given."""
        for position, attempt in enumerate(attempts or ()):
            self._take_other_keys(position, attempt)
        trees = {"state": self.state, "labels": self.labels}
        names = [name for name, _ in leaf_names(trees)]
        leaves = [jax.device_put(snapshot.arrays[name], self._device) for name in names]
        restored = jax.tree.unflatten(jax.tree.structure(trees), leaves)
        self.state, self.labels = restored["state"], restored["labels"]
        self._forget_policies()
        self.store = jax.tree.map(lambda *parts: jax.device_put(np.stack(parts), self._device), *stores)
        self._inserted = np.array([int(store.next_step) for store in stores], np.int64)
        self._label_age = snapshot.label_age

    def _flat_policy_of_one(self, state: Any) -> tuple[Array, Array]:
        """All its parameters as one array, because each array costs a journey from the device."""
        flat, _ = ravel_pytree(self._agent.policy(state))
        return flat, jnp.isfinite(flat).all()

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
    is_nan = [jnp.isnan(leaf.reshape(leaf.shape[0], -1)).any(axis=1) for leaf in jax.tree.leaves(nets)]
    is_lost = jnp.stack(is_nan).any(axis=0)  # [S]

    def choose(leaf: Array, earlier: Array) -> Array:
        return jnp.where(is_lost.reshape(-1, *[1] * (leaf.ndim - 1)), earlier, leaf)

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

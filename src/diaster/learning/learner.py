"""The learner: store, decomposer and agent of all seeds, and the compiled programs that move them on.

Seeds are the leading axis of every state. A seed's random keys come from the seed, the stream and the number of the
update, so they do not depend on the other seeds. All calls launch work on the device and return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from diaster.agents import Acting, Agent, Metrics, Transition
from diaster.decomposers import Decomposer
from diaster.learning.decomposed_store import DecomposedStore, draw_batch, learning_reward, with_features
from diaster.learning.labels import Labels
from diaster.learning.policies import LearnerPolicies, acting_of
from diaster.learning.snapshot import (
    LABELS,
    LearnerSnapshot,
    LearnerState,
    copied,
    lasting_arrays,
    net_arrays,
    nets_of,
    sound_nets,
    with_earlier,
)
from diaster.learning.updates import each_seed, key_after_rollbacks, key_of_seed, loop_options, scan_updates, stream_key
from diaster.nn.trees import leaf_names
from diaster.replay.store import (
    EpisodeStore,
    Steps,
    are_last,
    draw_episodes,
    draw_stretches,
    first_places,
    gather_numbered,
    gather_steps,
    init_store,
)
from diaster.types import EPISODIC, EnvSpec, Episode, Feedback, Stream

UPDATES_PER_FEATURES = 4  # of an agent for one of the encoder that it sees images through
SURVEYED = (64, 128)  # stored steps one after the other, and stretches of them, that an agent may look at as a whole
N_FIRST = 64  # first observations of episodes beside them
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
        feedback: Feedback = EPISODIC,
    ) -> None:
        self._decomposer, self._agent = decomposer, agent
        self._batch_size, self._device = batch_size, device
        self._working_form = None if device.platform == "cpu" else agent.working_form
        self._seed_keys = jax.device_put(jax.vmap(key_of_seed)(np.asarray(seeds, np.uint32)), device)
        self._first_keys = self._seed_keys
        self._rollbacks = jax.device_put(np.zeros(len(seeds), np.int32), device)
        self._relabelled_rollbacks = np.zeros(len(seeds), np.int32)  # those after which labels were renewed

        def init(seed_key: Array) -> tuple[EpisodeStore, LearnerState]:
            state = LearnerState(
                decomposer.init(stream_key(seed_key, Stream.INIT_DECOMPOSER, 0), spec),
                agent.init(stream_key(seed_key, Stream.INIT_AGENT, 0), spec.of_features),
            )
            return init_store(capacity, spec.obs_dim, spec.action_dim, feedback, spec.obs_dtype), state

        # Drawing weights is done once: compiling that fast matters more than running it fast.
        quick = {"xla_backend_optimization_level": 0} if device.platform == "cpu" else None
        store, state = jax.jit(each_seed(init), compiler_options=quick)(self._seed_keys)
        self._fresh_agents = jax.jit(
            jax.vmap(lambda key: agent.init(stream_key(key, Stream.INIT_AGENT, 1), spec.of_features)),
            compiler_options=quick,
        )
        self._replay = DecomposedStore(decomposer, spec, store, state.decomposer, device, feedback)
        self._agent_state = state.agent
        self._good: LearnerState = copied(state)
        # One trace per number of updates; a schedule that divides the chunks gives one.
        options = loop_options(device.platform)
        self._fit_agent = jax.jit(self._fit_agents, static_argnums=7, donate_argnums=0, compiler_options=options)
        self._policy_form = jax.tree.flatten(jax.eval_shape(jax.vmap(self._policy_of), self.state))
        self._roll_back = jax.jit(self._roll_back_seeds, donate_argnums=0)
        self._sent: LearnerPolicies | None = None

    @property
    def state(self) -> LearnerState:
        """What learning changes, of all seeds."""
        return LearnerState(self._replay.state, self._agent_state)

    @state.setter
    def state(self, state: LearnerState) -> None:
        self._replay.state, self._agent_state = state

    @property
    def store(self) -> EpisodeStore:
        """The replay of all seeds."""
        return self._replay.store

    @store.setter
    def store(self, store: EpisodeStore) -> None:
        self._replay.store = store

    @property
    def labels(self) -> Labels:
        """The stored rewards of all seeds, where the method has any."""
        return self._replay.labels

    def store_episodes(self, episodes: Sequence[Sequence[Episode]]) -> None:
        """Store the finished episodes of every seed and let the decomposer see their statistics."""
        self._relabel_after_rollbacks()
        self._replay.add(episodes)

    def fit_decomposer(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the decomposers of seeds that are ready; their mean metrics, on the device  # [S]"""
        return self._replay.fit(ready, self._seed_keys, first_update, n_updates)

    def skip_updates(self, n_updates: int) -> None:
        """No seed makes these; labels grow as old as where some other seed does."""
        self.labels.age += n_updates

    def fit_agent(self, ready: NDArray[np.bool_], first_update: int, n_updates: int) -> Metrics:
        """Updates of the agents of seeds that are ready, likewise; of their encoders first, where they see images."""
        of_features: Metrics = {}
        if self._decomposer.features is not None:
            done, due = (-(-number // UPDATES_PER_FEATURES) for number in (first_update, first_update + n_updates))
            if due > done:
                of_features = self._replay.learn_features(ready, self._seed_keys, done, due - done)
        self._agent_state, metrics = self._fit_agent(
            self._agent_state,
            self._replay.state,
            self.store,
            self.labels.values,
            ready,
            self._seed_keys,
            np.int32(first_update),
            n_updates,
        )
        self._sent = None
        return of_features | dict(metrics)

    def renew_labels(self, oldest: int) -> None:
        """Renew every stored label with the present model if they are older than this number of updates."""
        self._replay.renew_labels(oldest)

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
        labels = {} if self.labels.values is None else {LABELS: np.array(self.labels.values)}
        rollbacks = np.asarray(self._rollbacks).tolist()
        return LearnerSnapshot({**net_arrays(self.state), **labels}, net_arrays(self._good), rollbacks, self.labels.age)

    def nets(self) -> dict[str, NDArray[Any]]:
        """What another run can begin with: all nets with their statistics, without optimisers."""
        return lasting_arrays(self.state)

    def inherit(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Begin with the nets of another run; what is not among them stays as it is."""
        self.state = jax.device_put(nets_of(arrays, self.state), self._device)
        self._good, self._sent = copied(self.state), None

    def restart_agents(self, which: NDArray[np.bool_]) -> None:
        """Begin the agents of some seeds anew, with other random numbers; replay and decomposers stay.  # [S]"""
        fresh = self._fresh_agents(self._seed_keys)
        self._agent_state = with_earlier(which, self._agent_state, fresh)
        self._good = self._good._replace(agent=with_earlier(which, self._good.agent, fresh))
        self._sent = None

    def restore(self, snapshot: LearnerSnapshot, stores: Sequence[EpisodeStore]) -> None:
        """Go on from a snapshot and the replay of every seed."""
        trees = {"state": self.state, LABELS: self.labels.values}
        leaves = [jax.device_put(snapshot.arrays[name], self._device) for name, _ in leaf_names(trees)]
        restored = jax.tree.unflatten(jax.tree.structure(trees), leaves)
        self.state, self.labels.values = restored["state"], restored[LABELS]
        self.labels.age = snapshot.label_age
        self._good = jax.device_put(nets_of(snapshot.good, self._good), self._device)
        self._relabelled_rollbacks = np.array(snapshot.rollbacks, np.int32)
        self._rollbacks = jax.device_put(self._relabelled_rollbacks, self._device)
        self._seed_keys = jax.jit(jax.vmap(key_after_rollbacks))(self._first_keys, self._rollbacks)
        self._sent = None
        self._replay.refill(stores)

    def _relabel_after_rollbacks(self) -> None:
        """Labels are of the nets from before; the host waits to know whose, which only methods with labels pay for."""
        if not self.labels.are_learnt:
            return
        rollbacks = self.send_policies().rollbacks
        positions = np.flatnonzero(rollbacks > self._relabelled_rollbacks)
        if len(positions):
            self._replay.renew_labels_of(positions)
            self._relabelled_rollbacks = rollbacks

    def _roll_back_seeds(
        self, state: LearnerState, good: LearnerState, first_keys: Array, rollbacks: Array
    ) -> tuple[LearnerState, Array, Array, Array]:
        def flat_policy(state: LearnerState) -> Array:
            return ravel_pytree(self._policy_of(state))[0]

        has_diverged = ~jnp.isfinite(jax.vmap(flat_policy)(state)).all(axis=1)  # [S]
        state = with_earlier(has_diverged, state, good)
        rollbacks = rollbacks + has_diverged
        keys = jax.vmap(key_after_rollbacks)(first_keys, rollbacks)
        return state, keys, rollbacks, jax.vmap(flat_policy)(state)

    def _policy_of(self, state: LearnerState) -> Acting:
        return acting_of(self._agent, self._decomposer, state.agent, state.decomposer)

    def _with_own_rewards(self, state: Any, batch: Transition) -> Transition:
        """A batch with the rewards that the agent makes of the decomposer's."""
        return batch if self._agent.rewards is None else batch._replace(reward=self._agent.rewards(state, batch))

    def _look_at_rewards(
        self,
        state: Any,
        store: EpisodeStore,
        seed_key: Array,
        first_update: Array,
        with_reward: Callable[[Array, Steps], Transition],
    ) -> Any:
        """The state of an agent that has looked, before a chunk of updates, at what it wants to see of stored steps."""
        only_rated = self._decomposer.learns_from_rated_steps
        if self._agent.survey is not None:
            key = stream_key(seed_key, Stream.SURVEY_STEPS, first_update)
            number = draw_stretches(store, key, *SURVEYED, only_rated)
            place = first_places(store, draw_episodes(store, jax.random.fold_in(key, 1), N_FIRST, "uniform"))
            first_obs = gather_steps(store, place, jnp.zeros_like(place)).obs
            steps = with_reward(number, gather_numbered(store, number))
            n_stored = store.rated.n_steps if only_rated and store.rated is not None else store.n_steps
            state = self._agent.survey(state, steps, first_obs, n_stored)
        if self._agent.watch is not None:
            key = stream_key(seed_key, Stream.WATCH_REWARDS, first_update)
            number = draw_stretches(store, key, *WATCHED, only_rated)
            rewards = self._with_own_rewards(state, with_reward(number, gather_numbered(store, number))).reward
            state = self._agent.watch(state, rewards, are_last(store, number, only_rated))
        return state

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
            is_ready = store.is_enough(is_ready)
            store = with_features(self._decomposer, decomposer_state, store)

            def with_reward(number: Array, steps: Steps) -> Transition:
                reward = learning_reward(self._decomposer, decomposer_state, store, label, number, steps)
                return Transition(steps.obs, steps.action, reward, steps.next_obs, steps.terminal)

            looked = self._look_at_rewards(state, store, seed_key, first_update, with_reward)
            start = jax.tree.map(lambda after, before: jnp.where(is_ready, after, before), looked, state)

            def draw_one(index: Array) -> tuple[Transition, Any]:
                draw_key, noise_key = jax.random.split(stream_key(seed_key, Stream.UPDATE_AGENT, index))
                number, drawn = draw_batch(self._decomposer, decomposer_state, store, draw_key, self._batch_size)
                batch = self._with_own_rewards(start, with_reward(number, drawn))
                return batch, self._agent.noise(noise_key, batch)

            def update(state: Any, index: Array | int, drawn: tuple[Transition, Any]) -> tuple[Any, Metrics]:
                return self._agent.update(state, *drawn, index)

            if self._working_form is None:
                return scan_updates(draw_one, update, start, first_update, n_updates, is_ready)
            packed = self._working_form.pack(start)
            new, metrics = scan_updates(draw_one, update, packed, first_update, n_updates, is_ready, self._agent.cycle)
            return self._working_form.unpack(new), metrics

        fitted: tuple[Any, Metrics] = each_seed(fit_seed)(states, decomposer_states, stores, labels, ready, seed_keys)
        return fitted

"""A replay of whole episodes with a decomposer inside, for learners that are not ours.

One number per episode goes in, and steps with rewards come out. A loop of your own adds finished episodes, fits, and
draws batches; their rewards are computed when they are drawn. `diaster.sb3` is built on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import spaces
from jax import Array
from numpy.typing import NDArray

from diaster.analysis.diagnostics import explained
from diaster.config import build_config, check_method, updates_due
from diaster.decomposed.account import RingAccount
from diaster.decomposed.checks import check_arguments, check_episode, check_known_rewards, check_memory, method_table
from diaster.decomposed.packing import packed, unpacked
from diaster.decomposed.pieces import checked_number, only_span, rated_spans_alone, return_of, spans_of
from diaster.decomposed.terms import EnvTerms, array_of
from diaster.decomposers import make_decomposer
from diaster.errors import DiasterError
from diaster.learning.decomposed_store import DecomposedStore, DrawnStretches, draw_stretches_with_rewards
from diaster.learning.machine import find_devices
from diaster.learning.reward_model import RewardModel
from diaster.learning.updates import each_seed, key_of_seed, stream_key
from diaster.replay.store import EpisodeStore, init_store
from diaster.types import EPISODIC, EnvSpec, Episode, EvaluationEpisode, Feedback, Stream

ENOUGH = 2  # episodes, or numbers, to learn from: one alone says nothing of what made it good or bad
PIECE = 50  # updates in one call; what is left over is done one by one, so that two programs serve every number
UNSEEN = 50  # episodes, or spans, that the fit is judged by, from before the decomposer had learnt from them
ONLY_SEED = np.array([True])


class Batch(NamedTuple):
    """Steps of stored episodes, as the environment has them, with the rewards that the decomposer gives them now."""

    obs: NDArray[Any]  # [B, …]
    action: NDArray[Any]  # [B, …]
    reward: NDArray[np.float32]  # [B] times the replay's `scale` they are in the environment's units
    next_obs: NDArray[Any]  # [B, …]
    terminal: NDArray[np.bool_]  # [B] True where nothing follows; False at time limits


class DecomposedReplay:
    """Whole episodes, of which only the return is known, and a method that makes rewards from the returns.

    Examples:
        >>> replay = diaster.DecomposedReplay(env.observation_space, env.action_space, horizon=1000)
        >>> replay.add(observations, actions, episode_return, terminated)
        >>> replay.fit(replay.updates_due(env_steps))
        >>> batch = replay.sample(256)  # batch.reward is the decomposer's as it is now
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        horizon: int,
        method: str | Mapping[str, Any] = "diaster",
        *,
        capacity: int = 1_000_000,
        in_pieces: bool = False,
        known_rewards: bool = False,
        seed: int = 0,
        device: str = "auto",
        name: str = "the environment",
    ) -> None:
        """`horizon` is the longest episode; `method` a name, or a table of settings with a `name`.

        `capacity` counts observations: the oldest episodes make room. `in_pieces`: an episode may have several numbers,
        and some may be missing or come later. `known_rewards`: a part of every step's reward is known. All that is
        random comes from `seed`. `device` is auto, cpu or gpu. `name` is what complaints call the environment.
        """
        check_arguments(horizon, capacity, seed, device)
        self.method = build_config(method=method_table(method)).method
        check_method(self.method, horizon)
        self._feedback = Feedback("environment" if in_pieces else EPISODIC.every, known_rewards)
        check_known_rewards(self.method, self._feedback)
        self.terms = EnvTerms(observation_space, action_space, name, horizon)
        self.spec: EnvSpec = self.terms.spec
        used = find_devices(device, 1)[0]
        check_memory(capacity, self.spec, used, self._feedback)
        self._decomposer = make_decomposer(self.method, horizon)
        self._model = RewardModel(self._decomposer, horizon)
        self._keys = jax.device_put(jax.vmap(key_of_seed)(np.array([seed], np.uint32)), used)

        def init(seed_key: Array) -> tuple[EpisodeStore, Any]:
            state = self._decomposer.init(stream_key(seed_key, Stream.INIT_DECOMPOSER, 0), self.spec)
            return init_store(capacity, self.spec.obs_dim, self.spec.action_dim, self._feedback), state

        # As in the learner: it runs once, so that it has to be compiled fast.
        quick = {"xla_backend_optimization_level": 0} if used.platform == "cpu" else None
        store, state = jax.jit(each_seed(init), compiler_options=quick)(self._keys)
        self._replay = DecomposedStore(self._decomposer, self.spec, store, state, used, self._feedback)
        self._draw = jax.jit(self._draw_seeds, static_argnums=(5, 6))
        self._scale = jax.jit(each_seed(self._decomposer.scale))
        self.updates = self._draws = 0
        self._account = RingAccount(capacity)
        self._new: deque[Episode] = deque(maxlen=UNSEEN)  # since the last fit
        self._judged: deque[tuple[float, float]] = deque(maxlen=UNSEEN)  # Σ r̂ and return
        self._metrics: list[tuple[int, dict[str, Array]]] = []  # of the last fit: updates, and their means

    # What goes in

    def add(
        self,
        obs: Any,
        action: Any,
        episode_return: float | None,
        terminated: bool,
        *,
        spans: Iterable[tuple[int, float | None]] | None = None,
        known_reward: Any = None,
    ) -> int:
        """Store a finished episode of L steps; returns its number.

        `obs` is [L+1, …] and `action` is [L, …], both as the environment has them. `terminated` is False if a time
        limit has ended the episode: then the last state still has a value.

        In a replay with `in_pieces`, the return may be None. It then comes later, by `give_feedback`, or never. An
        episode with several numbers has `spans` in its place: for each span the number of steps after which it ends,
        and its number or None. In a replay with `known_rewards`, `known_reward` [L] is the known part of each step's
        reward; the numbers include it.
        """
        in_pieces = self._feedback.has_gaps
        if not in_pieces and (episode_return is None or spans is not None):
            what = "an episode without a return" if spans is None else "an episode with spans"
            raise DiasterError(
                f"{what} was given; make the replay with in_pieces=True, and numbers may be several, or come later."
            )
        flat, seen = self.terms.flat(obs), self.terms.seen(action)
        of_spans = spans_of(len(seen), episode_return, spans) if in_pieces else None
        total = 0.0 if episode_return is None else return_of(episode_return)
        known = None if known_reward is None else array_of(known_reward, "known rewards").astype(np.float32)
        return self.add_episode(Episode(flat, seen, total, bool(terminated), spans=of_spans, known_reward=known))

    def add_episode(self, episode: Episode) -> int:
        """The same for a record: flat observations, actions in [−1, 1] or one-hot."""
        check_episode(episode, self.spec, self.wants_hidden_rewards, self._feedback)
        self._replay.add([[episode]])
        self._new.extend([episode] if self._feedback == EPISODIC else rated_spans_alone(episode))
        return self._account.add(episode.length, episode.to_decompose.is_rated)

    def give_feedback(self, episode: int, value: float, span: int = 0) -> bool:
        """Give the number of a stored episode, or of one of its spans, later; in any order, each once.

        `episode` is what `add` returned. The result is False if the episode has left the replay meanwhile; then nothing
        changes.
        """
        if not self._feedback.has_gaps:
            raise DiasterError("feedback was given later; make the replay with in_pieces=True, which waits for it.")
        number = checked_number(value)
        place = self._account.take(episode, span)
        if place is None:
            return False
        self._new.append(only_span(self._replay.give_feedback(place, number)))
        return True

    def updates_due(self, env_steps: int) -> int:
        """How many updates the method asks for after so many steps and the episodes so far, less those made."""
        due, most = updates_due(self.method, env_steps), getattr(self.method, "updates_per_episode", 0)
        return max(0, (min(due, most * self.episodes) if most else due) - self.updates)

    def fit(self, updates: int) -> None:
        """Fit the decomposer to what is stored; a method that fits nothing has nothing to do."""
        if not self.can_be_fitted or updates < 1:
            return
        if not self.has_enough:
            raise DiasterError(f"{self._counted('were added')}, and a fit needs {ENOUGH}; add more before you fit.")
        self._judge_new()
        self._metrics = []
        for size in (*[PIECE] * (updates // PIECE), *[1] * (updates % PIECE)):
            self._metrics.append((size, self._replay.fit(ONLY_SEED, self._keys, self.updates, size)))
            self.updates += size

    # What comes out

    def sample(self, n: int) -> Batch:
        """Steps drawn uniformly (or as the method draws them), with the rewards that the decomposer gives them now.

        A method whose rewards depend on the rest of the episode has stored ones, at most `relabel_every` updates old.
        """
        drawn = self.draw(n)
        obs, next_obs = self.terms.shown(drawn.obs), self.terms.shown(drawn.next_obs)
        return Batch(obs, self.spec.to_env(drawn.action), drawn.reward[:, 0], next_obs, drawn.terminal)

    def draw(self, n: int, n_steps: int = 1) -> DrawnStretches:
        """The same as the nets see them, each with the rewards of the steps that follow it, for n-step returns."""
        self._check_draw(n, n_steps)
        # Labels of a net that had learnt nothing are of no use to begin with.
        self._replay.renew_labels(getattr(self.method, "relabel_every", 0) if self._draws else 0)
        replay = self._replay
        drawn = self._draw(replay.state, replay.store, replay.labels.values, self._keys, self._draws, n, n_steps)
        self._draws += 1
        found: DrawnStretches = jax.tree.map(lambda leaf: leaf[0], jax.device_get(drawn))
        if not np.isfinite(found.reward).all():
            raise DiasterError(
                f"the rewards of '{self.method.name}' are no finite numbers any more, so its nets have diverged; "
                "give the method a smaller learning_rate."
            )
        return found

    def rewards(self, obs: Any, action: Any, next_obs: Any = None) -> NDArray[np.float64]:
        """r̂ of single steps in the environment's units; next_obs where the method looks at it: rrd, rd, linear base."""
        if not self._model.has_step_reward:
            raise DiasterError(
                f"the rewards of '{self.method.name}' depend on more than a single step, on its history or on its "
                "episode's return; only methods with a net of their own for the step reward have one."
            )
        if self._model.needs_next_obs and next_obs is None:
            raise DiasterError(
                f"the step reward of '{self.method.name}' looks at what a step led to; give next_obs as well."
            )
        state = jax.tree.map(lambda leaf: leaf[0], self._replay.state)
        following = None if next_obs is None else self.terms.flat(next_obs)
        return self._model.of_steps(state, self.terms.flat(obs), self.terms.seen(action), following)

    # How it stands

    def __len__(self) -> int:
        """Steps that are stored."""
        return self._account.steps

    @property
    def episodes(self) -> int:
        """How many episodes were added."""
        return self._account.episodes

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """Episode and span of every number that is still to come, of what is stored."""
        return self._account.waiting

    @property
    def is_full(self) -> bool:
        """Whether episodes have had to make room."""
        return self._account.is_full

    @property
    def has_enough(self) -> bool:
        """Whether there are enough episodes, and numbers of them, to learn from."""
        return min(self.episodes, self._account.rated) >= ENOUGH

    @property
    def can_be_fitted(self) -> bool:
        """Whether the method has anything to fit."""
        return self._decomposer.update is not None

    @property
    def has_rewards(self) -> bool:
        """Whether rewards can be drawn: there are enough episodes, and the decomposer is fitted, if it is to be."""
        return self.has_enough and (self.updates > 0 or not self.can_be_fitted or self.method.updates == 0)

    @property
    def wants_hidden_rewards(self) -> bool:
        """Whether the method is the upper reference, which has to be given the true rewards."""
        return self._decomposer.is_hidden_reward

    @property
    def scale(self) -> float:
        """What drawn rewards are multiplied by to be in the environment's units."""
        return float(np.asarray(self._scale(self._replay.state))[0])

    def metrics(self) -> dict[str, float]:
        """Counts, what the last fit has logged, and `fit_r2`.

        `fit_r2` is R² of Σ r̂ against the return, over the last episodes, each judged before it was learnt from.
        """
        found: dict[str, float] = {"episodes": self.episodes, "steps": len(self), "updates": self.updates}
        if len(self._judged) > 1:
            fit, _ = explained(*np.array(self._judged, np.float64).T)
            found |= {"fit_r2": fit} if np.isfinite(fit) else {}
        n_updates = sum(size for size, _ in self._metrics)
        for name in self._metrics[0][1] if self._metrics else ():
            found[name] = sum(size * float(np.asarray(means[name])[0]) for size, means in self._metrics) / n_updates
        return found

    # To save, and to go on exactly

    def state(self) -> dict[str, NDArray[Any]]:
        """All that changes, as arrays: a replay with the same arguments goes on from them exactly as this one does."""
        return {
            **self._replay.arrays(),
            **packed(self._new, self.spec),
            **self._account.arrays(),
            "counts": np.array([self.episodes, self.updates, self._draws, self._account.spans], np.int64),
            "judged": np.array(self._judged, np.float64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the state of another replay that was made with the same arguments."""
        self._replay.restore(state)
        episodes, self.updates, self._draws, *spans = map(int, state["counts"])
        self._account.restore(state, episodes, *(spans or [episodes]))  # earlier versions had one for each episode
        self._judged = deque(map(tuple, state["judged"]), maxlen=UNSEEN)
        self._new = deque(unpacked(state), maxlen=UNSEEN)
        self._metrics = []

    # Parts of these

    def _draw_seeds(
        self, states: Any, stores: EpisodeStore, labels: Array | None, keys: Array, index: Array, n: int, n_steps: int
    ) -> DrawnStretches:
        def of_seed(state: Any, store: EpisodeStore, label: Array | None, key: Array) -> DrawnStretches:
            drawn = stream_key(key, Stream.UPDATE_AGENT, index)
            return draw_stretches_with_rewards(self._decomposer, state, store, label, drawn, n, n_steps)

        found: DrawnStretches = each_seed(of_seed)(states, stores, labels, keys)
        return found

    def _judge_new(self) -> None:
        """Compare Σ r̂ of the episodes that the next fit will see for the first time with their returns."""
        if self.updates and self._new:
            [rewards] = self._model.of_seeds(self._replay.state, [[EvaluationEpisode(e, None) for e in self._new]])
            sums = [float(reward.sum()) for reward in rewards]
            self._judged.extend((sums[i], episode.episode_return) for i, episode in enumerate(self._new))
        self._new.clear()

    def _counted(self, done: str) -> str:
        if self.episodes < ENOUGH:
            return f"{self.episodes} episodes {done}"
        return f"{self._account.rated} numbers of feedback are stored"

    def _check_draw(self, n: int, n_steps: int) -> None:
        if n < 1 or n_steps < 1:
            raise DiasterError(f"{n} draws of {n_steps} steps were asked for; at least one of each is needed.")
        if not self.has_enough:
            raise DiasterError(
                f"{self._counted('have ended')}, and rewards can be made from {ENOUGH} or more; draw later."
            )
        if not self.has_rewards:
            raise DiasterError(f"'{self.method.name}' has not been fitted yet; fit it before you draw.")
        if n_steps > 1 and self._decomposer.sample is not None:
            raise DiasterError(
                f"'{self.method.name}' chooses the steps of a batch itself, which does not go with n-step returns; "
                "use n_steps=1, or another method."
            )

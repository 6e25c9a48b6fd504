"""Steps an environment of a seed on the host and hands over finished episodes.

Everything random here is drawn from streams that depend on the seed and the place in the run alone, so it
makes no difference which seeds are stepped by which process.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from diaster.actors.acting import HostParameters, HostPolicy, random_actions
from diaster.envs.making import TRUE_REWARD, Env, one_line
from diaster.errors import DiasterError, EnvironmentFault
from diaster.types import EnvSpec, Episode, EvaluationEpisode, FloatArray, Stream, host_random, reset_seed

MakeEnv = Callable[[], Any]  # an environment, or what speaks like one


class Handling(NamedTuple):
    """How environments are treated."""

    keep_hidden: bool = False
    """Let collected episodes carry the hidden rewards of their steps."""
    retries: int = 0
    """Faults in a row that are survived."""
    isolate: bool = False
    """Step each in a process of its own."""
    step_seconds: float = 60.0
    """The longest time a step may take there."""


ORDINARY = Handling()


class Part(NamedTuple):
    """Which of several that share the work of a seed."""

    number: int = 0
    of: int = 1

    def share(self, amount: int) -> int:
        """How many of so many steps are its own."""
        return len(range(self.number, amount, self.of))


ALL_OF_IT = Part()


class CollectorState(NamedTuple):
    """Where a collector stands: the episode under way, from which its environment can be brought back."""

    episodes: int  # begun so far
    faults: int  # episodes dropped so far
    in_a_row: int  # of them, since the last episode that ended well
    obs: FloatArray  # [l+1, D] of the episode under way; [0, D] where none is
    action: FloatArray  # [l, A]
    hidden_reward: FloatArray  # [l]; [0] where hidden rewards are not kept


class Rollout:
    """One environment, reset by seed and stepped with the nets' actions; bad values are named, never passed on."""

    def __init__(self, make: MakeEnv, spec: EnvSpec, role: str) -> None:
        self._make, self._spec, self._role = make, spec, role
        self._env: Env | None = None
        self.steps = 0  # of the run so far, for sentences
        self._obs: list[FloatArray] = []
        self._actions: list[FloatArray] = []
        self.info: dict[str, Any] = {}

    def reset(self, seed: int) -> FloatArray:
        if self._env is None:
            self._env = self._make()
        try:
            obs, self.info = self._env.reset(seed=seed)
        except DiasterError:
            raise
        except Exception as error:  # whatever the environment's own code raises
            raise self._fault(f"raised {one_line(error)} in the reset after") from error
        self._obs, self._actions = [self._checked(obs)], []
        return self._obs[0]

    def step(self, action: FloatArray) -> tuple[FloatArray, Episode | None]:
        """The next observation and, where it was the last one, the finished episode."""
        assert self._env is not None, "reset first"
        self.steps += 1
        try:
            obs, reward, terminated, truncated, self.info = self._env.step(self._spec.to_env(action))
        except DiasterError:
            raise
        except Exception as error:
            raise self._fault(f"raised {one_line(error)} at") from error
        value = float(reward)
        if not math.isfinite(value):
            raise self._fault(f"returned a reward of {value} at")
        checked = self._checked(obs)
        self._obs.append(checked)
        self._actions.append(action)
        if not (terminated or truncated):
            return checked, None
        return checked, Episode(np.stack(self._obs), np.stack(self._actions), value, bool(terminated))

    def close(self) -> None:
        """Let the environment go; the next reset makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(Exception):  # one that is broken may not even close
                env.close()

    def under_way(self) -> tuple[FloatArray, FloatArray]:
        """Observations and actions of the episode since its reset."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self._spec.action_dim), np.float32)
        return np.stack(self._obs), actions

    def _checked(self, obs: Any) -> FloatArray:
        try:
            array = np.asarray(obs, np.float32)
        except (TypeError, ValueError):
            raise self._error(f"returned an observation of the kind {type(obs).__name__} at") from None
        if array.shape != (self._spec.obs_dim,):
            raise self._error(
                f"returned an observation of shape {array.shape} where ({self._spec.obs_dim},) was announced at"
            )
        if not math.isfinite(array.sum(dtype=np.float64)):  # cheaper than isfinite().all() for small arrays
            bad = np.flatnonzero(~np.isfinite(array))
            if bad.size:
                raise self._fault(f"returned {array[bad[0]]} in its observation (entry {bad[0]}) at")
        return array

    def _error(self, what: str) -> DiasterError:
        return DiasterError(self._sentence(what))

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(self._sentence(what))

    def _sentence(self, what: str) -> str:
        return (
            f"the environment '{self._spec.id}' {what} {self._role} step {self.steps}; "
            "check the environment at that step."
        )


class Collector:
    """A training environment of one seed, with the episode that is under way."""

    def __init__(
        self,
        make: MakeEnv,
        spec: EnvSpec,
        policy: HostPolicy,
        seed: int,
        handling: Handling = ORDINARY,
        part: Part = ALL_OF_IT,
    ) -> None:
        which = f" (environment {part.number + 1} of {part.of})" if part.of > 1 else ""
        self._rollout = Rollout(make, spec, f"seed {seed}'s training{which}")
        self._part = part
        self._spec, self._policy, self._seed = spec, policy, seed
        self._keep_hidden, self._hidden_rewards = handling.keep_hidden, list[float]()
        self._retries, self._faults, self._in_a_row = handling.retries, 0, 0
        self._last_fault = ""
        self._episodes = 0
        self._obs: FloatArray | None = None

    def collect(self, parameters: HostParameters | None, chunk: int, n_steps: int) -> list[Episode]:
        """Take its part of n steps with the policy, or uniformly at random where there is none yet.

        Returns finished episodes. A fault of the environment takes a step as well: its episode is dropped whole and
        the next one begins.
        """
        random = host_random(self._seed, Stream.COLLECT_ACTION, *self._place(chunk))
        draw_all = random_actions if parameters is None else self._policy.draw
        finished = []
        for draw in draw_all(random, self._part.share(n_steps), self._spec):
            try:
                episode = self._step(parameters, draw)
            except EnvironmentFault as fault:
                self._faults, self._in_a_row, self._last_fault = self._faults + 1, self._in_a_row + 1, str(fault)
                if self._in_a_row > self._retries:
                    raise
                self._rollout.close()
                self._obs, self._hidden_rewards = None, []
                continue
            if episode is not None:
                self._in_a_row = 0
                finished.append(episode)
        return finished

    def _step(self, parameters: HostParameters | None, draw: FloatArray) -> Episode | None:
        """One step, after a reset where one is needed, and the episode if it has ended."""
        if self._obs is None:
            number, self._episodes = self._episodes, self._episodes + 1
            self._obs = self._rollout.reset(reset_seed(self._seed, Stream.COLLECT_RESET, *self._place(number)))
        action = draw if parameters is None else self._policy.act(parameters, self._obs, draw)
        self._obs, episode = self._rollout.step(action)
        if self._keep_hidden:
            self._hidden_rewards.append(self._rollout.info[TRUE_REWARD])
        if episode is not None:
            self._obs = None
            if self._keep_hidden:
                episode = episode._replace(hidden_reward=np.asarray(self._hidden_rewards, np.float32))
                self._hidden_rewards = []
        return episode

    def _place(self, number: int) -> tuple[int, ...]:
        """Where in the run something random is drawn: of environments side by side, each has draws of its own."""
        return (number, self._part.number) if self._part.number else (number,)

    def faults(self) -> tuple[int, str]:
        """How many episodes were dropped, and what was wrong with the last."""
        return self._faults, self._last_fault

    def close(self) -> None:
        """Let the environment go."""
        self._rollout.close()

    def state(self) -> CollectorState:
        """What `restore` needs. The environment's own state is not in it: it follows from the reset and the actions."""
        hidden = np.asarray(self._hidden_rewards, np.float32)
        counts = self._episodes, self._faults, self._in_a_row
        if self._obs is None:
            empty = np.zeros((0, self._spec.obs_dim), np.float32), np.zeros((0, self._spec.action_dim), np.float32)
            return CollectorState(*counts, *empty, hidden)
        return CollectorState(*counts, *self._rollout.under_way(), hidden)

    def restore(self, state: CollectorState, steps: int = 0) -> bool:
        """Bring the environment back by taking the episode's actions again from its reset, after so many steps in all.

        Returns whether that led through the same observations, bit by bit. If not, the episode is dropped and the
        next one begins in a new environment.
        """
        self._episodes, self._faults, self._in_a_row = state.episodes, state.faults, state.in_a_row
        self._obs, self._hidden_rewards = None, []
        is_same = len(state.obs) == 0
        if not is_same:
            with contextlib.suppress(DiasterError):
                is_same = self._take_again(state)
            if is_same:
                self._obs = state.obs[-1]
                self._hidden_rewards = state.hidden_reward.tolist()
            else:
                self._rollout.close()
        self._rollout.steps = self._part.share(steps)
        return is_same

    def _take_again(self, state: CollectorState) -> bool:
        number = state.episodes - 1
        obs = self._rollout.reset(reset_seed(self._seed, Stream.COLLECT_RESET, *self._place(number)))
        for action, before, after in zip(state.action, state.obs[:-1], state.obs[1:], strict=True):
            if not np.array_equal(obs, before):
                return False
            obs, episode = self._rollout.step(action)
            if episode is not None or not np.array_equal(obs, after):
                return False
        return np.array_equal(obs, state.obs[-1])


def evaluation_episodes(
    rollout: Rollout,
    policy: HostPolicy,
    parameters: HostParameters,
    seed: int,
    evaluation: int,
    n_episodes: int,
    retries: int = 0,
) -> list[EvaluationEpisode]:
    """Deterministic episodes of an evaluation, each from a seed of its own; some may be lost to faults."""

    def run(numbers: Sequence[int]) -> list[Outcome]:
        return try_episodes(rollout, policy, parameters, seed, evaluation, numbers, retries)

    return settle_evaluation(run(range(n_episodes)), run, retries)


Outcome = EvaluationEpisode | EnvironmentFault


def try_episodes(
    rollout: Rollout,
    policy: HostPolicy,
    parameters: HostParameters,
    seed: int,
    evaluation: int,
    numbers: Sequence[int],
    retries: int,
) -> list[Outcome]:
    """Numbered episodes of an evaluation, or what was wrong with them; none follows more faults than are survived."""
    outcomes: list[Outcome] = []
    faults = 0
    for number in numbers:
        start = reset_seed(seed, Stream.EVALUATE_RESET, evaluation, number)
        try:
            outcomes.append(_evaluation_episode(rollout, policy, parameters, start))
        except EnvironmentFault as fault:
            outcomes.append(fault)
            faults += 1
            if faults > retries:
                break
            rollout.close()
    return outcomes


def settle_evaluation(
    outcomes: Sequence[Outcome], run: Callable[[Sequence[int]], Sequence[Outcome]], retries: int
) -> list[EvaluationEpisode]:
    """The episodes that ended well. Where none did, others are run until one does; too many faults end it."""
    kept: list[EvaluationEpisode] = []
    faults = number = 0
    while True:
        for outcome in outcomes:
            number += 1
            if isinstance(outcome, EvaluationEpisode):
                kept.append(outcome)
                continue
            faults += 1
            if faults > retries:
                raise outcome
        if kept:
            return kept
        outcomes = run([number])


def _evaluation_episode(
    rollout: Rollout, policy: HostPolicy, parameters: HostParameters, seed: int
) -> EvaluationEpisode:
    obs = rollout.reset(seed)
    episode, hidden_rewards = None, []
    while episode is None:
        obs, episode = rollout.step(policy.act(parameters, obs, None))
        hidden_rewards.append(rollout.info[TRUE_REWARD])
    return EvaluationEpisode(episode, known_reward(hidden_rewards))


def known_reward(hidden_rewards: Sequence[float]) -> FloatArray | None:
    """The true reward of each step; None for an environment that speaks at the end alone, episodic by nature."""
    true_reward = np.asarray(hidden_rewards, np.float32)
    hidden = bool(true_reward[:-1].any()) or len(true_reward) == 1 or true_reward[-1] == 0.0
    return true_reward if hidden else None

"""Collects the episodes of one seed in one environment, and stands where it stood when its state is restored.

Everything random here is drawn from streams that depend on the seed and the place in the run alone, so it makes no
difference which process steps which seed.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np

from diaster.actors import warmup
from diaster.actors.acting import HostParameters, HostPolicy, random_actions
from diaster.actors.rollout import ORDINARY, Handling, MakeEnv, Rollout
from diaster.envs.delayed import TRUE_REWARD
from diaster.errors import DiasterError, EnvironmentFault
from diaster.types import EnvSpec, Episode, FloatArray, Observation, Stream, host_random, reset_seed


class Share(NamedTuple):
    """Which of several environments that share the work of a seed."""

    number: int = 0
    of: int = 1

    def of_steps(self, n_steps: int) -> int:
        """How many of n steps are its own."""
        return len(range(self.number, n_steps, self.of))


ALL = Share()


class CollectorState(NamedTuple):
    """Where a collector stands: its unfinished episode, from which its environment can be brought back."""

    episodes: int  # begun so far
    faults: int  # episodes dropped so far
    in_a_row: int  # of them, since the last episode that ended well
    obs: Observation  # [l+1, D] of the unfinished episode; [0, D] where there is none
    action: FloatArray  # [l, A]
    hidden_reward: FloatArray  # [l]; [0] where hidden rewards are not kept


class Collector:
    """A training environment of one seed, with the episode that runs in it."""

    def __init__(
        self,
        make: MakeEnv,
        spec: EnvSpec,
        policy: HostPolicy,
        seed: int,
        handling: Handling = ORDINARY,
        share: Share = ALL,
    ) -> None:
        which = f" (environment {share.number + 1} of {share.of})" if share.of > 1 else ""
        self._rollout = Rollout(make, spec, f"seed {seed}'s training{which}", handling.feedback)
        self._share = share
        self._spec, self._policy, self._seed = spec, policy, seed
        self._keep_hidden, self._hidden_rewards = handling.keep_hidden, list[float]()
        self._warmup_noise = handling.warmup_noise
        self._manner: tuple[int, warmup.Manner] | None = None  # of a numbered episode
        self._retries, self._faults, self._in_a_row = handling.retries, 0, 0
        self._last_fault = ""
        self._episodes = 0
        self._obs: Observation | None = None

    def collect(self, parameters: HostParameters | None, chunk: int, n_steps: int) -> list[Episode]:
        """Take its share of n steps with the policy, or at random where there is none yet.

        Returns finished episodes. A fault of the environment takes a step as well: its episode is dropped whole and
        the next one begins.
        """
        finished = []
        for draw in self.draws(parameters, chunk, self._share.of_steps(n_steps)):
            try:
                episode = self.take(self.choose(parameters, draw))
            except EnvironmentFault as fault:
                self._faults, self._in_a_row, self._last_fault = self._faults + 1, self._in_a_row + 1, str(fault)
                if self._in_a_row > self._retries:
                    raise
                self.drop()
                continue
            if episode is not None:
                self._in_a_row = 0
                finished.append(episode)
        return finished

    def draws(self, parameters: HostParameters | None, chunk: int, n_steps: int) -> FloatArray:
        """The random numbers of n steps in a chunk, or actions at random where there is no policy yet."""
        random = host_random(self._seed, Stream.COLLECT_ACTION, *self._place(chunk))
        draw_all = self._policy.draw
        if parameters is None:
            draw_all = random_actions if self._warmup_noise == "uniform" else warmup.noise
        return draw_all(random, n_steps, self._spec)

    def choose(self, parameters: HostParameters | None, draw: FloatArray) -> FloatArray:
        """The next action as the nets see it, after a reset where one is needed."""
        if self._obs is None:
            number, self._episodes = self._episodes, self._episodes + 1
            self._obs = self._rollout.reset(reset_seed(self._seed, Stream.COLLECT_RESET, *self._place(number)))
        return self._act_at_random(draw) if parameters is None else self._policy.act(parameters, self._obs, draw)

    def take(self, action: FloatArray) -> Episode | None:
        """Take the action; the episode, if it has ended."""
        self._obs, episode = self._rollout.step(action)
        if self._keep_hidden:
            self._hidden_rewards.append(self._rollout.info[TRUE_REWARD])
        if episode is not None:
            self._obs = None
            if self._keep_hidden:
                episode = episode._replace(hidden_reward=np.asarray(self._hidden_rewards, np.float32))
                self._hidden_rewards = []
        return episode

    def drop(self) -> None:
        """Let the unfinished episode go, and its environment."""
        self._rollout.close()
        self._obs, self._hidden_rewards = None, []

    def _act_at_random(self, draw: FloatArray) -> FloatArray:
        """An action in the manner of the episode; a uniform one is what was drawn."""
        if self._warmup_noise == "uniform":
            return draw
        episode = self._episodes - 1
        if self._manner is None or self._manner[0] != episode:
            random = host_random(self._seed, Stream.WARMUP_MANNER, *self._place(episode))
            self._manner = episode, warmup.draw_manner(random, self._spec, self._warmup_noise == "varied")
        return warmup.act(self._manner[1], self._rollout.last_action, draw, self._spec)

    def _place(self, number: int) -> tuple[int, ...]:
        """Where in the run something random is drawn: environments that share a seed have draws of their own."""
        return (number, self._share.number) if self._share.number else (number,)

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
            empty = (
                np.zeros((0, self._spec.obs_dim), self._spec.obs_dtype),
                np.zeros((0, self._spec.action_dim), np.float32),
            )
            return CollectorState(*counts, *empty, hidden)
        return CollectorState(*counts, *self._rollout.under_way(), hidden)

    def restore(self, state: CollectorState, n_steps: int = 0) -> bool:
        """Bring the environment back by taking the episode's actions again from its reset, after n steps in all.

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
                self._obs = np.array(state.obs[-1])  # a state may lie in memory that is written to again
                self._hidden_rewards = state.hidden_reward.tolist()
            else:
                self._rollout.close()
        self._rollout.steps = self._share.of_steps(n_steps)
        return is_same

    def _take_again(self, state: CollectorState) -> bool:
        number = state.episodes - 1
        obs = self._rollout.reset(reset_seed(self._seed, Stream.COLLECT_RESET, *self._place(number)))
        for action, before, after in zip(state.action, state.obs[:-1], state.obs[1:], strict=True):
            if not np.array_equal(obs, before):
                return False
            obs, episode = self._rollout.step(np.array(action))  # it may lie in memory that is written to again
            if episode is not None or not np.array_equal(obs, after):
                return False
        return np.array_equal(obs, state.obs[-1])

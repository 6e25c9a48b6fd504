"""Deterministic episodes of an evaluation, some of which may be lost to faults of the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from diaster.actors.acting import HostParameters, HostPolicy
from diaster.actors.rollout import Rollout
from diaster.envs.delayed import TRUE_REWARD
from diaster.errors import EnvironmentFault
from diaster.types import EvaluationEpisode, Stream, reset_seed

Outcome = EvaluationEpisode | EnvironmentFault


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
    return EvaluationEpisode(episode, np.asarray(hidden_rewards, np.float32))

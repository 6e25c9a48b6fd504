"""What fits the decomposer while an algorithm of Stable-Baselines3 learns."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from diaster.errors import DiasterError
from diaster.sb3.buffer import MOST_STEPS_BEHIND, DecomposedReplayBuffer

HOW = "replay_buffer_class=DecomposedReplayBuffer"


class FitDecomposer(BaseCallback):
    """Makes the decomposer's updates that are due after each rollout, and logs its metrics.

    Learning starts after `learning_starts` steps, as SB3 has it, but not before there are rewards to learn from: two
    finished episodes, and a first fit. Until then SB3 goes on with random actions.
    """

    def __init__(self, every: int = 200, verbose: int = 0) -> None:
        """`every` counts environment steps: the updates that belong to so many are made together."""
        super().__init__(verbose)
        if not isinstance(every, int):  # SB3 calls a class that it is given in the place of a callback
            raise DiasterError(
                f"every of the type {type(every).__name__} was given; give a number of steps, or none: "
                "callback=FitDecomposer()."
            )
        if not 1 <= every <= MOST_STEPS_BEHIND:
            raise DiasterError(f"every={every} was given; it has to be from 1 to {MOST_STEPS_BEHIND} steps.")
        self._every = every
        self._learning_starts = 0

    def _init_callback(self) -> None:
        buffer = self._buffer()
        own, given = buffer.n_steps, getattr(self.model, "n_steps", 1)
        if given not in (1, own):
            raise DiasterError(
                f"n_steps={given} of {self._algorithm} does not reach a replay buffer of another class; give "
                f"replay_buffer_kwargs=dict(n_steps={given}, gamma={self.model.gamma})."
            )
        if own > 1 and buffer.gamma != self.model.gamma:
            raise DiasterError(
                f"the replay buffer discounts by gamma={buffer.gamma} and {self._algorithm} by {self.model.gamma}; "
                "give both the same."
            )
        if not buffer.has_horizon:
            buffer.set_horizon(_longest_episode(self.training_env))

    def _on_training_start(self) -> None:
        self._learning_starts = self.model.learning_starts

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer, model = self._buffer(), self.model
        if model.num_timesteps > self._learning_starts and buffer.fit_due(self._every):
            for name, value in buffer.replay.metrics().items():
                self.logger.record(f"decomposer/{name}", value)
        model.learning_starts = self._learning_starts
        if not buffer.replay.has_rewards:
            # SB3 then acts at random during its next rollout, however long that is, and does not learn after it.
            next_rollout = model.n_envs * model.train_freq.frequency * buffer.replay.spec.horizon
            model.learning_starts = max(self._learning_starts, model.num_timesteps + next_rollout)

    def _on_training_end(self) -> None:
        self.model.learning_starts = self._learning_starts

    @property
    def _algorithm(self) -> str:
        return type(self.model).__name__

    def _buffer(self) -> DecomposedReplayBuffer:
        if not isinstance(self.model, OffPolicyAlgorithm):
            raise DiasterError(
                f"{self._algorithm} learns from what its policy has just done, without a replay; rewards that are "
                "learnt later need an off-policy algorithm, e.g. SAC, TD3, TQC or DQN."
            )
        buffer: Any = self.model.replay_buffer
        if not isinstance(buffer, DecomposedReplayBuffer):
            raise DiasterError(
                f"{self._algorithm} has a {type(buffer).__name__}, which holds no decomposer to fit; give "
                f"{self._algorithm} {HOW}."
            )
        return buffer


def _longest_episode(env: Any) -> int:
    """The time limit of the environments."""
    try:
        limits = [getattr(spec, "max_episode_steps", None) for spec in env.get_attr("spec")]
    except AttributeError:  # what some wrappers of other packages raise
        limits = [None]
    known: list[int] = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        raise DiasterError(
            "an environment does not say how long an episode may be; give replay_buffer_kwargs=dict(horizon=1000)."
        )
    return max(known)

"""A replay buffer of Stable-Baselines3 that holds whole episodes and gives the rewards of a decomposer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from diaster.config import updates_due
from diaster.decomposed.cutting import EpisodeCutter
from diaster.decomposed.replay import DecomposedReplay
from diaster.errors import DiasterError

MOST_STEPS_BEHIND = 10_000  # environment steps whose updates may be due while a decomposer counts as fitted
NAME = "the environment"


class DecomposedReplayBuffer(ReplayBuffer):
    """Episodes of all environments, in the place of SB3's transitions; give it as `replay_buffer_class`.

    The rewards that SB3 hands over are summed to a return per episode, and thrown away. A batch is drawn from finished
    episodes, and its rewards are those that the decomposer gives at that moment.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        method: str | Mapping[str, Any] = "diaster",
        horizon: int | str = "auto",
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        decomposer_device: str = "auto",
    ) -> None:
        """The first ones are SB3's. All others go into `replay_buffer_kwargs`.

        `method` is the name of a method, or a table of its settings with the `name`. `horizon` is the longest episode;
        auto takes it from the environments. `n_steps` and `gamma` are for n-step returns. `seed` of decomposer and
        draws is drawn from NumPy's generator, which SB3 has seeded, unless it is given. `decomposer_device` is auto,
        cpu or gpu.
        """
        _check_spaces(observation_space, action_space)
        if optimize_memory_usage:
            raise DiasterError(
                "optimize_memory_usage has nothing to save here, because every observation is stored once anyway; "
                "leave it out."
            )
        is_count = isinstance(n_steps, int | np.integer) and n_steps >= 1
        if not is_count or not isinstance(gamma, float | int | np.floating) or not 0.0 <= gamma <= 1.0:
            raise DiasterError(
                f"n_steps={n_steps!r} and gamma={gamma!r} were given; give a whole number of steps, at least one, and "
                "a discount from 0 to 1."
            )
        # As SB3's buffer for dicts does: the arrays of the class in between are not wanted.
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.optimize_memory_usage, self.handle_timeout_termination = False, handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        self._seed = int(np.random.randint(2**31)) if seed is None else seed
        self._method, self._decomposer_device = method, decomposer_device
        self._steps_seen = 0
        self._has_warned = False
        self._replay: DecomposedReplay | None = None
        self._cutters: list[EpisodeCutter] = []
        if horizon != "auto":
            self.set_horizon(horizon)

    @property
    def replay(self) -> DecomposedReplay:
        """The episodes and the decomposer."""
        if self._replay is None:
            raise DiasterError(
                "nobody has told the replay buffer how long an episode may be; give learn callback=FitDecomposer(), "
                "which finds out, or give replay_buffer_kwargs=dict(horizon=1000)."
            )
        return self._replay

    @property
    def has_horizon(self) -> bool:
        """Whether it is known how long an episode may be."""
        return self._replay is not None

    def set_horizon(self, horizon: int | str) -> None:
        """Say how long an episode may be, before the first one comes."""
        if isinstance(horizon, str):
            raise DiasterError(f"horizon='{horizon}' was given; give a whole number, or 'auto'.")
        # SB3 has scaled continuous actions to [−1, 1], and counts discrete ones from 0.
        is_box, shape = isinstance(self.action_space, spaces.Box), self.action_space.shape
        actions = spaces.Box(-1.0, 1.0, shape) if is_box else spaces.Discrete(self.action_space.n)
        self._replay = DecomposedReplay(
            self.observation_space,
            actions,
            horizon,
            self._method,
            capacity=self.buffer_size,
            seed=self._seed,
            device=self._decomposer_device,
            name=NAME,
        )
        self._cutters = [EpisodeCutter(horizon) for _ in range(self.n_envs)]

    def add(
        self,
        obs: NDArray[Any],
        next_obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Take in one step of every environment; an episode that ends with it can be drawn from now on."""
        replay = self.replay
        obs, next_obs, action = replay.terms.flat(obs), replay.terms.flat(next_obs), self._seen(action)
        for i, cutter in enumerate(self._cutters):
            is_timeout = self.handle_timeout_termination and bool(infos[i].get("TimeLimit.truncated", False))
            episode = cutter.add(
                obs[i],
                action[i],
                float(reward[i]),
                next_obs[i],
                is_last=bool(done[i]),
                terminated=not is_timeout,
                keep_rewards=replay.wants_hidden_rewards,
            )
            if episode is not None:
                replay.add_episode(episode)
                self.pos, self.full = len(replay), replay.is_full
        self._steps_seen += self.n_envs

    def size(self) -> int:
        """Steps that can be drawn, of all environments together: those of finished episodes."""
        return 0 if self._replay is None else len(self._replay)

    def reset(self) -> None:
        """Forget all episodes, and what the decomposer has learnt."""
        super().reset()
        self._steps_seen = 0
        if self._replay is not None:
            self.set_horizon(self._replay.spec.horizon)

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Steps of finished episodes with the decomposer's rewards, or with sums of those of `n_steps` steps.

        Rewards are divided by the decomposer's return scale. Where a `VecNormalize` normalises rewards, it does that
        with the decomposer's rewards in the environment's units instead.
        """
        replay = self.replay
        self._check_fitted(replay)
        drawn = replay.draw(batch_size, self.n_steps)
        reward = drawn.reward  # [B, K]
        if env is not None and env.norm_reward:
            reward = self._normalize_reward(reward * replay.scale, env)
        discounts = np.float32(self.gamma) ** np.arange(self.n_steps + 1, dtype=np.float32)
        action = drawn.action if isinstance(self.action_space, spaces.Box) else replay.spec.to_env(drawn.action)
        samples = ReplayBufferSamples(
            self.to_torch(self._normalize_obs(replay.terms.shown(drawn.obs), env)),
            self.to_torch(action.reshape(batch_size, -1)),
            self.to_torch(self._normalize_obs(replay.terms.shown(drawn.next_obs), env)),
            self.to_torch(drawn.terminal[:, None].astype(np.float32)),
            self.to_torch((reward * discounts[:-1]).sum(axis=1, keepdims=True).astype(np.float32)),
        )
        if self.n_steps == 1:
            return samples
        return samples._replace(discounts=self.to_torch(discounts[drawn.n_steps][:, None]))

    def fit_due(self, every: int) -> bool:
        """Make the decomposer's updates that are due, once as many are due as belong to `every` steps.

        Returns whether any have been made. The first ones, those of the warm-up, are made as soon as there are enough
        episodes.
        """
        replay = self.replay
        due = replay.updates_due(self._steps_seen)
        if not replay.has_enough or due < (updates_due(replay.method, every) if replay.has_rewards else 1):
            return False
        replay.fit(due)
        return replay.can_be_fitted

    def __getstate__(self) -> dict[str, Any]:
        replay = self._replay
        saved = None if replay is None else (replay.spec.horizon, replay.state())
        return {**self.__dict__, "_replay": saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["_replay"] is not None:
            horizon, arrays = state["_replay"]
            self.set_horizon(horizon)
            self.replay.restore(arrays)
            self._cutters = state["_cutters"]

    def _seen(self, action: NDArray[Any]) -> NDArray[np.float32]:
        """Actions as nets see them.  # [environments, A]"""
        if isinstance(self.action_space, spaces.Box):
            return action.reshape(self.n_envs, -1).astype(np.float32)
        return self.replay.terms.seen(action.reshape(self.n_envs))

    def _check_fitted(self, replay: DecomposedReplay) -> None:
        if not replay.has_enough:
            raise DiasterError(
                f"SB3 asks for a batch after {replay.episodes} finished episodes, and there is nothing to learn from "
                "before two; give learn callback=FitDecomposer(), which lets SB3 wait, or a larger learning_starts."
            )
        if not replay.has_rewards:
            raise DiasterError(
                "SB3 asks for a batch, and the decomposer has not been fitted; give learn callback=FitDecomposer()."
            )
        behind = replay.updates_due(self._steps_seen)
        if behind > max(1, updates_due(replay.method, MOST_STEPS_BEHIND)) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the decomposer is {behind} updates behind its schedule, so that rewards are those of an old fit; "
                "give every call of learn callback=FitDecomposer().",
                stacklevel=3,
            )


def _check_spaces(observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
    if not isinstance(observations, spaces.Box):
        raise DiasterError(
            f"observations of the kind {type(observations).__name__} cannot be learnt from, only vectors of numbers; "
            "wrap the environment in gymnasium.wrappers.FlattenObservation, and use MlpPolicy."
        )
    if not isinstance(actions, spaces.Box | spaces.Discrete):
        raise DiasterError(
            f"actions of the kind {type(actions).__name__} cannot be learnt from, only Box and Discrete ones; "
            "wrap the environment."
        )
